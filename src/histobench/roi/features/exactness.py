"""How far the fast path is from the plain one: tried before a job, measured on its first images."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from histobench.roi.features.forward import Forward, Pending

log = logging.getLogger(__name__)

IMAGES = 8
#: The least cosine between the features of the fast and the plain path.
PROMISED = {"fp32": 0.9999, "bf16": 0.999, "fp16": 0.999}


def least_cosine(forward: Forward, pixels: Tensor) -> float:
    """The least cosine between the features of these images by the fast and by the plain path."""
    return _least_cosine(forward.start(pixels, len(pixels)).result(), forward.plain(pixels))


def _least_cosine(fast: Tensor, plain: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(fast.double(), plain.double(), dim=1).min())


class Exactness:
    """Compares the first images of a job once, and remembers the outcome in the job's record."""

    def __init__(self, record: dict[str, Any] | None = None) -> None:
        self.record = record
        self.on_measured: Any = None

    def look(self, forward: Forward, pixels: Tensor, pending: Pending) -> None:
        """Compare these images' features with the plain path's, if that has not been done yet."""
        if self.record is not None:
            return
        count = min(IMAGES, len(pixels))
        plain = forward.plain(pixels[:count])
        fast = pending.result()[:count]
        cosine = _least_cosine(fast, plain)
        if cosine != cosine:
            return  # features that are not numbers are an error of their own
        self.record = {"least_cosine_to_plain_fp32": round(cosine, 7), "images": count}
        if self.on_measured is not None:
            self.on_measured(self.record)
        if cosine < PROMISED[forward.precision]:
            log.warning(
                "%s: features in %s differ from plain fp32 by more than they should (cosine %.5f)",
                forward.name,
                forward.precision,
                cosine,
            )
