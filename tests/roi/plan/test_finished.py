"""A run with nothing left to do computes nothing, and anything that its results depend on is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builders import MEAN_ENCODER
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.features.inference.device_runner import EncoderState
from histobench.roi.options import Plan
from histobench.roi.plan import plan_outcome
from histobench.roi.plan.plan_file import plan_from
from histobench.roi.plan.summary import Wanted
from histobench.roi.plan.whole_benchmark import run_benchmark

LABELS = [0, 1, 2] * 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plan_outcome, "SETTLED_NS", -1)  # the files of a test are a moment old


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Features from elsewhere: no images, no network."""
    lines = [f"t{number},{label},{'train' if number < 15 else 'test'}" for number, label in enumerate(LABELS)]
    (tmp_path / "set.csv").write_text("\n".join(["image_path,label,split", *lines]))
    rng = np.random.default_rng(0)
    names = np.array([f"t{number}" for number in range(len(LABELS))])
    for name in ("one", "uni_v1"):
        features = rng.standard_normal((len(LABELS), 4)).astype(np.float32) + np.array(LABELS)[:, None]
        np.savez(tmp_path / f"{name}.npz", features=features, img_names=names)
    values = {
        "datasets": [str(tmp_path / "set.csv")],
        "features": [f"{name}={tmp_path / name}.npz" for name in ("one", "uni_v1")],
        "tasks": ["KNN", "Proto"],
        "n_neighbors": 3,
        "device": "cpu",
        "results": str(tmp_path / "results"),
    }
    return plan_from(values, where="test", base=tmp_path)


def is_repeated(plan: Plan) -> bool:
    """Whether a run only gives the outcome of the one before; if not, it compares anew."""
    done = run_benchmark(plan)
    assert done.shown is not None
    assert done.outcome.has_results
    return not done.comparisons


@pytest.mark.slow
def test_a_finished_run_shows_the_same_and_imports_no_torch(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run_benchmark(plan)
    assert (first.outcome.evaluated, first.outcome.unchanged) == (4, 0)
    again = run_benchmark(plan)
    assert (again.outcome.evaluated, again.outcome.unchanged) == (0, 4)
    assert (again.shown, again.summary) == (first.shown, first.summary)
    assert not again.comparisons
    assert len(list((plan.results / "work/runs").iterdir())) == 1
    # Of the command line: another plan (paths), so that its first run is a whole one.
    arguments = ["run", "--data", "set.csv", "--features", "one=one.npz,uni_v1=uni_v1.npz", "--tasks", "KNN"]
    arguments += ["--n_neighbors", "3", "--device", "cpu"]
    monkeypatch.chdir(tmp_path)
    summary = plan.results / "summary.md"
    before = summary.stat().st_mtime_ns
    capsys.readouterr()
    assert main(arguments) == 0
    said = capsys.readouterr().out.splitlines()
    assert any("one@elsewhere" in line for line in said)
    written = summary.stat().st_mtime_ns
    assert written > before
    code = (
        "import sys\nfrom histobench.roi.plan import plan_outcome\nfrom histobench.cli.main import main\n"
        "plan_outcome.SETTLED_NS = -1\n"
        "main(sys.argv[1:])\nprint('torch' in sys.modules, 'scipy' in sys.modules)"
    )
    command = [sys.executable, "-c", code, *arguments]
    again_said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert again_said == [*said, "False False"]
    assert summary.stat().st_mtime_ns == written


def _relabel(folder: Path) -> None:
    text = (folder / "set.csv").read_text()
    (folder / "set.csv").write_text(text.replace("t0,0", "t0,1"))


def _other_features(folder: Path) -> None:
    stat = (folder / "one.npz").stat()
    content = bytearray((folder / "one.npz").read_bytes())
    with np.load(folder / "one.npz") as stored:
        np.savez(folder / "one.npz", features=stored["features"] * 2, img_names=stored["img_names"])
    assert (folder / "one.npz").stat().st_size == len(content)
    os.utime(folder / "one.npz", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as a copy keeps its time


def _a_result(folder: Path) -> Path:
    return next((folder / "results").rglob("KNN_complete_results.json"))


CHANGES: dict[str, Callable[[Path], None]] = {
    "label": _relabel,
    "features": _other_features,
    "a result is gone": lambda folder: _a_result(folder).unlink(),
    "a result was touched": lambda folder: os.utime(_a_result(folder)),
    "the summary is gone": lambda folder: (folder / "results/summary.md").unlink(),
    "another result": lambda folder: (folder / "results/set/more.txt").write_text("x"),
}


@pytest.mark.slow
def test_a_change_is_noticed(plan: Plan, tmp_path: Path) -> None:
    assert not is_repeated(plan)
    assert is_repeated(plan)
    for what, change in CHANGES.items():
        change(tmp_path)
        assert not is_repeated(plan), what
        assert is_repeated(plan), what


@pytest.mark.slow
def test_another_plan_code_or_machine_is_noticed(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_repeated(plan)
    assert not is_repeated(replace(plan, options=replace(plan.options, n_neighbors=4)))
    assert not is_repeated(plan)
    assert is_repeated(plan)
    assert run_benchmark(plan, details=True).comparisons
    assert run_benchmark(plan, retry_failed=True).comparisons
    assert is_repeated(plan)
    with monkeypatch.context() as other:
        other.setattr("socket.gethostname", lambda: "elsewhere")
        assert not is_repeated(plan)
    with monkeypatch.context() as other:
        other.setattr("histobench.roi.features.fingerprint.installed_version", lambda package: "0")
        assert not is_repeated(plan)
    for options in ({"recheck": 3}, {"no_cache": True}):
        asked = replace(plan, settings=replace(plan.settings, **options))
        assert not is_repeated(asked)
        assert not is_repeated(asked)


@pytest.mark.slow
def test_a_file_that_was_just_written_is_not_trusted(plan: Plan, tmp_path: Path) -> None:
    os.utime(tmp_path / "set.csv", (time.time() + 3600,) * 2)
    assert not is_repeated(plan)
    assert not is_repeated(plan)


def _tiles(folder: Path, count: int = 8) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("a", "b"):
            for number in range(count):
                pixels = rng.integers(0, 120, (16, 16, 3)) + (90 if label == "b" else 0)
                path = folder / split / label / f"{split}{label}{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(path)


def _images_plan(folder: Path, encoder: str) -> Plan:
    _tiles(folder / "tiles")
    values = {"datasets": [str(folder / "tiles")], "encoders": [encoder], "tasks": ["Proto"]}
    values |= {"results": str(folder / "results"), "device": "cpu", "compile": "off", "num_workers": 0}
    return plan_from(values, where="test", base=folder)


@pytest.mark.slow
def test_a_listed_encoder_is_not_built_and_images_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _images_plan(tmp_path, "tiny-vl")
    assert not is_repeated(plan)
    with monkeypatch.context() as without:
        without.setattr("histobench.roi.encoders.registry.create_encoder", None)
        assert is_repeated(plan)
    image = tmp_path / "tiles/train/a/traina0.png"
    stat, size = image.stat(), image.stat().st_size
    image.write_bytes(image.read_bytes()[:-1] + b"\0")
    os.utime(image, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert image.stat().st_size == size
    assert not is_repeated(plan)
    assert is_repeated(plan)
    Image.new("RGB", (16, 16)).save(tmp_path / "tiles/train/b/new.png")
    assert not is_repeated(plan)
    (tmp_path / "tiles/train/b/new.png").unlink()
    assert not is_repeated(plan)
    assert is_repeated(plan)


@pytest.mark.slow
def test_images_of_a_users_own_encoder_are_computed_again_in_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from histobench.roi.features import feature_extraction as extract

    (tmp_path / "own.py").write_text(MEAN_ENCODER)
    plan = _images_plan(tmp_path, f"{tmp_path / 'own.py'}:Mean")
    compared: list[int] = []
    compare = extract.compare_again

    def counted(state: EncoderState, keys: Sequence[bytes], *rest: Any) -> Any:
        compared.append(len(keys))
        return compare(state, keys, *rest)

    monkeypatch.setattr(extract, "compare_again", counted)
    for count in (0, 1, 2):
        assert not is_repeated(plan)
        assert len(compared) == count
    assert compared[0] == 31  # of 32 images: a change of 1 % is found with a chance of 95 %


@pytest.mark.parametrize(
    "plan", [{}, {"state": "done"}, {"datasets": 5, "encoders": [], "presets": [], "seed": 0}]
)
def test_a_plan_that_was_changed_while_the_run_went_on_is_one_line(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    folder = SimpleNamespace(path=tmp_path, plan=plan, units=list)
    with pytest.raises(HistobenchError, match="its plan was changed or removed"):
        Wanted.of(folder)  # type: ignore[arg-type]
