"""All metrics of one set of predictions, each a number or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from histobench.roi.metrics.batched import MEMORY, first_maximum
from histobench.roi.metrics.formulas import class_metrics_of, metrics_of
from histobench.roi.metrics.metric_catalogue import metric_of
from histobench.roi.predictions import Predictions


@dataclass(frozen=True)
class Score:
    """A number, or `None` with the reason it could not be computed."""

    value: float | None
    reason: str | None = None


#: What classes without probabilities leave undefined.
_BY_PROBABILITIES = ("auroc", "auprc", "loss")


@dataclass(frozen=True)
class Evaluation:
    """What one set of predictions is worth; see `formulas` for the conventions."""

    scores: dict[str, Score]
    per_class: dict[str, dict[str, Score]]
    confusion_matrix: list[list[int]]  # rows: true class, columns: predicted class
    num_samples: int  # images that were scored
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, float | None]:
        return {name: score.value for name, score in self.scores.items()}

    @property
    def reasons(self) -> dict[str, str]:
        return {name: score.reason for name, score in self.scores.items() if score.reason}


def evaluate(
    probabilities: ArrayLike, labels: ArrayLike, *, classes: Sequence[str], predicted: ArrayLike | None = None
) -> Evaluation:
    """Every metric of class probabilities [n, c] against labels [n].

    Columns that are missing, or have NaN, are classes that the probabilities do not cover. A row that is NaN
    throughout is an image that was not scored. `predicted` overrides the first maximum of each row.

    >>> result = evaluate([[0.9, 0.1], [0.2, 0.8]], [0, 0], classes=["benign", "tumour"])
    >>> result.scores["accuracy"].value, result.scores["auroc"].reason
    (0.5, 'every test image is of class benign')
    """
    import torch

    from histobench.roi.metrics.episode_metrics import tally_episodes

    p = np.asarray(probabilities, dtype=np.float64)
    truth = np.asarray(labels, dtype=np.int64)
    c = len(classes)
    if p.shape[1] < c:
        p = np.concatenate([p, np.full((len(p), c - p.shape[1]), np.nan)], axis=1)
    guess = first_maximum(p) if predicted is None else np.asarray(predicted, dtype=np.int64)
    scored = ~np.all(np.isnan(p), axis=1)
    p, truth, guess = p[scored], truth[scored], guess[scored]
    missing = int((~scored).sum())
    notes = (f"{missing} of {len(scored)} images were not scored and are left out",) if missing else ()
    given, known, said = (torch.from_numpy(values)[None] for values in (p, truth, guess))
    tally = tally_episodes(given, known, predicted=said, memory=MEMORY)
    reasons = _Reasons(classes, np.bincount(truth, minlength=c), np.any(np.isnan(p), axis=0))
    scores = {name: _score(values[0], reasons.of(name)) for name, values in metrics_of(tally).items()}
    by_class = {name: values[0] for name, values in class_metrics_of(tally).items()}
    precision, present = by_class["precision"], reasons.support > 0
    # A present class that is never predicted has precision 0 (scikit-learn's 0/0).
    by_class["precision"] = np.where(np.isnan(precision) & present, 0.0, precision)
    per_class = {
        label: {name: _score(values[k], reasons.of_class(name, k)) for name, values in by_class.items()}
        | {"support": Score(float(reasons.support[k]))}
        for k, label in enumerate(classes)
    }
    return Evaluation(scores, per_class, tally.confusion[0].astype(int).tolist(), len(truth), notes)


def evaluate_predictions(predictions: Predictions) -> Evaluation:
    return evaluate(
        predictions.probabilities,
        predictions.labels,
        classes=predictions.classes,
        predicted=predictions.predicted,
    )


def _score(value: float, reason: str) -> Score:
    return Score(None, reason) if np.isnan(value) else Score(float(value))


@dataclass(frozen=True)
class _Reasons:
    classes: Sequence[str]
    support: NDArray[np.int64]
    uncovered: NDArray[np.bool_]

    def _names(self, chosen: NDArray[np.bool_]) -> str:
        names = [name for name, flag in zip(self.classes, chosen, strict=True) if flag]
        return ("class " if len(names) == 1 else "classes ") + ", ".join(names)

    def of(self, metric: str) -> str:
        present = self.support > 0
        if not present.any():
            return "no test image was scored"
        if self.uncovered.any() and metric_of(metric).kind in _BY_PROBABILITIES:
            return f"the probabilities do not cover {self._names(self.uncovered)}"
        if present.sum() == 1:
            return f"every test image is of {self._names(present)}"
        return f"{self._names(~present)} absent from the test set"

    def of_class(self, metric: str, k: int) -> str:
        name = self.classes[k]
        if self.support[k] == 0:
            return f"class {name} absent from the test set"
        if self.uncovered[k] and metric_of(metric).kind in _BY_PROBABILITIES:
            return f"the probabilities do not cover class {name}"
        return f"every test image is of class {name}"
