"""Products of queries with all training rows, block by block, and the largest of them."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 8192  # training rows multiplied at a time; their products stay in the processor's cache
_GROUP = 32  # products per group; the k best lie in the k groups with the best maxima


class Products:
    """Products of some queries with all keys, block by block, and the best of them."""

    def __init__(self, rows: int, n: int, dtype: torch.dtype, device: torch.device) -> None:
        self.n = n
        count = -(-n // _BLOCK)
        self.groups = -(-n // (count * _GROUP))  # per block
        self.block = self.groups * _GROUP
        self.blocks = torch.empty(count, rows, self.block, dtype=dtype, device=device)
        self.maxima = torch.empty(rows, count, self.groups, dtype=dtype, device=device)
        self.filled = 0

    @staticmethod
    def padded(n: int) -> int:
        """Rows that the keys need so that all blocks are alike; the last ones are never chosen."""
        blocks = -(-n // _BLOCK)
        return blocks * _GROUP * -(-n // (blocks * _GROUP))

    def fill(self, queries: Tensor, keys: Tensor) -> None:
        """Multiply queries [q, d] with the padded keys; take the maxima of groups while they are at hand."""
        self.filled = len(queries)
        for b, block in enumerate(self.blocks[:, : self.filled]):
            torch.mm(queries, keys[b * self.block : (b + 1) * self.block].T, out=block)
            block[:, max(0, self.n - b * self.block) :] = -torch.inf
            # Group j holds the columns j, j + groups, j + 2 groups, ...
            self.maxima[: self.filled, b] = _maxima(block.view(self.filled, _GROUP, self.groups))

    def best(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest products of every query, largest first, and their keys."""
        maxima = self.maxima[: self.filled].flatten(1)
        rows = self.blocks.shape[1]
        query = torch.arange(self.filled, device=maxima.device)[:, None]
        best_groups = torch.topk(maxima.float(), min(k, maxima.shape[1]), dim=1, sorted=False).indices
        block, group = best_groups // self.groups, best_groups % self.groups
        member = self.groups * torch.arange(_GROUP, device=maxima.device)
        column = (group[..., None] + member).flatten(1)
        block = block.repeat_interleave(_GROUP, dim=1)
        values = self.blocks.view(-1).take((block * rows + query) * self.block + column)
        value, at = torch.topk(values.float(), k, dim=1)
        return value, (block * self.block + column).gather(1, at)

    def row(self, q: int) -> Tensor:
        """All products of one query, in the order of the keys."""
        return self.blocks[:, q].flatten()[: self.n]


def _maxima(grouped: Tensor) -> Tensor:
    if grouped.dtype == torch.bfloat16:
        # Positive floats order as the integers with their bits, whose maxima are faster to find.
        maxima = grouped.view(torch.int16).amax(1).view(torch.bfloat16)
        if bool((maxima > 0).all()):
            return maxima
    return grouped.amax(1)
