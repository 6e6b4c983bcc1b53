"""Centering by the mean of the training features and scaling to unit length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from histobench.core.threads import spread

SMALLEST_NORM = 1e-12  # a feature that equals the mean stays zero


def row_chunks(rows: int, bytes_per_row: int, memory: int) -> Iterator[slice]:
    """Yield consecutive row ranges whose working size stays within `memory` bytes."""
    step = max(1, memory // max(1, bytes_per_row))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


@dataclass(frozen=True)
class Centring:
    """x -> (x - mean) / ||x - mean||, with a mean computed in float64."""

    mean: Tensor  # [d] float64

    @classmethod
    def of(cls, features: Tensor) -> Centring:
        device = features.device

        def added(part: slice) -> Tensor:
            rows = features[part].double()
            # A product with ones sums columns several times faster than sum(0).
            return rows.new_ones(len(rows)) @ rows

        memory = 2**22 if device.type == "cpu" else 2**27
        total = torch.zeros(features.shape[1], dtype=torch.float64, device=device)
        parts = list(row_chunks(len(features), 8 * features.shape[1], memory))
        for part in spread(added, parts, device=str(device)):
            total += part
        return cls(total / max(1, len(features)))

    @classmethod
    def none(cls, features: Tensor) -> Centring:
        """Return scaling to unit length alone."""
        return cls(torch.zeros(features.shape[1], dtype=torch.float64, device=features.device))

    def apply(self, features: Tensor, *, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return centered unit rows, computed in float64 and rounded once."""
        centred = features.to(torch.float64, copy=True).sub_(self.mean)
        centred /= centred.norm(dim=1, keepdim=True).clamp_min(SMALLEST_NORM)
        return centred.to(dtype)
