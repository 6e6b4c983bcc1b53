"""Products of queries with all training rows, and the largest of them."""

from __future__ import annotations

import torch
from torch import Tensor

_GROUP = 32  # most products per group, a power of 2


class Products:
    """Products of some queries with all keys, by one matrix product, and the best of them.

    Products are taken in groups: the k best lie in the k groups with the best maxima.
    """

    def __init__(self, rows: int, n: int, kept: int, dtype: torch.dtype, device: torch.device) -> None:
        """For up to `rows` queries at a time, of which the best `kept` among `n` keys are wanted."""
        self.rows, self.n, self.kept = rows, n, kept
        self.group = _GROUP
        # No more products in the groups that are looked into than there are groups.
        while self.group > 1 and self.group**2 * kept > n:
            self.group //= 2
        self.table = torch.empty(rows, self.padded(n), dtype=dtype, device=device)
        self.filled = 0

    @staticmethod
    def padded(n: int) -> int:
        """Rows that the keys need so that all groups are alike; the last ones are never chosen."""
        return -(-n // _GROUP) * _GROUP

    def fill(self, queries: Tensor, keys: Tensor) -> None:
        """Multiply queries [q, d] with the padded keys."""
        self.filled = len(queries)
        torch.mm(queries, keys.T, out=self.table[: self.filled])
        self.table[: self.filled, self.n :] = -torch.inf

    def best(self) -> tuple[Tensor, Tensor]:
        """The largest products of every query [q, kept], largest first, and their keys."""
        # Group j holds the columns j, j + groups, j + 2 groups, ...
        grouped = self.table[: self.filled].view(self.filled, self.group, -1)
        if self.group == 1:
            return _largest(grouped[:, 0], self.kept)
        groups = grouped.shape[2]
        group = _largest(_maxima(grouped), min(self.kept, groups))[1]
        among = grouped.gather(2, group[:, None].expand(-1, self.group, -1)).flatten(1)
        value, at = _largest(among, self.kept)
        return value, at // group.shape[1] * groups + group.gather(1, at % group.shape[1])

    def row(self, q: int) -> Tensor:
        """All products of one query, in the order of the keys."""
        return self.table[q, : self.n]


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    found = torch.topk(values.float(), k, dim=1)
    return found.values, found.indices


def _maxima(grouped: Tensor) -> Tensor:
    if grouped.dtype == torch.bfloat16:
        # Positive floats order as the integers with their bits, whose maxima are faster to find.
        maxima = grouped.view(torch.int16).amax(1).view(torch.bfloat16)
        if bool((maxima > 0).all()):
            return maxima
    return grouped.amax(1)
