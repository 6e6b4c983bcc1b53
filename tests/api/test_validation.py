"""The door of the Python face: each wrong input is one sentence that names the parameter, before any work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix

import histobench as hb
from histobench.api.features import Features, FeatureSplits
from histobench.roi.data.demo import write_demo_dataset
from histobench.roi.features.feature_file import FeatureSet

DRAW = np.random.default_rng(0)
Y = np.arange(60) % 3
X = DRAW.normal(size=(60, 8)) + 2 * np.eye(8)[Y]


def _given(**changed: Any) -> dict[str, Any]:
    arrays = {"train": X[:40], "test": X[40:], "train_labels": Y[:40], "test_labels": Y[40:]}
    return {**arrays, "tasks": ["KNN"], "n_neighbors": 5, **changed}


def _features(rows: slice, split: str, **metadata: Any) -> Features:
    return Features(
        FeatureSet(
            torch.from_numpy(X[rows].astype(np.float32)),
            torch.from_numpy(Y[rows]),
            tuple(f"{split}-{row}" for row in range(len(X[rows]))),
            metadata={"dataset": "d", "encoder": "e", "classes": ["a", "b", "c"], **metadata},
        )
    )


def _value(**changed: Any) -> float:
    table = hb.evaluate(**_given(**changed)).to_frame()
    return float(table.query("metric == 'balanced_accuracy'")["value"].item())


SETS = FeatureSplits({"train": _features(slice(0, 40), "train"), "test": _features(slice(40, 60), "test")})
COLUMNS = list("abcdefgh")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "columns in another order": (
        {"train": pd.DataFrame(X[:40], columns=COLUMNS), "test": pd.DataFrame(X[40:], columns=COLUMNS[::-1])},
        "test: The feature names should match those that were passed during fit",
    ),
    "no neighbours": ({"n_neighbors": 0}, "n_neighbors: expected a whole number of at least 1, found 0"),
    "no episodes": ({"n_iter": 0}, "n_iter: expected a whole number of at least 1, found 0"),
    "one shot, not a list": ({"n_shot": 4}, "n_shot: expected a list of whole numbers"),
    "a flag of text": ({"use_sklearn": "yes"}, "use_sklearn: expected True or False, found 'yes'"),
    "a choice unknown": ({"choose_by": "patient"}, "`choose_by` 'patient' is unknown"),
    "a seed below 0": ({"seed": -1}, "seed: expected a whole number of at least 0, found -1"),
    "a preset unknown": ({"preset": "UNI"}, "unknown preset 'UNI'; did you mean uni"),
    "a task unknown": ({"tasks": ["kn"]}, "unknown task 'kn'; did you mean KNN"),
    "no task": ({"tasks": []}, "tasks: give at least one"),
    "a task that cannot run": ({"tasks": ["Zero-shot"]}, "Zero-shot: no prompts: .*`zeroshot_prompt_file`"),
    "a task not in the preset": ({"preset": "eva"}, "KNN: the preset eva has no recipe for it"),
    "robustness for nobody": ({"tasks": "Robustness"}, "results: Robustness writes its measures to files"),
    "results of a number": ({"results": 3}, "results: expected a path, found 3"),
    "a nameless dataset": ({"dataset": ""}, "dataset: expected a text, found ''"),
    "no features": ({"train": None}, "train: Expected 2D array"),
    "groups of others": ({"train_groups": ["a"]}, "train_groups: expected 40 values, .*found 1"),
    "one row of features": ({"train": X[0]}, "train: Expected 2D array, got 1D"),
    "an empty array": ({"train": np.zeros((0, 8))}, "train: Found array with 0 sample"),
    "a sparse matrix": ({"train": csr_matrix(X[:40])}, "train: Sparse data .*toarray"),
    "not a number": ({"test": np.where(X[40:] > 1, np.nan, 0)}, "test: Input X contains NaN"),
    "beyond float32": ({"train": X[:40] * 1e200}, "train: Input X contains infinity or a"),
    "a name of two lines": ({"dataset": "a\nb"}, "dataset: expected a text, found"),
    "another encoder's text": (
        {"tasks": "Zero-shot", "zeroshot_model_name": "tiny-vl", "zeroshot_prompt_file": "none.txt"},
        "needs the features of tiny-vl, .* extract them with the encoder tiny-vl",
    ),
    "other widths": ({"test": X[40:, :5]}, "test: X has 5 features, but Training is expecting 8"),
    "labels before features": ({"test": Y[:40]}, "the order is train, test, train_labels, test_labels"),
    "an option of scikit-learn": ({"random_state": 3}, "unknown key 'random_state'; did you mean seed"),
    "an option misspelled": ({"task": "KNN"}, "unknown key 'task'; did you mean tasks"),
    "too few labels": ({"test_labels": Y[:5]}, "test_labels: expected 20 values, one per image, found 5"),
    "no labels": ({"train_labels": None}, "train_labels is missing"),
    "labels in parts": ({"train_labels": Y[:40] + 0.5}, "train_labels: Unknown label type: continuous"),
    "labels missing": ({"train_labels": np.where(Y[:40], Y[:40], np.nan)}, "14 of 40 are missing"),
    "labels blank": ({"train_labels": ["", "a"] * 20}, "train_labels: 20 of 40 are missing"),
    "no test": ({"test": None}, r"test: expected features \[n, d\]"),
    "one column per class": ({"train_labels": np.eye(3)[Y[:40]]}, r"train_labels: y should be a 1d array"),
    "a place nobody writes to": ({"results": "/proc/none"}, "results: cannot write to /proc/none: "),
    "a class only in test": ({"test_labels": Y[40:] + 1}, "test_labels: class '3' has no training images"),
    "a class only in val": ({"val": (X[:3], [7, 8, 9])}, r"val\[1\]: class '7' has no training images"),
    "one class": ({"train_labels": Y[:40] * 0}, "train_labels: all images are of one class \\('0'\\)"),
    "a number for groups": ({"groups": 3}, r"groups: y should be a 1d array, got an array of shape \(\)"),
    "groups missing": ({"groups": ["a", None] * 10}, "groups: 10 of 20 are missing"),
    "validation without labels": ({"val": X[:3]}, "val: expected features or a pair"),
    "validation of other width": ({"val": (X[:3, :2], Y[:3])}, r"val\[0\]: X has 2 features, but Training"),
    "labels beside features": (
        {"train": SETS.train},
        "train_labels: is for arrays, but train is a set of features",
    ),
    "groups beside features": (
        {"train": SETS.train, "train_labels": None, "test": SETS.test, "test_labels": None, "groups": Y[40:]},
        "groups: is for arrays, but train is a set of features",
    ),
    "features beside an array": (
        {"train": SETS.train, "train_labels": None, "test_labels": None},
        "test: give features of hb.extract, as for the others",
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_evaluated_is_refused_in_one_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(hb.HistobenchError, match=message) as refused:
        hb.evaluate(**_given(**change))
    said = str(refused.value)
    assert "\n" not in said
    assert not re.search(r"--\w|\.py\b|histobench evaluate", said), "names a flag or a script"


FIXED = X.astype(">f4")
FIXED.setflags(write=False)
NAMES = np.array(["adipose", "debris", "tumour"])
ALIKE: dict[str, dict[str, Any]] = {
    "NumPy's numbers": {"n_neighbors": np.int64(5), "seed": np.uint8(0)},
    "float32": {"train": X[:40].astype(np.float32), "test": X[40:].astype(np.float32)},
    "what cannot be written to": {"train": FIXED[:40], "test": FIXED.astype("<f4")[40:]},
    "lists": {"train": X[:40].tolist(), "train_labels": Y[:40].tolist()},
    "DataFrames": {"train": pd.DataFrame(X[:40]), "train_labels": pd.Series(Y[:40], dtype="Int64")},
    "DataFrames that may miss values": {"train": pd.DataFrame(X[:40]).convert_dtypes()},
    "tensors": {"train": torch.from_numpy(X[:40]).requires_grad_(), "train_labels": torch.from_numpy(Y[:40])},
    "labels in a column": {"train_labels": Y[:40, None]},
    "labels as floats": {"train_labels": Y[:40].astype(float)},
    "labels in millions": {"train_labels": Y[:40] * 10**6, "test_labels": Y[40:] * 10**6},
    "labels below 0": {"train_labels": Y[:40] - 7, "test_labels": Y[40:] - 7},
    "labels as texts": {"train_labels": NAMES[Y[:40]], "test_labels": list(NAMES[Y[40:]])},
    "labels as objects": {"train_labels": NAMES[Y[:40]].astype(object), "test_labels": NAMES[Y[40:]]},
    "texts and numbers": {"test_labels": Y[40:].astype(str)},
    "one task as text": {"tasks": "KNN"},
    "a task in small letters": {"tasks": ("knn",)},
    "features": {"train": SETS.train, "train_labels": None, "test": SETS.test, "test_labels": None},
    "all splits at once": {"train": SETS, "train_labels": None, "test": None, "test_labels": None},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("change", ALIKE.values(), ids=ALIKE.keys())
def test_the_same_data_in_another_form_gives_the_same_number(change: dict[str, Any]) -> None:
    assert _value(**change) == _value()


def test_classes_are_called_as_the_labels_are() -> None:
    bench = hb.evaluate(**_given(train_labels=NAMES[Y[:40]], test_labels=NAMES[Y[40:]]))
    shown = bench.predictions("encoder", "KNN")
    assert shown["label"].tolist() == NAMES[Y[40:]].tolist()
    assert list(shown.columns[4:]) == NAMES.tolist()
    numbered = hb.evaluate(**_given(train_labels=Y[:40] * 5, test_labels=Y[40:] * 5))
    assert list(numbered.predictions("encoder", "KNN").columns[4:]) == ["0", "5", "10"]


def test_names_given_beside_features_are_used() -> None:
    bench = hb.evaluate(SETS.train, SETS.test, tasks="Proto", dataset="mine", encoder="other")
    assert (bench.datasets, bench.encoders) == (("mine",), ("other",))
    kept = hb.evaluate(SETS.train, SETS.test, tasks="Proto")
    assert (kept.datasets, kept.encoders) == (("d",), ("e",))


def test_a_task_that_is_left_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    bench = hb.evaluate(**_given(tasks=["KNN", "Zero-shot"]))
    assert set(bench.to_frame()["task"]) == {"KNN"}
    assert "Zero-shot was left out: no prompts" in caplog.text
    assert list(bench.skipped) == ["Zero-shot"]
    assert "left out: Zero-shot" in repr(bench)
    assert "left out" not in repr(hb.evaluate(**_given()))


@pytest.mark.slow
def test_an_encoder_that_cannot_be_made_is_told_by_what_the_run_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    broken = tmp_path / "broken.py"
    broken.write_text("class Mine:\n    def __init__(self):\n        raise ValueError('no weights today')\n")
    tiles = write_demo_dataset(tmp_path / "t", name="d", train_per_class=2, test_per_class=1, size=32, seed=0)
    asked: dict[str, Any] = {"tasks": "Proto", "results": tmp_path / "r", "n_bootstrap": 20, "num_workers": 0}
    bench = hb.run(tiles, ["tiny-vl", f"mine={broken}:Mine"], **asked)
    (reason,) = (reason for job, reason in bench.skipped.items() if "mine" in job)
    assert "no weights today" in reason
    assert bench.encoders == ("tiny-vl",)
    assert "left out: " in repr(bench)
    assert not hb.open_results(tmp_path / "r").skipped
    broken.write_text(
        "from histobench.roi.encoders.registry import create_encoder\n"
        "def Mine():\n    return create_encoder('tiny-vl')\n"
    )
    assert len(hb.run(tiles, ["tiny-vl", f"mine={broken}:Mine"], **asked).encoders) == 2, "it is tried again"


@pytest.mark.slow
def test_the_table_at_the_top_has_the_columns_of_a_run(tmp_path: Path) -> None:
    bench = hb.evaluate(**_given(results=tmp_path / "r"))
    stored = pd.read_parquet(tmp_path / "r" / "results.parquet", partitioning=None)
    more = ["seed", "fingerprint", "date", "version", "provenance"]
    assert list(stored.columns) == [*bench.to_frame().columns, *more]
    pd.testing.assert_frame_equal(stored[bench.to_frame().columns.tolist()], bench.to_frame())
    more = hb.evaluate(**_given(results=tmp_path / "r", tasks="Proto", seed=3))
    stored = pd.read_parquet(tmp_path / "r" / "results.parquet", partitioning=None)
    assert len(stored) == len(more.to_frame()) > len(bench.to_frame())
