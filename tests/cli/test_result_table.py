"""What `histobench evaluate` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.cli.evaluate import print_outcome
from histobench.roi.evaluation.evaluation_run import EvaluationOutcome


def test_square_brackets_in_names_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = EvaluationOutcome(
        dataset="crc",
        encoder="uni",
        preset="uni",
        results_dir=Path("out/[old]"),
        rows=(),
        skipped={"Zero-shot": "no Dataset_[crc]_test.pt"},
        failed={"KNN": "broken: Dataset_[crc]_train.pt"},
    )
    print_outcome(outcome)
    printed = capsys.readouterr().out
    assert "no Dataset_[crc]_test.pt" in printed
    assert "broken: Dataset_[crc]_train.pt" in printed
    assert "out/[old]" in printed
