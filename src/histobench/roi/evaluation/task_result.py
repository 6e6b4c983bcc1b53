"""What a task hands over to be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from histobench.roi.metrics.classification import evaluate
from histobench.roi.metrics.score import Score
from histobench.roi.predictions import Predictions
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.results.episode_predictions import EpisodePredictions


@dataclass(frozen=True)
class TaskResult:
    """Predictions of one task at one setting, with their metrics."""

    predictions: Predictions
    scores: Mapping[str, Score]
    per_class: Mapping[str, Mapping[str, Score]]
    confusion_matrix: list[list[int]]
    setting: str = ""
    episode_metrics: Mapping[str, NDArray[np.float64]] | None = None
    episodes: EpisodePredictions | None = None
    warnings: tuple[str, ...] = ()  # what to keep in mind when reading the numbers
    notes: tuple[str, ...] = ()  # what was not done, and leaves these numbers as they are

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

    @classmethod
    def averaged(
        cls,
        predictions: Predictions,
        metrics: Mapping[str, NDArray[np.float64]],
        episodes: EpisodePredictions,
        *,
        setting: str = "",
        warnings: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> TaskResult:
        """A result whose metrics are means over episodes or runs; the rest is of the mean probabilities."""
        whole = evaluate(
            predictions.probabilities,
            predictions.labels,
            classes=predictions.classes,
            predicted=predictions.predicted,
        )
        scores = {name: _mean(values) for name, values in metrics.items()}
        return cls(
            predictions,
            scores,
            whole.per_class,
            whole.confusion_matrix,
            setting,
            episode_metrics=metrics,
            episodes=episodes,
            warnings=warnings,
            notes=notes,
        )

    def with_scores(self, scores: Mapping[str, Score]) -> TaskResult:
        """The same result with more metrics."""
        return replace(self, scores={**self.scores, **scores})


def _mean(values: NDArray[np.float64]) -> Score:
    defined = values[np.isfinite(values)]
    return Score(float(defined.mean())) if len(defined) else Score(None, "undefined in every episode or run")
