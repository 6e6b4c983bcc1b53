"""Every public name is documented, typed, and has the parameters of the records behind it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

import histobench as hb
from histobench.api import plots
from histobench.cli.main import main
from histobench.consult.reference_agents import POLICIES, RULES
from histobench.consult.study_plan import ConsultRun, StudyPlan
from histobench.mint.runs.run_options import CONSULT_MAX_TOKENS, RunOptions
from histobench.roi.result_options import CompareSettings

TOP = Path(__file__).parents[2]
SOURCE = TOP / "src" / "histobench"
FLAG = re.compile(r"(?<![\w-])--[a-z]")


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_signatures", TOP / "scripts/write_signatures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_signatures_are_those_of_the_records() -> None:
    for path, text in _script().sources().items():
        assert path.read_text(encoding="utf-8") == text, "run python scripts/write_signatures.py"


def test_every_option_of_a_run_is_a_parameter_with_its_default() -> None:
    options = {each.name: each for each in _script().options_of_run()}
    parameters = inspect.signature(hb.run).parameters
    assert {"tasks", "n_neighbors", "splits", "recheck"} < options.keys() <= parameters.keys()
    for name, each in options.items():
        assert parameters[name].default == each.default, name
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _public() -> Iterator[tuple[str, Any]]:
    """Every public function, class and method, by the name that users write."""
    for space, names in (
        (hb, [name for name in hb.__all__ if not inspect.ismodule(getattr(hb, name))]),
        (hb.mint, hb.mint.__all__),
        (hb.consult, hb.consult.__all__),
        (hb.estimators, hb.estimators.__all__),
        (plots, ["Plots"]),
    ):
        for name in names:
            value = getattr(space, name)
            if isinstance(value, str):
                continue
            yield f"{space.__name__}.{name}", value
            if inspect.isclass(value):
                for method, inner in inspect.getmembers(value, inspect.isfunction):
                    if not method.startswith("_") and inner.__module__.startswith("histobench"):
                        yield f"{space.__name__}.{name}.{method}", inner


@pytest.mark.parametrize(("name", "value"), [pytest.param(*each, id=each[0]) for each in _public()])
def test_every_parameter_of_a_public_name_is_documented(name: str, value: Any) -> None:
    text = inspect.getdoc(value) or ""
    assert text, name
    if inspect.isclass(value):
        told = re.findall(r"^([a-zA-Z_, ]+)(?: : .*)?$", text, flags=re.MULTILINE)
        known = {each.strip() for line in told for each in line.split(",")}
        own = [each.name for each in fields(value) if each.name[0] != "_"] if is_dataclass(value) else []
        assert [each for each in own if each not in known] == [], name
        return
    assert "Returns\n-------" in text or inspect.signature(value).return_annotation == "None", name
    asked = [each for each in inspect.signature(value).parameters if each != "self"]
    section = text.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    heads = [line for line in section.splitlines() if line and not line.startswith(" ")]
    told = [each.strip() for line in heads for each in line.partition(" : ")[0].split(",")]
    assert [each for each in asked if each not in told] == [], name
    assert [each for each in told if each not in asked] == [], name


def _defaults(record: Any) -> dict[str, Any]:
    return {each.name: each.default for each in fields(record) if each.default is not MISSING}


@pytest.mark.parametrize(
    ("function", "records", "elsewhere"),
    [
        (hb.mint.run, [RunOptions], {"agent": "local:", "tasks": "quickstart"}),
        (hb.consult.prepare, [StudyPlan], {}),
        (hb.compare, [CompareSettings], {}),
    ],
)
def test_a_function_has_the_options_of_its_record(
    function: Callable[..., Any], records: list[Any], elsewhere: dict[str, Any]
) -> None:
    parameters = inspect.signature(function).parameters
    wanted = {name: value for record in records for name, value in _defaults(record).items()} | elsewhere
    assert {name: parameters[name].default for name in wanted} == wanted


def test_a_consult_run_has_the_options_of_the_command() -> None:
    parameters = inspect.signature(hb.consult.run).parameters
    known = _defaults(RunOptions) | _defaults(ConsultRun) | {"max_tokens": CONSULT_MAX_TOKENS}
    for name in list(parameters)[2:]:
        assert parameters[name].default == known[name], name
    assert _defaults(ConsultRun).keys() <= parameters.keys()
    assert RULES.keys() == POLICIES.keys()


@pytest.mark.slow
def test_what_raises_an_error_names_no_flag() -> None:
    """Errors reach Python users as well; the command line turns `names` into flags by itself."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] == "cli" or path.parent.name == "guest":
            continue
        source = path.read_text(encoding="utf-8")
        if not FLAG.search(source):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Raise) and node.exc is not None:
                text = " ".join(
                    str(inner.value)
                    for inner in ast.walk(node.exc)
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
                )
                # Flags of other programs are meant as such.
                ours = re.sub(r"(`?ray start|`?pip install|sbatch|histobench data get)[^;,`]*", "", text)
                if FLAG.search(ours):
                    found.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {text[:90]}")
    assert found == []


@pytest.mark.nightly
def test_a_program_is_checked_by_mypy() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "tests/api/typed_example.py"],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (SOURCE / "py.typed").is_file()


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> hb.FeatureSplits:
    folder = tmp_path_factory.mktemp("tiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HISTOBENCH_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        data = hb.demo_dataset("tiles", train_per_class=12, test_per_class=8, size=64, sites="crossed")
        before = set(folder.iterdir())
        found = hb.extract(data, "tiny-vl", device="cpu", num_workers=0)
        assert set(folder.iterdir()) - before == {folder / "cache"}, "nothing but the cache is written"
        assert not found.paths
        kept = hb.extract(data, "tiny-vl", device="cpu", num_workers=0, folder=folder / "kept")
        assert {split: path.exists() for split, path in kept.paths.items()} == {"train": True, "test": True}
        assert (kept.train.X == found.train.X).all()
    return kept


@pytest.mark.slow
def test_features_are_a_frame_and_complete_their_splits(features: hb.FeatureSplits) -> None:
    frame = features.to_frame()
    assert list(frame.columns[:7]) == ["split", "image", "label", "class", "group", "scanner", "stain"]
    assert frame["split"].value_counts().to_dict() == {"train": 108, "test": 72}
    assert (frame.loc[frame["split"] == "test", "x0"].to_numpy() == features.test.X[:, 0]).all()
    assert {"train", "test", "frame"} <= set(dir(features))
    assert "val" not in dir(features)
    assert not hasattr(features, "val")
    assert "<table>" in features._repr_html_()


@pytest.mark.nightly
def test_robustness_from_python_is_that_of_the_command_line(
    features: hb.FeatureSplits, tmp_path: Path
) -> None:
    kept = tmp_path / "python"
    measured = hb.robustness(features, columns="scanner", device="cpu", results=kept)
    folder = next(iter(features.paths.values())).parent
    shell = tmp_path / "shell"
    assert main(["robustness", str(folder), "--column", "scanner", "--device", "cpu", "-o", str(shell)]) == 0
    assert (kept / "robustness.json").read_bytes() == (shell / "robustness.json").read_bytes()
    pd.testing.assert_frame_equal(
        measured.to_frame(), hb.robustness(str(folder), columns="scanner", device="cpu").to_frame()
    )
    assert "robustness by scanner" in repr(measured)
    assert "<table>" in measured._repr_html_()
    assert measured.differences().empty
    with pytest.raises(hb.HistobenchError, match="there is no site column 'lot'"):
        hb.robustness(features, columns="lot")
    with pytest.raises(hb.HistobenchError, match=r"^features: expected what hb.extract returned"):
        hb.robustness(3)  # type: ignore[arg-type]
