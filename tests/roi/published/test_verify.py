"""Stored results beside published ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from histobench.cli.main import main
from histobench.roi.comparison.run_intervals import BootstrapSettings
from histobench.roi.comparison.stored_intervals import bootstrap_runs
from histobench.roi.encoders.registry import get_spec
from histobench.roi.metrics.score import Score
from histobench.roi.predictions import Predictions
from histobench.roi.published.table import published_values
from histobench.roi.published.verify import OurValue, judge, verify
from histobench.roi.registry.catalogue import is_name
from histobench.roi.results.reader import load_runs
from histobench.roi.results.run_identity import RunIdentity
from histobench.roi.results.writer import write_task

GOLDEN = next(
    p for p in published_values() if (p.encoder, p.task, p.metric) == ("uni_v2", "KNN", "balanced_accuracy")
)
OURS = OurValue(
    "crc100k-nonorm", "uni_v2", "KNN", "uni", "", "balanced_accuracy", 0.95, 0.94, 0.96, "224", (), Path("r")
)


def test_every_published_number_names_a_known_encoder_and_dataset() -> None:
    assert len(published_values()) > 100
    for published in published_values():
        assert is_name(published.dataset), published.dataset
        assert get_spec(published.encoder).dim > 0
        assert 0 < published.value < 1


def test_a_number_inside_of_our_interval_is_reproduced_up_to_rounding() -> None:
    assert GOLDEN.value == 0.957
    assert judge(GOLDEN, OURS).verdict == "reproduced"
    assert judge(GOLDEN, replace(OURS, high=0.9566)).verdict == "reproduced"
    assert judge(GOLDEN, replace(OURS, high=0.956)).verdict == "differs"
    assert judge(GOLDEN, OURS).difference == pytest.approx(-0.007)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"dataset": "crc100k-nonorm@mine"}, "another split"),
        ({"preset": "sklearn"}, "another preset"),
        ({"size": "448"}, "another image size"),
        ({"encoder": "uni_v2@cls"}, "another encoder variant"),
        ({"low": None}, "no interval"),
    ],
)
def test_what_is_not_the_same_experiment_is_not_compared(change: dict[str, str], why: str) -> None:
    verdict = judge(GOLDEN, replace(OURS, **change))  # type: ignore[arg-type]
    assert verdict.verdict == "not comparable"
    assert why in verdict.because


def test_a_results_folder_is_verified_from_its_files(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    labels = np.repeat([0, 1], 100)
    predicted = np.where(draw.random(200) < 0.95, labels, 1 - labels)
    predictions = Predictions(
        np.eye(2)[predicted], labels, predicted, ("a", "b"), tuple(f"{k}.png" for k in range(200))
    )
    value = float(np.mean([(predicted == labels)[labels == label].mean() for label in (0, 1)]))
    for dataset, encoder in (("crc100k-nonorm", "uni_v2"), ("crc100k", "uni_v2"), ("own", "uni_v2")):
        write_task(
            tmp_path / dataset / encoder,
            "KNN",
            predictions,
            identity=RunIdentity(dataset, encoder, size="224"),
            scores={"balanced_accuracy": Score(value)},
            per_class={},
            confusion_matrix=[[0, 0], [0, 0]],
        )
    list(bootstrap_runs(load_runs(tmp_path), BootstrapSettings(200)))
    (verdict,) = verify(tmp_path)
    assert verdict.verdict == "reproduced"
    assert verdict.ours.value == pytest.approx(value)
    assert main(["verify", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "verification.json").read_text())["verdicts"]
    assert [row["verdict"] for row in written] == ["reproduced"]


def test_a_folder_without_anything_published_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tmp_path)]) == 0
    assert "published numbers" in " ".join(capsys.readouterr().out.split())
    assert main(["verify", str(tmp_path / "nowhere")]) == 2
