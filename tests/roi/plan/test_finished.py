"""A repeated run evaluates only what is missing or was computed from something else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builders import MEAN_ENCODER
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.data.sites import Place
from histobench.roi.features.inference.device_runner import EncoderState
from histobench.roi.options import Plan
from histobench.roi.plan.plan_file import plan_from
from histobench.roi.plan.whole_benchmark import run_benchmark
from histobench.roi.results.layout import DETAILED
from histobench.roi.units import extraction
from histobench.roi.units.unchanged import order_of

LABELS = [0, 1, 2] * 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))


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


def counts(plan: Plan) -> tuple[int, int]:
    """Run the plan; how many tasks were evaluated, and how many were done before."""
    done = run_benchmark(plan)
    assert done.comparisons
    assert not done.outcome.failures
    return done.outcome.evaluated, done.outcome.unchanged


def _relabel(folder: Path) -> None:
    text = (folder / "set.csv").read_text()
    (folder / "set.csv").write_text(text.replace("t0,0", "t0,1"))


def _other_features(folder: Path) -> None:
    with np.load(folder / "one.npz") as stored:
        np.savez(folder / "one.npz", features=stored["features"] * 2, img_names=stored["img_names"])


CHANGES: dict[str, tuple[Callable[[Path], None], int]] = {
    "nothing": (lambda folder: None, 0),
    "a record of an earlier version": (lambda folder: (folder / "results/work/finished.zip").touch(), 0),
    "the summary is gone": (lambda folder: (folder / "results/summary.md").unlink(), 0),
    "a result is gone": (
        lambda folder: next((folder / "results").rglob("KNN_complete_results.json")).unlink(),
        1,
    ),
    "features": (_other_features, 2),
    "label": (_relabel, 4),
}


@pytest.mark.slow
def test_only_what_changed_is_evaluated_again(plan: Plan, tmp_path: Path) -> None:
    assert counts(plan) == (4, 0)
    summary = (plan.results / "summary.md").read_text()
    for what, (change, n_evaluated) in CHANGES.items():
        change(tmp_path)
        assert counts(plan) == (n_evaluated, 4 - n_evaluated), what
        if not n_evaluated:
            assert (plan.results / "summary.md").read_text() == summary, what
    other = replace(plan, options=replace(plan.options, n_neighbors=4))
    assert counts(other) == (4, 0)


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


def _other_image(folder: Path) -> None:
    shutil.copy(folder / "tiles/test/a/testa0.png", folder / "tiles/test/a/testa1.png")


def _damage(folder: Path) -> None:
    path = next((folder / "results").rglob(f"*{DETAILED}"))
    path.write_bytes(path.read_bytes() + b"\n")


IMAGE_CHANGES: dict[str, tuple[Callable[[Path], None], int, int]] = {
    "nothing": (lambda folder: None, 0, 0),
    "the cache is gone": (lambda folder: shutil.rmtree(folder / "cache"), 0, 0),
    "a feature file is gone": (
        lambda folder: next((folder / "results/features").glob("*.pt")).unlink(),
        1,
        0,
    ),
    "a result is damaged": (_damage, 0, 1),
    "an image": (_other_image, 1, 1),
}


@pytest.mark.slow
def test_nothing_is_extracted_for_a_finished_run_unless_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _images_plan(tmp_path, "tiny-vl")
    assert counts(plan) == (1, 0)
    calls: list[str] = []
    real = extraction.prepare
    monkeypatch.setattr(extraction, "prepare", lambda *a: calls.append("") or real(*a))  # type: ignore[func-returns-value]
    for what, (change, n_extracted, n_evaluated) in IMAGE_CHANGES.items():
        change(tmp_path)
        calls.clear()
        assert counts(plan) == (n_evaluated, 1 - n_evaluated), what
        assert len(calls) == n_extracted, what


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
        run_benchmark(plan)
        assert len(compared) == count
    assert compared[0] == 31  # of 32 images: a change of 1 % is found with a chance of 95 %


def test_all_that_a_dataset_says_of_its_images_is_in_its_digest() -> None:
    image = RoiImage(Path("a.png"), 0, "a", "t.csv:2", "p1", (("scanner", "A"),), (61.5,), Place(1.0, 2.0))
    given = RoiDataset("d", ("a", "b"), {"train": (image, image._replace(name="b")), "test": (image,)})
    other = image._replace(path=Path("b.png"), label=1, name="c", group="p2", sites=(("scanner", "B"),))
    other = other._replace(target=(62.5,), place=Place(2.0, 1.0))
    changed = [replace(given, name="e"), replace(given, classes=("b", "a"))]
    for name in ("path", "label", "name", "group", "sites", "target", "place"):
        tested = image._replace(**{name: getattr(other, name)})
        changed.append(replace(given, splits={**given.splits, "test": (tested,)}))
    changed += [replace(given, splits={**given.splits, "val": (image,)})]
    assert len({order_of(each) for each in (given, replace(given), *changed)}) == 1 + len(changed)
