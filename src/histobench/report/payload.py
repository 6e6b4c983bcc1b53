"""Data files of the site: JavaScript that hands one value to the page, so that it works without a server."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.atomic import without_nan

#: Characters that could end a script element, or a string in an old browser.
_ESCAPED = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def script(key: str, value: Any) -> str:
    """The text of a data file; what is in it stays text, whatever it says.

    >>> script("a", "</script>")
    'histobench.receive("a","\\\\u003c/script\\\\u003e");\\n'
    """
    return f"histobench.receive({_json(key)},{_json(value)});\n"


def write_payload(folder: Path, key: str, value: Any) -> Path:
    """Write the data file of `key` under the site's `data` folder."""
    path = folder / "data" / f"{key}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script(key, value), encoding="ascii")
    return path


def packed(values: NDArray[Any]) -> dict[str, Any]:
    """An array of whole numbers or floats as base64 in the narrowest type: `{type, shape, data}`."""
    array = np.ascontiguousarray(values)
    if array.dtype.kind in "iu":
        array = array.astype(_narrowest(array))
    elif array.dtype != np.uint16:
        array = array.astype(np.float32)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return {
        "type": array.dtype.name,
        "shape": list(array.shape),
        "data": base64.b64encode(little.tobytes()).decode("ascii"),
    }


def unpacked(value: dict[str, Any]) -> NDArray[Any]:
    """The array of `packed`."""
    kind = np.dtype(value["type"]).newbyteorder("<")
    return np.frombuffer(base64.b64decode(value["data"]), dtype=kind).reshape(value["shape"])


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A number for a data file: few digits, and null for what has no value.

    >>> rounded(0.123456789), rounded(float("nan"))
    (0.123457, None)
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _narrowest(array: NDArray[Any]) -> type[np.integer[Any]]:
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    for kind in (np.uint8, np.uint16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return kind
    raise ValueError(f"numbers from {low} to {high} do not fit 32 bits")


def _json(value: Any) -> str:
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(without_nan(value)[0], separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPED)
