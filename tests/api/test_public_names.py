"""Every public name is documented, typed, and has the parameters of the records behind it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import histobench as hb
from histobench.api import plots
from histobench.consult.study_plan import ConsultRun, study_options
from histobench.core.records import Declared, options_of
from histobench.mint.runs.run_options import RunOptions
from histobench.roi.options import ENGINE_GROUP, LoadOptions, Settings, feature_options, plan_options
from histobench.roi.result_options import ChooseOptions, CompareOptions, PowerOptions

TOP = Path(__file__).parents[2]
SOURCE = TOP / "src" / "histobench"


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


@pytest.mark.parametrize("space", [hb, hb.mint, hb.consult, hb.estimators], ids=lambda space: space.__name__)
def test_every_public_name_has_an_example(space: Any) -> None:
    """`tests/test_docstring_examples.py` runs them."""
    assert dir(space) == sorted(space.__all__)  # what tab completion offers
    public = {name: getattr(space, name) for name in space.__all__}
    docs = {name: inspect.getdoc(each) or "" for name, each in public.items() if callable(each)}
    assert [name for name, doc in docs.items() if ">>> " not in doc or "+SKIP" in doc] == []


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
