"""Fixtures shared by all tests."""

from __future__ import annotations

import builtins
import gc
import io
import logging
import os
import random
import re
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no defect of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("usual", settings.get_profile("patient"), max_examples=25)
settings.register_profile("fast", settings.get_profile("patient"), max_examples=10)
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parents[1]
os.environ.pop("COLUMNS", None)  # a worker of xdist has the width of its terminal
if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads of several workers would wait for each other's cores, and they wait by spinning.
    for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(_name, "1")
SECONDS_BEFORE = pytest.StashKey[float]()
NO_FLUSH = pytest.MonkeyPatch()


#: Files with tests of a minute and more: they begin first, so that no worker ends alone with them.
LONGEST = ("test_clusters.py", "test_wheel.py", "test_live_model.py", "test_documentation.py")
#: Files of which every test is left out by `-m "not slow"` or `-m "not nightly"`: they are not even imported.
LEFT_OUT = {
    "not slow": re.compile(r"^pytestmark = .*pytest\.mark\.(slow|nightly)\b", re.MULTILINE),
    "not nightly": re.compile(r"^pytestmark = .*pytest\.mark\.nightly\b", re.MULTILINE),
}
#: From here on a test belongs to the slow ones; `--costs` shows what each took.
SLOW_SECONDS = 0.25


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs",
        type=int,
        metavar="N",
        help="list processor time and waiting by file and by test, the N most expensive of each",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Where slow tests are left out, examples that are drawn at random are fewer, too."""
    gc.disable()  # until everything is imported
    # No test cuts the power, and a killed process loses nothing that it has written: half of the waiting of a
    # small run was for the disk.
    NO_FLUSH.setattr(os, "fsync", lambda descriptor: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So it is in the background of a script, and in every process that is started there.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.markexpr == "not slow":
        settings.load_profile("fast")
    elif config.option.markexpr == "not nightly":
        settings.load_profile("usual")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that are left out as a whole are not imported."""
    pattern = LEFT_OUT.get(config.option.markexpr)
    if pattern is None or collection_path.suffix != ".py":
        return None
    return pattern.search(collection_path.read_text(encoding="utf-8")) is not None or None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> Iterator[None]:
    """Assign each test to its tier, then put those first that take longest.

    `slow` is left out of `make test-fast`, `nightly` of `make test` as well. Of a parametrized test with the
    mark `sample(n)`, n cases stay in `make test` (those that are not slow first, then by a hash of the name:
    the same in every run, and spread over all parameters); the others are nightly. Tests that draw random
    examples are in both: `make test-rest` draws all of them.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample"):
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    for group in cases.values():
        group.sort(
            key=lambda item: (
                item.get_closest_marker("nightly") is not None,
                item.get_closest_marker("slow") is not None,
                crc32(item.name.encode()),
            )
        )
        for item in group[group[0].get_closest_marker("sample").args[0] :]:
            item.add_marker("nightly")
    for item in items:
        if config.option.markexpr == "nightly" and getattr(
            getattr(item, "obj", None), "is_hypothesis_test", False
        ):
            item.add_marker("nightly")
        if item.get_closest_marker("nightly") and not item.get_closest_marker("slow"):
            item.add_marker("slow")
    yield
    turn: dict[Path, int] = {}
    for item in items:
        slow = item.get_closest_marker("slow") is not None
        turn.setdefault(item.path, 0 if item.path.name in LONGEST else 1 if slow else 2)
    items.sort(key=lambda item: turn[item.path])


def pytest_collection_finish() -> None:
    """What collecting has imported stays to the end: looking through it again and again finds no garbage.

    A full collection took 0.6 s with everything imported; statsmodels asks for one at every call. And pytest
    visits every logger that keeps its messages to itself, three times a test: torch has 45 of them.
    """
    for logger in list(logging.Logger.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    NO_FLUSH.undo()


def _processor_seconds() -> float:
    """What this process and the children that it waited for have used."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note the processor time of each phase beside its duration; a worker sends both."""
    report = yield
    now = _processor_seconds()
    before = item.config.stash.get(SECONDS_BEFORE, now)
    item.config.stash[SECONDS_BEFORE] = now
    report.user_properties = [*report.user_properties, (f"cpu-{call.when}", now - before)]
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """With `--costs N`: what takes longest, and which tests should be marked slow; nothing fails for it."""
    if not config.option.costs:
        return
    files: dict[str, list[float]] = {}
    tests: dict[str, list[float]] = {}
    setups: dict[str, list[float]] = {}
    unmarked: set[str] = set()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            used = dict(report.user_properties).get(f"cpu-{report.when}", 0.0)
            tables = [(files, report.nodeid.split("::")[0]), (tests, report.nodeid)]
            if report.when == "setup":
                tables.append((setups, report.nodeid))
            for table, name in tables:
                row = table.setdefault(name, [0.0, 0.0])
                row[0] += used
                row[1] += max(report.duration - used, 0.0)
            if "slow" not in report.keywords:
                unmarked.add(report.nodeid)
    quick = {name: row for name, row in tests.items() if name in unmarked and sum(row) > SLOW_SECONDS}
    for title, table in (
        ("files", files),
        ("tests", tests),
        ("fixtures (setup of the first test that needs them)", setups),
        (f"more than {SLOW_SECONDS:g} s and not marked slow", quick),
    ):
        terminalreporter.section(f"{title}: processor seconds, seconds of waiting")
        for name in sorted(table, key=lambda name: -table[name][0])[: config.option.costs]:
            terminalreporter.line(f"{table[name][0]:8.1f} {table[name][1]:8.1f}  {name}")
    total = [sum(row[place] for row in files.values()) for place in (0, 1)]
    terminalreporter.line(f"{total[0]:8.1f} {total[1]:8.1f}  all tests (without collecting)")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference data beside the repository; tests that need it skip where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("reference data (../shared) is not on this machine")
    return folder


@pytest.fixture(scope="session")
def needs_sandbox() -> None:
    """Skip where model code cannot be confined."""
    from histobench.mint.sandbox import active_backend

    name, why = active_backend()
    if name == "none":
        pytest.skip(f"no sandbox works on this machine: {why}")


@pytest.fixture(scope="session", params=["slice", pytest.param("whole", marks=pytest.mark.nightly)])
def reference_dir(request: pytest.FixtureRequest) -> Path:
    """Reference data: the slice that comes with the tests, and the whole where it is on this machine."""
    if request.param == "slice":
        return ROOT / "tests" / "data" / "reference"
    whole: Path = request.getfixturevalue("shared_dir")
    return whole


@pytest.fixture(scope="session")
def best_reference_dir() -> Path:
    """The whole reference data where it is on this machine, else the slice: for checks that take long."""
    whole = ROOT.parent / "shared"
    return whole if whole.is_dir() else ROOT / "tests" / "data" / "reference"


class FaultyDisk:
    """A file layer with faults: opening and listing below a folder fail, or listings lag behind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._code, self._left, self.failed = "", 0, 0, 0
        self._hidden: set[str] = set()
        self._listdir = os.listdir
        self._chance: tuple[random.Random, Sequence[int], float] | None = None
        for module, name in (
            (io, "open"),
            (builtins, "open"),
            (os, "open"),
            (os, "listdir"),
            (os, "scandir"),
        ):
            monkeypatch.setattr(module, name, self._guarded(getattr(module, name), listing="dir" in name))

    @contextmanager
    def failing(self, folder: Path, code: int, *, times: int = 10**9) -> Iterator[None]:
        """The next `times` calls that open for reading, or list, below `folder` fail with this error."""
        self._folder, self._code, self._left = str(folder), code, times
        try:
            yield
        finally:
            self._left = 0

    @contextmanager
    def at_random(
        self, folder: Path, rng: random.Random, codes: Sequence[int], *, share: float
    ) -> Iterator[None]:
        """This share of the calls fails with one of the errors; as many listings lack their last file."""
        self._folder, self._chance = str(folder), (rng, codes, share)
        try:
            yield
        finally:
            self._chance = None

    @contextmanager
    def lagging(self, *paths: Path) -> Iterator[None]:
        """Listings do not show these files yet."""
        self._hidden = {str(path) for path in paths}
        try:
            yield
        finally:
            self._hidden = set()

    def _guarded(self, call: Callable[..., Any], *, listing: bool) -> Callable[..., Any]:
        def guarded(path: Any = ".", *args: Any, **options: Any) -> Any:
            reads = not args or not isinstance(args[0], str) or args[0] in ("r", "rb")
            if self._left and reads and not isinstance(path, int) and str(path).startswith(self._folder):
                self._left -= 1
                self.failed += 1
                raise OSError(self._code, os.strerror(self._code), str(path))
            if self._chance and reads and not isinstance(path, int) and str(path).startswith(self._folder):
                rng, codes, share = self._chance
                if rng.random() < share:
                    self.failed += 1
                    code = rng.choice(codes)
                    raise OSError(code, os.strerror(code), str(path))
                if call is self._listdir and rng.random() < share:
                    return call(path, *args, **options)[:-1]
            found = call(path, *args, **options)
            if listing and isinstance(found, list):
                return [name for name in found if os.path.join(path, name) not in self._hidden]
            return found

        return guarded


@pytest.fixture
def faulty_disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    """A disk whose errors are arranged by the test."""
    return FaultyDisk(monkeypatch)
