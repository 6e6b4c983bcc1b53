"""A class map beside feature files that know their classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from builders import feature_set
from histobench.core.errors import HistobenchError
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.results.reader import load_runs


def request_with(folder: Path, given: tuple[str, ...], stored: list[str] | None) -> EvaluationRequest:
    labels = torch.arange(12) % 3
    meta = {} if stored is None else {"classes": stored}
    features = feature_set(torch.nn.functional.one_hot(labels), labels, **meta)
    return EvaluationRequest(("Proto",), features, features, folder, classes=given, device="cpu")


@pytest.mark.parametrize("given", [("b", "a", "c"), ("a", "b", "c", "d")], ids=["order", "number"])
def test_a_class_map_of_other_features_is_refused(tmp_path: Path, given: tuple[str, ...]) -> None:
    request = request_with(tmp_path, given, ["a", "b", "c"])
    with pytest.raises(HistobenchError, match="not the one that the features were extracted with"):
        evaluate(request)
    other = replace(request.test, metadata={"classes": ["b", "a", "c"]})
    for split in ("val", "test"):
        with pytest.raises(HistobenchError, match="differ in classes"):
            evaluate(replace(request, classes=None, **{split: other}))
    assert not any(tmp_path.iterdir())
    assert evaluate(replace(request, classes=None)).rows


@pytest.mark.parametrize("stored", [None, ["0", "1", "2"], ["a", "b", "c"]])
def test_classes_may_be_given_their_names_later(tmp_path: Path, stored: list[str] | None) -> None:
    evaluate(request_with(tmp_path, ("tumour", "stroma", "normal"), stored))
    assert load_runs(tmp_path)[0].classes == ("tumour", "stroma", "normal")
