"""What reference agents know: classifiers fitted on training and validation regions, never on cases."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.consult.study import Study

Floats = NDArray[np.float64]


class PolicyModels:
    """Fitted on first use; the same study gives the same models."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.n_classes = len(study.facts.classes)
        self._readers: dict[str, Any] = {}
        self._trust: dict[str, Any] = {}

    def own(self, measurements: Floats) -> Floats:
        """Class probabilities from the measurements alone [c]."""
        return _spread(self._own, measurements[None], self.n_classes)[0]

    def reader(self, role: str, measurements: Floats, shown: Floats) -> Floats:
        """Class probabilities from exactly the numbers that agents are shown [c].

        Fitted on validation regions as the role's encoder shows them: what an arm does to the answers
        afterwards is as unknown to the reader as it is to any agent.
        """
        if role not in self._readers:
            lessons = self._study.lessons("val")
            table = np.concatenate([lessons.measurements, lessons.shown[role]], axis=1)
            self._readers[role] = _classifier(table, lessons.labels)
        row = np.concatenate([measurements, shown])
        return _spread(self._readers[role], row[None], self.n_classes)[0]

    def tool_is_right(self, role: str, confidence: float) -> float:
        """P(T right | the confidence that it states), from validation regions."""
        if role not in self._trust:
            lessons = self._study.lessons("val")
            said = lessons.shown[role][:, : self.n_classes]
            self._trust[role] = _calibration(said.max(axis=1), said.argmax(axis=1) == lessons.labels)
        return float(self._trust[role](confidence))

    def own_is_right(self, confidence: float) -> float:
        """P(the answer from measurements is right | its confidence), from validation regions."""
        return float(self._own_trust(confidence))

    @cached_property
    def _own(self) -> Any:
        lessons = self._study.lessons("train")
        return _classifier(lessons.measurements, lessons.labels)

    @cached_property
    def _own_trust(self) -> Callable[[float], float]:
        lessons = self._study.lessons("val")
        said = _spread(self._own, lessons.measurements, self.n_classes)
        return _calibration(said.max(axis=1), said.argmax(axis=1) == lessons.labels)


def _classifier(table: Floats, labels: NDArray[np.int64]) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) < 2:
        return int(labels[0]) if len(labels) else 0
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(table, labels)


def _spread(model: Any, table: Floats, n_classes: int) -> Floats:
    """Probabilities of all classes; those that the model has not seen have 0."""
    found = np.zeros((len(table), n_classes))
    if isinstance(model, int):
        found[:, model] = 1
    else:
        found[:, model.classes_] = model.predict_proba(table)
    return found


def _calibration(confidence: Floats, right: NDArray[np.bool_]) -> Callable[[float], float]:
    """Logistic regression of being right on the logit of the confidence; a share where none can be had."""
    from sklearn.linear_model import LogisticRegression

    if right.all() or not right.any():
        share = (right.sum() + 1) / (len(right) + 2)
        return lambda confidence: float(share)
    model = LogisticRegression(C=1e3, max_iter=2000).fit(_logit(confidence)[:, None], right)
    return lambda confidence: float(model.predict_proba([[_logit(np.array([confidence]))[0]]])[0, 1])


def _logit(values: Floats) -> Floats:
    inside = np.clip(values, 0.005, 0.995)  # as shown, with two digits
    logits: Floats = np.log(inside / (1 - inside))
    return logits
