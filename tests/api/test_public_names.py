"""Every public name is documented, typed, and has the parameters of the records behind it."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import histobench as hb
from histobench.api import plots
from histobench.cli.main import main
from histobench.consult.study_plan import ConsultRun, study_options
from histobench.core.records import Declared, options_of
from histobench.mint.runs.run_options import RunOptions
from histobench.roi.options import ENGINE_GROUP, LoadOptions, Settings, feature_options, plan_options
from histobench.roi.result_options import ChooseOptions, CompareOptions, PowerOptions

TOP = Path(__file__).parents[2]
SOURCE = TOP / "src" / "histobench"
FLAG = re.compile(r"(?<![\w-])--[a-z]")


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (hb.run, [each for each in plan_options() if each.said.group != ENGINE_GROUP]),
        (hb.extract, options_of(Settings)),
        (hb.evaluate, feature_options()),
        (hb.compare, options_of(CompareOptions)),
        (hb.choose, options_of(ChooseOptions)),
        (hb.power, options_of(PowerOptions)),
        (hb.load_dataset, [each for each in options_of(LoadOptions) if each.name != "pool"]),
        (
            hb.mint.run,
            [each for each in options_of(RunOptions) if each.name not in ("output", "agent", "tasks")],
        ),
        (hb.consult.prepare, study_options()),
        (hb.consult.run, options_of(ConsultRun)),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_a_function_has_the_options_of_its_records(
    function: Callable[..., Any], options: list[Declared]
) -> None:
    """Each is a parameter with its default, or named among the further options of the docstring."""
    parameters = inspect.signature(function).parameters
    further = (inspect.getdoc(function) or "").partition("\n**options\n")[2].partition("\n\n")[0]
    for each in options:
        if each.name in parameters:
            default = parameters[each.name].default
            assert default in (None, each.default, inspect.Parameter.empty), each.name
        else:
            assert re.search(rf"\b{each.name}\b", further), each.name


def test_the_help_of_a_run_fits_one_screen() -> None:
    assert len((inspect.getdoc(hb.run) or "").splitlines()) <= 60


def test_a_further_option_is_checked() -> None:
    with pytest.raises(hb.HistobenchError, match="unknown key 'n_neighbours'; did you mean n_neighbors"):
        hb.run("x", "tiny-vl", n_neighbours=3)
    with pytest.raises(ValueError, match="n_iter: expected a whole number of at least 1, found 0"):
        hb.evaluate(np.eye(4), np.eye(4), [0, 1, 0, 1], [0, 1, 0, 1], n_iter=0)


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
    asked = [str(each) for each in inspect.signature(value).parameters if each != "self"]
    asked = ["**options" if each == "options" else each for each in asked]
    section = text.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    heads = [line for line in section.splitlines() if line and not line.startswith(" ")]
    told = [each.strip() for line in heads for each in line.partition(" : ")[0].split(",")]
    assert [each for each in asked if each not in told] == [], name
    assert [each for each in told if each not in asked] == [], name


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
    assert {"train", "test", "to_frame"} <= set(dir(features))
    assert {"val", "frame"}.isdisjoint(dir(features))
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


@pytest.mark.parametrize("space", [hb, hb.mint, hb.consult, hb.estimators], ids=lambda space: space.__name__)
def test_every_public_name_has_an_example(space: Any) -> None:
    """`tests/test_docstring_examples.py` runs them."""
    values = {name: getattr(space, name) for name in space.__all__}
    assert dir(space) == sorted(space.__all__)  # what tab completion offers
    names = [name for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)]
    assert [name for name in names if ">>> " not in (inspect.getdoc(values[name]) or "")] == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hb.consult.run("s", "policy:reader", tasks="gsm8k"), "unknown key 'tasks'"),
        (lambda: hb.load_dataset("x.csv", group_column=""), "^group_column: expected a text, found ''"),
        (lambda: hb.compare("r", task=""), "^task: expected a text, found ''"),
    ],
)
def test_an_option_that_does_not_apply_or_is_empty_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(hb.HistobenchError, match=message):
        call()
