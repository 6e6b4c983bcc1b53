"""What a protocol gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Outcome:
    """Class probabilities of every test image, and what the protocol has to say about itself.

    `info` holds plain JSON values; `info["warnings"]`, where present, is a list of sentences for the user.
    """

    probabilities: NDArray[np.float64]  # [n, c]
    predicted: NDArray[np.int64]  # [n]; the lowest class id among equals
    info: dict[str, Any] = field(default_factory=dict)
