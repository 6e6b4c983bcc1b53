"""Confidences: a temperature fitted on validation regions, and one that gives a chosen mean confidence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: A probability of 0 has no logarithm.
SMALLEST = 1e-12
_RANGE = (1e-3, 1e3)


def at_temperature(probabilities: Floats, temperature: float) -> Floats:
    """Probabilities [n, c] with their logarithms divided by the temperature.

    >>> at_temperature(np.array([[0.8, 0.2]]), 1.0).round(6).tolist()
    [[0.8, 0.2]]
    """
    logits = np.log(np.maximum(probabilities, SMALLEST)) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    scaled: Floats = powers / powers.sum(axis=1, keepdims=True)
    return scaled


def fit_temperature(probabilities: Floats, labels: NDArray[np.int64]) -> float:
    """The temperature of least cross-entropy on labelled (validation) rows."""
    from scipy.optimize import minimize_scalar

    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        scaled = at_temperature(probabilities, float(np.exp(log_temperature)))
        return float(-np.log(np.maximum(scaled[rows, labels], SMALLEST)).mean())

    found = minimize_scalar(loss, bounds=tuple(np.log(_RANGE)), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))


def temperature_of_mean(probabilities: Floats, mean: float) -> float:
    """The temperature at which the highest probabilities of all rows have this mean, or come near it."""
    low, high = np.log(_RANGE)
    for _ in range(100):  # the mean falls as the temperature rises
        middle = (low + high) / 2
        if at_temperature(probabilities, float(np.exp(middle))).max(axis=1).mean() > mean:
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))
