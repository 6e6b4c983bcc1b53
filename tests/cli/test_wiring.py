"""Every flag of a command reaches the function that does the work."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from histobench.cli.bootstrap import BootstrapFlags
from histobench.cli.consult import PrepareFlags
from histobench.cli.data import CheckFlags
from histobench.cli.demo import DemoFlags
from histobench.cli.entry import Parser
from histobench.cli.evaluate import EvaluateFlags
from histobench.cli.extract import ExtractFlags
from histobench.cli.main import COMMANDS
from histobench.cli.mcp import McpFlags
from histobench.cli.report import ReportFlags
from histobench.cli.robustness import RobustnessFlags
from histobench.consult.study_plan import RUN_OPTIONS, ConsultRun, study_options
from histobench.core.records import Declared, options_of
from histobench.mint.runs.run_options import RunOptions
from histobench.roi.data.source import DatasetSource
from histobench.roi.encoders.registry import EncoderRecipe
from histobench.roi.options import IMAGE_KEYS, DatasetEntry, SplitOptions, plan_options


class Job(NamedTuple):
    """A command with what has to be given, the function that does the work, and what is not for it."""

    words: str
    inner: str
    options: tuple[Declared, ...]
    elsewhere: Collection[str] = ()


def names(*options: Declared) -> set[str]:
    return {each.name for each in options}


STRESS = names(*options_of(RobustnessFlags)) - {"k", "columns", "features", "verbose", "stress"}
JOBS = {
    "evaluate": Job(
        "--tasks KNN --train a.pt --test b.pt",
        "roi.evaluation.evaluation_run.evaluate",
        options_of(EvaluateFlags),
        {"num_workers", *IMAGE_KEYS, *names(*options_of(SplitOptions))},
    ),
    "extract": Job(
        "--data d.csv --encoders e",
        "roi.features.feature_extraction.extract",
        options_of(ExtractFlags),
        {"skip_failed"},
    ),
    "run": Job(
        "--data d.csv --encoders tiny-vl",
        "roi.plan.whole_benchmark.run_benchmark",
        (*options_of(DatasetEntry), *plan_options()),
        {"mask_classes", "target", "target_columns", "combine", "folds", "repeats", "slurm", "slurm_cpu"},
    ),
    "bootstrap": Job(
        "results", "roi.comparison.bootstrap_intervals.bootstrap_runs", options_of(BootstrapFlags)
    ),
    "robustness": Job(
        "f.pt",
        "api.site_robustness.measured",
        tuple(each for each in options_of(RobustnessFlags) if each.name in ("k", "columns", "device")),
    ),
    "robustness --stress": Job(
        "--data d.csv --encoders e",
        "roi.plan.stress.run_stress",
        tuple(each for each in options_of(RobustnessFlags) if each.name in STRESS),
    ),
    "report": Job("results", "report.site.build_site", options_of(ReportFlags)),
    "demo": Job("", "roi.data.demo.write_demo_dataset", options_of(DemoFlags), {"full"}),
    "data check": Job("d.csv", "roi.data.check.check_dataset", options_of(CheckFlags), {"show", "verbose"}),
    "consult prepare": Job(
        "d.csv --encoders a,b", "consult.preparing.prepare", (*options_of(PrepareFlags), *study_options())
    ),
    "mcp": Job("--data d.csv --encoders e", "consult.mcp_server.open_bench", options_of(McpFlags), {"http"}),
    "mint run": Job("--agent local:", "mint.runs.play.play", options_of(RunOptions)),
    "consult run": Job(
        "study --agent local:",
        "consult.playing.play",
        (*options_of(ConsultRun), *(each for each in options_of(RunOptions) if each.name in RUN_OPTIONS)),
    ),
}
#: Other texts than "other", where not every text will do.
TEXTS = {
    "tasks": "Proto",
    "presets": "thunder",
    "preset": "thunder",
    "split": "0.6/0.4",
    "pool": "tiles",
    "encoders": "uni_v1",
    "arms": "weak",
    "constrain": "True",
    "devices": "cuda:3",
    "device": "cuda:3",
    "splits": "3x2",
    "k": "4",
    "features": "x=folder",
    "group_regex": "(other)",
    "path_regex": "(?P<label>other)",
    "agent": "openai:other",
}


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """What the inner function of a command is given, as text; nothing is read before."""
    from histobench.cli import robustness
    from histobench.core import devices
    from histobench.report import site
    from histobench.roi.data import class_map, source, split
    from histobench.roi.features import feature_file
    from histobench.roi.results import reader

    for job in JOBS.values():  # or they would keep what is put in place of other functions here
        if job.inner != JOBS["mcp"].inner:
            importlib.import_module(f"histobench.{job.inner.rpartition('.')[0]}")
    found: list[str] = []
    for module, name, instead in (
        (feature_file, "load", lambda path: f"features of {path}"),
        (class_map, "read_class_map", lambda path: f"classes of {path}"),
        (source, "load_dataset", lambda *given, **options: repr((given, options))),
        (DatasetSource, "load", lambda self: self),
        (DatasetSource, "read", lambda self: self),
        (split, "check_learnt", lambda data: None),
        (EncoderRecipe, "unresolved", lambda self: None),
        (reader, "load_runs", lambda folder: [str(folder)]),
        (robustness, "_encoders", lambda given: ({("d", "e", ""): given}, [])),
        (devices, "resolve_device", lambda name: str(name)),
        (site, "check_apart", lambda *folders: None),
    ):
        monkeypatch.setattr(module, name, instead)

    def record(*given: Any, **options: Any) -> None:
        found.append(re.sub(r" at 0x[0-9a-f]+", "", repr((given, options))))
        raise SystemExit

    def run(command: str, words: str) -> str:
        module, _, function = JOBS[command].inner.rpartition(".")
        if command == "mcp":
            pytest.importorskip("mcp")
            monkeypatch.setattr(f"histobench.{module}.OpeningBench.start", lambda self: self._make(self))
        monkeypatch.setattr(importlib.import_module(f"histobench.{module}"), function, record)
        name, *more = shlex.split(f"{command} {words}")
        parser = Parser(prog=name)
        COMMANDS[name].add_flags(parser)
        with pytest.raises(SystemExit):
            COMMANDS[name].run(parser.parsed(more))
        return found.pop()

    return run


def written(option: Declared) -> tuple[str, str]:
    """The flag with another value than the default, and how this is found in what a function is given."""
    if option.kind is bool:
        value = str(not option.default)
        return (f"{option.flag} {value}" if option.said.takes_value else option.flag), value
    if option.words:
        value = next((word for word in option.words if word != option.default), "77")
    else:
        value = {int: "77", float: "0.25"}.get(option.kind, TEXTS.get(option.name, "other"))
    return f"{option.flag} {shlex.quote(value)}", re.split("[,=]", value)[-1]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        pytest.param(
            command, option, id=f"{command}-{option.name}", marks=[pytest.mark.slow] * (command == "mcp")
        )
        for command, job in JOBS.items()
        for option in job.options
        if option.name not in job.elsewhere
    ],
)
def test_a_flag_reaches_the_function_that_does_the_work(
    command: str, option: Declared, reached: Callable[[str, str], str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("d.csv", "other"):
        (tmp_path / name).write_text("image_path,label,split\n")
    flag, value = written(option)
    base = JOBS[command].words
    given = f"{value} {base.partition(' ')[2]}" if option.said.positional else f"{base} {flag}"
    before, after = reached(command, base), reached(command, given)
    assert before != after
    # A study, and a server, are of a dataset that the same seed divides.
    assert after.count(value) >= 1 + (option.name == "seed" and command in ("consult prepare", "mcp"))


def test_the_seed_of_the_demo_is_that_of_everything_in_it(tmp_path: Path, monkeypatch: Any) -> None:
    from histobench.cli import demo
    from histobench.roi.data import demo as tiles
    from histobench.roi.data import demo_masks
    from histobench.roi.plan import whole_benchmark

    seeds: list[int] = []
    done = SimpleNamespace(outcome=SimpleNamespace(failures=[], has_results=True))

    def noted(result: Any) -> Callable[..., Any]:
        return lambda *given, **options: seeds.append(options.get("seed") or given[0].seed) or result

    monkeypatch.setattr(tiles, "write_demo_dataset", noted(tmp_path / "t.csv"))
    monkeypatch.setattr(demo_masks, "draw_mask_tiles", noted(tmp_path / "m.csv"))
    monkeypatch.setattr(whole_benchmark, "run_benchmark", noted(done))
    monkeypatch.setattr(demo, "play_consult", noted(None))
    for name, result in (("play_agents", []), ("build_pages", None), ("print_encoders", "")):
        monkeypatch.setattr(demo, name, lambda *_, result=result: result)
    assert demo.demo_command(DemoFlags(out=str(tmp_path), seed=7)) == 0
    assert seeds == [7] * 5
