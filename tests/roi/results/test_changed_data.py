"""A results folder outlives the correction of a label: results of before and after are told apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from histobench.report.inventory import take_inventory
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate as run_evaluation
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.plan.summary import compare_tasks
from histobench.roi.results.changed_data import DATA, changes_told, told_of_data
from histobench.roi.results.reader import load_runs

FEATURES = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32))
TRAIN, TEST = np.arange(40) % 2, np.arange(20) % 2
#: One test image has got another class.
CORRECTED = np.where(np.arange(20) == 3, 1 - TEST, TEST)


def evaluated(
    folder: Path,
    task: str,
    encoder: str = "e",
    *,
    train: np.ndarray = TRAIN,
    test: np.ndarray = TEST,
    classes: tuple[str, ...] = ("a", "b"),
    style: str = "{}.png",
    fingerprint: str | None = "ours",
) -> None:
    meta = {"classes": list(classes)} | ({"fingerprint": fingerprint} if fingerprint else {})
    parts = [
        FeatureSet(
            FEATURES[start : start + len(labels)],
            torch.from_numpy(labels),
            tuple(style.format(f"{part}-{row}") for row in range(len(labels))),
            metadata=meta,
        )
        for part, start, labels in (("train", 0, train), ("test", 40, test))
    ]
    request = EvaluationRequest((task,), *parts, folder / encoder, dataset="d", encoder=encoder)
    run_evaluation(request)


def caveats(folder: Path) -> dict[str, tuple[str, ...]]:
    return {run.task: run.caveats for run in load_runs(folder)}


@pytest.mark.parametrize(("part", "word"), [("test", "test"), ("train", "training")])
def test_of_two_tasks_on_different_labels_the_older_one_says_so_wherever_it_is_shown(
    tmp_path: Path, part: str, word: str
) -> None:
    evaluated(tmp_path, "Proto")
    stored = next(iter(tmp_path.rglob("Proto_complete_results.json")))
    # A second later, and not within the same one.
    stored.write_text(stored.read_text().replace('"date": "2', '"date": "1'))
    evaluated(tmp_path, "KNN", **{part: CORRECTED if part == "test" else 1 - TRAIN})
    told = caveats(tmp_path)
    assert told["KNN"] == ()
    assert len(told["Proto"]) == 1
    assert f"other {word} images or labels" in told["Proto"][0]
    assert "KNN by e" in told["Proto"][0]
    if part == "train":
        return
    comparisons, problems = compare_tasks(tmp_path)
    assert not problems
    shown = {item.task: item.tables[0].entries[0].caveats for item in comparisons}
    assert shown == told
    assert {run.task: run.caveats for run in take_inventory(tmp_path).runs} == told


def test_the_same_data_in_another_order_are_the_same_and_unknown_data_are_not_judged(tmp_path: Path) -> None:
    evaluated(tmp_path, "Proto")
    evaluated(tmp_path, "KNN")
    assert caveats(tmp_path) == {"KNN": (), "Proto": ()}
    first, second = load_runs(tmp_path)
    other = {**first.info, DATA: {"test": "0" * 16}}
    assert [run.caveats for run in changes_told([replace(first, info={}), second])] == [(), ()]
    seed = replace(first, info=other, identity=replace(first.identity, seed=1))
    assert [run.caveats for run in changes_told([seed, second])] == [(), ()]  # another split, perhaps


def test_classes_that_a_class_map_names_are_the_same_classes(tmp_path: Path) -> None:
    evaluated(tmp_path, "Proto", "a", classes=("0", "1"))
    evaluated(tmp_path, "KNN", "b", classes=("tumour", "stroma"))
    assert caveats(tmp_path) == {"KNN": (), "Proto": ()}


def test_names_that_another_tool_gave_the_images_tell_nothing_of_ours(tmp_path: Path) -> None:
    names = ("tumour", "stroma")
    evaluated(tmp_path, "Proto", "ours", classes=names)
    evaluated(tmp_path, "KNN", "theirs", classes=names, fingerprint=None, style="/data/tiles/{}.png")
    evaluated(tmp_path, "KNN", "another", classes=names, fingerprint=None, style="{}")
    assert [run.caveats for run in load_runs(tmp_path)] == [(), (), ()]


def test_an_image_that_changed_its_class_is_told_whatever_the_classes_are_called() -> None:
    images = ["a", "b", "c", "d"]
    known = told_of_data({"test": (images, [0, 0, 1, 1])}, ["x", "y"], named_here=True)
    renamed = told_of_data({"test": (images, [1, 1, 0, 0])}, ["0", "1"], named_here=True)
    corrected = told_of_data({"test": (images, [0, 1, 1, 1])}, ["0", "1"], named_here=True)
    assert renamed["division"] == known["division"] != corrected["division"]
