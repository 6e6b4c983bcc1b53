"""Position tables: the learned grid of one image size, resampled to another as the authors' code does."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

DINO_OFFSET = 0.1


def method_of_origin(names: Iterable[str]) -> str:
    """How the code that wrote a file resamples positions, told by the names of its tensors."""
    names = list(names)
    if any("embeddings." in name for name in names):
        return "plain"
    return "dino" if any(name.endswith("mask_token") for name in names) else "timm"


def resample_positions(table: Tensor, patches: int, method: str) -> Tensor:
    """A table [1, prefix + g*g, d] as [1, prefix + patches, d]; the prefix (class token) is kept as it is."""
    prefix = table.shape[1] - int((table.shape[1]) ** 0.5) ** 2
    old, new = int((table.shape[1] - prefix) ** 0.5), int(patches**0.5)
    if old == new:
        return table
    grid = table[:, prefix:].float().reshape(1, old, old, -1).permute(0, 3, 1, 2)
    if method == "dino":
        factor = (new + DINO_OFFSET) / old
        grid = interpolate(grid, scale_factor=(factor, factor), mode="bicubic")
    else:
        antialias = method == "timm"
        grid = interpolate(grid, size=(new, new), mode="bicubic", align_corners=False, antialias=antialias)
    flat = grid.permute(0, 2, 3, 1).reshape(1, new * new, -1).to(table.dtype)
    return torch.cat([table[:, :prefix], flat], dim=1)
