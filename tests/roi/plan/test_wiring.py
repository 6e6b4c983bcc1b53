"""Every option of a plan reaches the units that it is for, and no others; a run follows it to the file."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import histobench as hb
from builders import MEAN_ENCODER, uneven_features
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.features.feature_file import load
from histobench.roi.options import DatasetEntry, Options, Origin, Plan, Settings, plan_options
from histobench.roi.plan.planner import extraction_estimates, plan_values, units_of
from histobench.roi.results.reader import load_runs

IMAGES = tuple(RoiImage(Path(f"{number}.png"), number % 2, f"{number}.png", "d.csv") for number in range(7))
DATASET = RoiDataset("d", ("a", "b"), {"train": IMAGES[:4], "test": IMAGES[4:]})
#: Another value of every option, and the kinds of units whose instructions change by it.
CASES: dict[str, tuple[Any, set[str]]] = {
    "target": ("regression", {"prepare"}),
    "target_columns": (("age",), {"prepare"}),
    "mask_classes": ("0:a,1:b", {"prepare"}),
    "tasks": (("KNN",), {"evaluate", "compare", "splits"}),
    "presets": (("thunder",), {"evaluate", "compare", "splits"}),
    "seed": (1, {"prepare", "evaluate", "compare", "splits"}),
    "size": (168, {"prepare"}),
    "weights": ("other.pt", {"prepare", "evaluate", "splits"}),
    "allow_revision": (True, {"prepare"}),
    "n_bootstrap": (50, {"evaluate", "splits"}),
    "splits": ("3x2", {"splits"}),
    "folds": (3, {"splits"}),
    "repeats": (2, {"splits"}),
    "slurm": ("time=1", set()),
    "slurm_cpu": ("time=1", set()),
    "device": ("cuda:0", {"prepare", "evaluate", "splits"}),
    "batch_size": (3, {"prepare"}),
    "num_workers": (3, {"prepare"}),
    "precision": ("bf16", {"prepare"}),
    "compile": ("off", {"prepare"}),
    "on_bad_image": ("skip", {"prepare"}),
    "recheck": (5, {"prepare"}),
    "no_cache": (True, {"prepare"}),
    "n_shot": ((3,), {"evaluate", "splits"}),
    "n_way": ((2,), {"evaluate", "splits"}),
    "n_iter": (7, {"evaluate", "splits"}),
    "n_neighbors": (3, {"evaluate", "splits"}),
    "choose_by": ("image", {"evaluate", "splits"}),
    "cost": (2.0, {"evaluate", "splits"}),
    "class_weight": ("none", {"evaluate", "splits"}),
    "cox_alpha": (0.5, {"evaluate", "splits"}),
    "l1_ratio": (0.1, {"evaluate", "splits"}),
    "lora_rank": (3, {"evaluate", "splits"}),
    "lora_alpha": (7.0, {"evaluate", "splits"}),
    "tune_epochs": (2, {"evaluate", "splits"}),
    "tune_rates": ((0.01,), {"evaluate", "splits"}),
    "tune_batch_size": (3, {"evaluate", "splits"}),
    "tune_seeds": (2, {"evaluate", "splits"}),
    "save_adapters": (True, {"evaluate", "splits"}),
    "token_store": (0.0, {"evaluate", "splits"}),
    "head_steps": (5, {"evaluate", "splits"}),
}
#: Read by `plan_from`, which makes encoders of them.
MADE_ENCODERS = {"features", "combine"}


def specs(plan: Plan) -> dict[str, str]:
    """Kind -> what its units are told to do."""
    found: dict[str, list[Any]] = {}
    for unit in units_of(plan, {"d": DATASET}, full_paths=False):
        if unit.kind != "features":  # features are what `prepare` describes
            found.setdefault(unit.kind, []).append([unit.encoder, unit.spec])
    return {kind: json.dumps(told, sort_keys=True, default=str) for kind, told in found.items()}


def test_every_option_of_a_plan_has_a_case() -> None:
    assert {each.name for each in plan_options()} == CASES.keys() | MADE_ENCODERS


@pytest.mark.parametrize("name", CASES)
def test_an_option_of_a_plan_reaches_its_units_and_no_others(name: str) -> None:
    value, kinds = CASES[name]
    plan = Plan((DatasetEntry("d", Path("d.csv")),), ("tiny-vl",), Path("r"), tasks=("KNN", "Few-shot"))
    plan = replace(plan, splits=None if name in ("folds", "repeats") else "2x2")
    if name in ("folds", "repeats"):
        plan = replace(plan, folds=2)
    for part, record in (("settings", Settings), ("options", Options)):
        if name in {each.name for each in fields(record)}:
            other = replace(plan, **{part: replace(getattr(plan, part), **{name: value})})
            break
    else:
        other = replace(plan, **{name: value})
    one, two = specs(plan), specs(other)
    assert {kind for kind in one.keys() | two.keys() if one.get(kind) != two.get(kind)} == kinds
    assert (plan_values(plan, "local") != plan_values(other, "local")) == ("slurm" not in name)


def test_a_larger_image_costs_as_much_more_as_it_has_pixels() -> None:
    plan = Plan((DatasetEntry("d", Path("d.csv")),), ("uni_v1",), Path("r"))
    (usual,), (large,) = (
        extraction_estimates(replace(plan, size=size), {"d": DATASET}, "cpu") for size in (None, 448)
    )
    assert large.seconds == pytest.approx(4 * usual.seconds)
    assert large.megabytes == usual.megabytes == 7 * 1024 * 4 / 1e6


def test_workers_elsewhere_are_told_full_paths() -> None:
    entry = DatasetEntry("d", Path("d.csv"), class2id=Path("d.txt"), prompts=Path("p.txt"))
    plan = Plan((entry,), ("tiny-vl",), Path("r"), weights="w.pt")
    told = json.dumps([unit.spec for unit in units_of(plan, {"d": DATASET}, full_paths=True)])
    for name in ("d.csv", "d.txt", "p.txt", "w.pt", "r/features", "r/d/tiny-vl/uni"):
        assert (f'"{Path(name).absolute()}"' in told, f'"{name}"' in told) == (True, False), name


@pytest.mark.parametrize("name", [each.name for each in fields(Origin)])
def test_an_option_of_a_dataset_reaches_the_reader_of_its_images(name: str) -> None:
    entry = DatasetEntry("d", Path("d.csv"))
    value = {"site_columns": ("x",), "pool": "tiles", "split": "0.7/0.3"}.get(name, "x")
    plans = [
        Plan((each,), ("tiny-vl",), Path("r"), tasks=("KNN",))
        for each in (entry, replace(entry, **{name: value}))
    ]
    one, two = map(specs, plans)
    assert {kind for kind in one if one[kind] != two[kind]} == {"prepare"}


@pytest.mark.slow
def test_run_with_another_size_computes_and_names_features_of_that_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(MEAN_ENCODER.replace("resize=16, crop=16", "resize=20, crop=12"))
    draw = np.random.default_rng(0)
    lines = ["image_path,label,split"]
    for number, (split, label) in enumerate(
        [("test", "b"), ("train", "b"), ("train", "a"), ("test", "a")] * 2
    ):
        pixels = draw.integers(0, 255, (35 + number, 51, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{9 - number}.png")  # file names are not in order
        lines.append(f"{9 - number}.png,{label},{split}")
    (tmp_path / "d.csv").write_text("\n".join(lines))
    for size in (12, 16):
        results = tmp_path / str(size)
        options: dict[str, Any] = {"n_neighbors": 1, "device": "cpu", "num_workers": 0}
        encoder = f"{tmp_path}/mine.py:Mean"
        hb.run(tmp_path / "d.csv", encoder, tasks="KNN", size=size, results=results, **options)
        (file,) = (results / "features").glob("*_train.pt")
        assert f"Size_[{size}]" in file.name
        stored = load(file)
        assert stored.metadata["size"] == size
        spec = TransformSpec()
        theirs = v2.Compose(
            [v2.Resize(round(20 * size / 12), v2.InterpolationMode.BICUBIC), v2.CenterCrop(size),
             v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(spec.mean, spec.std)]
        )  # fmt: skip
        assert len(stored.img_names) == 4
        for row, name in zip(stored.embeddings, stored.img_names, strict=True):
            pixels = theirs(Image.open(tmp_path / Path(name).name))
            torch.testing.assert_close(row, pixels.mean(dim=(1, 2)), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_run_evaluates_as_evaluate_does_with_the_same_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a plan asks for passes many functions: every split, seed and option arrives."""
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    parts = uneven_features()
    lines, names = ["image_path,label,split,patient,hospital"], []
    for split, part in parts.items():
        names += part.img_names
        columns = part.img_names, part.labels.tolist(), part.groups or (), part.sites["hospital"]
        lines += [
            f"{name},{'abcd'[k]},{split},{group},{site}"
            for name, k, group, site in zip(*columns, strict=True)
        ]
    (tmp_path / "d.csv").write_text("\n".join(lines))
    rows = np.concatenate([part.embeddings.numpy() for part in parts.values()])
    np.savez(tmp_path / "e.npz", features=rows, img_names=np.array(names))
    tasks = ("Linear-Probe", "KNN", "Proto", "Few-shot", "Label-efficiency")
    given: dict[str, Any] = {"n_neighbors": 3, "n_iter": 2, "n_shot": (1, 2), "n_way": (2,)}
    hb.run(
        tmp_path / "d.csv",
        features=[f"e={tmp_path / 'e.npz'}"],
        tasks=tasks,
        presets="uni",
        seed=3,
        results=tmp_path / "r",
        device="cpu",
        **given,
    )
    found = {split: load(next((tmp_path / "r" / "features").glob(f"*_{split}.pt"))) for split in parts}
    own = EvaluationRequest(
        tasks,
        found["train"],
        found["test"],
        tmp_path / "own",
        val=found["val"],
        device="cpu",
        seed=3,
        options=Options(**given),
    )
    assert not evaluate(own).failed
    assert not evaluate(replace(own, seed=0, results_dir=tmp_path / "zero")).failed
    of_run, of_evaluate, of_seed_0 = (
        {(run.task, run.setting): run.predictions.probabilities.tobytes() for run in load_runs(folder)}
        for folder in (tmp_path / "r", tmp_path / "own", tmp_path / "zero")
    )
    assert of_run == of_evaluate
    for run in load_runs(tmp_path / "r"):
        for split in ("train", "test"):
            assert run.info[f"{split}_features"].endswith(f"_{split}.pt")
    assert {task for task, setting in of_run if of_run[task, setting] != of_seed_0[task, setting]} == {
        "Few-shot", "Label-efficiency"
    }  # fmt: skip
