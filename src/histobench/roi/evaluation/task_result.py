"""What a task hands over to be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.roi.metrics.classification import evaluate
from histobench.roi.metrics.score import Score
from histobench.roi.predictions import Predictions
from histobench.roi.protocols.outcome import Outcome


@dataclass(frozen=True)
class TaskResult:
    """Predictions of one task at one setting, with their metrics."""

    predictions: Predictions
    scores: Mapping[str, Score]
    per_class: Mapping[str, Mapping[str, Score]]
    confusion_matrix: list[list[int]]
    setting: str = ""
    episode_metrics: Mapping[str, NDArray[np.float64]] | None = None
    warnings: tuple[str, ...] = ()

    @classmethod
    def scored(cls, outcome: Outcome, predictions: Predictions, *, setting: str = "") -> TaskResult:
        """A result whose metrics are those of its predictions."""
        evaluation = evaluate(
            predictions.probabilities,
            predictions.labels,
            classes=predictions.classes,
            predicted=predictions.predicted,
        )
        return cls(
            predictions,
            evaluation.scores,
            evaluation.per_class,
            evaluation.confusion_matrix,
            setting,
            warnings=(*outcome.info.get("warnings", ()), *evaluation.notes),
        )
