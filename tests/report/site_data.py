"""What the pages of a report make of its data files."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.report.run_payload import MISSING, ONE, RANGE, ZERO


def unpacked(value: dict[str, Any]) -> NDArray[Any]:
    """The array of `packed`."""
    kind = np.dtype(value["type"]).newbyteorder("<")
    return np.frombuffer(base64.b64decode(value["data"]), dtype=kind).reshape(value["shape"])


def decode(codes: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Probabilities of codes."""
    place = np.asarray(codes, dtype=np.float64)
    p = 1 / (1 + np.exp(RANGE - (place - 1) / 65532 * 2 * RANGE))
    p = np.where(place == ZERO, 0.0, np.where(place == ONE, 1.0, p))
    return np.where(place == MISSING, np.nan, p)
