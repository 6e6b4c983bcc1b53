"""Probabilities in sixteen bits, fine where they matter: near 0 and near 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Codes 1 to 65533 lie evenly between these log-odds (about 2e-9 and 1 - 2e-9).
RANGE = 20.0
ZERO, MISSING, ONE = 0, 65534, 65535
_STEPS = 65532


def encode(probabilities: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Codes of probabilities: 0 and 1 exactly, NaN as missing, log-odds in steps of 0.0006 between.

    Even steps of the probability would make one value of everything that a sure classifier says; even
    steps of the log-odds keep the order of images, which ROC curves are about.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_odds = np.log(p) - np.log1p(-p)
    place = np.rint((np.clip(log_odds, -RANGE, RANGE) + RANGE) / (2 * RANGE) * _STEPS) + 1
    codes = np.where(p <= 0, ZERO, np.where(p >= 1, ONE, place))
    return np.where(np.isnan(p), MISSING, codes).astype(np.uint16)


def decode(codes: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Probabilities of codes; the pages do the same."""
    place = np.asarray(codes, dtype=np.float64)
    p = 1 / (1 + np.exp(RANGE - (place - 1) / _STEPS * 2 * RANGE))
    p = np.where(place == ZERO, 0.0, np.where(place == ONE, 1.0, p))
    return np.where(place == MISSING, np.nan, p)
