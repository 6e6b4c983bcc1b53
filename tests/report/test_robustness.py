"""Robustness in the report: the data of a dataset page, and the words for a paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from histobench.report.methods import robustness_paragraph
from histobench.report.robustness_payload import robustness_payload, stored_tables
from histobench.report.site import build_site
from histobench.roi.evaluation.request import EvaluationRequest
from histobench.roi.evaluation.run import evaluate
from histobench.roi.features.feature_set import FeatureSet


def features(split: str, encoder: str, pull: float) -> FeatureSet:
    draw = np.random.default_rng(split == "test")
    group = np.repeat(np.arange(16), 3)
    site, label = group % 2, (group // 2) % 2
    x = draw.normal(size=(48, 6)).astype(np.float32)
    x[:, 0] += 3 * label
    x[:, 1] += pull * site
    names = tuple(f"{split}-{row}.png" for row in range(48))
    about = {"dataset": "tissue", "encoder": encoder, "classes": ["a", "b"], "split": split}
    groups = tuple(f"{split}-{patient}" for patient in group)
    sites = {"scanner": tuple("AB"[k] for k in site)}
    return FeatureSet(torch.from_numpy(x), torch.from_numpy(label), names, groups, about, sites)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for encoder, pull in (("steady", 0.0), ("swayed", 9.0)):
        parts = features("train", encoder, pull), features("test", encoder, pull)
        evaluate(EvaluationRequest(("Proto", "Robustness"), *parts, folder / encoder))
    return folder


def test_the_page_of_a_dataset_gets_every_encoder_and_measure(results: Path) -> None:
    (table,) = robustness_payload("tissue", stored_tables(results))
    assert (table["column"], table["encoders"]) == ("scanner", ["steady", "swayed"])
    assert (table["images"], table["groups"], table["sites"]) == (96, 32, {"A": 48, "B": 48})
    index = table["measures"][0]
    assert index["name"] == "robustness_index"
    assert index["values"][0][0] > index["values"][1][0]
    assert all(low <= value <= high for value, low, high in index["values"])
    assert robustness_payload("other", stored_tables(results)) == []


def test_the_methods_say_how_robustness_was_measured(results: Path) -> None:
    text = robustness_paragraph(stored_tables(results))
    assert text.startswith("Robustness to scanner was measured")
    assert "k = " in text
    assert robustness_paragraph([]) == ""


def test_a_damaged_file_does_not_stop_the_report(results: Path, tmp_path: Path) -> None:
    site = build_site(results, tmp_path / "site", title="t")
    written = sorted(site.parent.rglob("methods*.js"))
    assert any("Robustness to scanner" in path.read_text(encoding="utf-8") for path in written)
    file = next(results.rglob("scanner_robustness.json"))
    whole = file.read_text()
    file.write_text("{")
    assert stored_tables(results) == []
    assert build_site(results, tmp_path / "other", title="t").is_file()
    file.write_text(whole)
