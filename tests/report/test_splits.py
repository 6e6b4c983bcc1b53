"""The spread over splits reaches the page of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import feature_set
from histobench.report.board import split_payload
from histobench.report.site import build_site
from histobench.roi.comparison.splits_compared import compare_splits
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.evaluation.over_splits import evaluate_over_splits
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.options import Scheme
from histobench.roi.results.reader import split_runs


def features(part: str, encoder: str, skill: float) -> FeatureSet:
    rng = np.random.default_rng(sum(map(ord, part + encoder)))
    labels = np.arange(30) % 2
    x = skill * np.eye(2)[labels] + rng.normal(size=(30, 2))
    meta = {"classes": ["a", "b"], "encoder": encoder, "dataset": "d"}
    return feature_set(x, labels, names=f"{part}-{{}}.png", **meta)


@pytest.mark.slow
def test_a_datasets_page_shows_means_spread_and_ranks_over_splits(
    tmp_path: Path, data_of: Callable[[Path, str], Any]
) -> None:
    for encoder, skill in (("good", 4.0), ("poor", 0.5)):
        parts = (features(part, encoder, skill) for part in ("train", "test"))
        request = EvaluationRequest(("Proto",), *parts, tmp_path / "r" / encoder, device="cpu")
        evaluate(request)
        evaluate_over_splits(request, Scheme(2, 2))
    site = build_site(tmp_path / "r", tmp_path / "site")
    (table,) = data_of(site, "dataset/0")["splits"]
    assert (table["scheme"], table["splits"], table["task"]) == ("2x2", 4, "Proto")
    assert [row["name"] for row in table["rows"]] == ["good", "poor"]
    (compared,) = compare_splits(split_runs(tmp_path / "r"))
    for row, each in zip(table["rows"], compared.entries, strict=True):
        mean = each.mean.mean, each.mean.low, each.mean.high
        numbers = *mean, each.least, each.greatest, each.mean_rank, each.rank_low, each.rank_high, each.first
        assert list(row.values())[1:-1] == pytest.approx(numbers, abs=1e-5)
    other = replace(compared.entries[0], rank_low=2, rank_high=3)
    for holds in (False, True):
        pairs = (replace(compared.pairs[0], holds=holds),)
        first, second = split_payload(
            replace(compared, entries=(other, compared.entries[1]), pairs=pairs), "uni"
        )["rows"]
        assert (first["rankLow"], first["rankHigh"]) == (2, 3)
        assert (first["behind"], second["behind"]) == (False, holds)
