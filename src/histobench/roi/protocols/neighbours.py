"""Exact nearest neighbours from inexact matrix products.

Products of unit rows are computed in a fast format (float32, or bfloat16 where the processor multiplies it
several times faster). Their error has a bound, so most neighbours are certain; the few that rounding could
confuse are compared again in float64. The result is that of float64 throughout.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.protocols.centring import SMALLEST_NORM, Centring, row_chunks

MEMORY = 2**28
_GROUP = 32  # scores per group; the k best scores lie in the k groups with the best maxima
_CACHE = 2**20  # bytes of a block that stays in the processor's cache
_WORTH_TRYING = 2e10  # multiplications from which bfloat16 pays for its second look


@dataclass(frozen=True)
class Neighbours:
    """The k nearest training rows of every query, in no order unless `ranked` was asked for."""

    index: Tensor  # [n, k]
    rechecked: int  # pairs that were compared again in float64


def nearest(
    train: Tensor, test: Tensor, *, k: int, centring: Centring, ranked: bool = False, memory: int = MEMORY
) -> Neighbours:
    """The k nearest by L2 distance of centred unit features; among equal distances the lowest row.

    With `ranked` the nearest comes first.
    """
    if k > len(train):
        raise HistobenchError(
            f"n_neighbors is {k} but there are {len(train)} training images; "
            f"use --n_neighbors {len(train)} or less"
        )
    return _Search(train, centring, _format(train, len(test)), memory).run(test, k, ranked)


class _Search:
    """Training rows prepared for queries."""

    def __init__(self, train: Tensor, centring: Centring, dtype: torch.dtype, memory: int) -> None:
        n, d = train.shape
        self.train, self.centring, self.dtype, self.memory = train, centring, dtype, memory
        self.norms = torch.empty(n, dtype=torch.float64, device=train.device)
        self.keys = torch.empty(n, d, dtype=dtype, device=train.device)
        residual = torch.zeros((), dtype=torch.float64, device=train.device)
        for part in row_chunks(n, 8 * d, _CACHE if train.device.type == "cpu" else memory // 4):
            unit = train[part].double()
            unit -= centring.mean
            self.norms[part] = torch.linalg.vector_norm(unit, dim=1).clamp_min_(SMALLEST_NORM)
            unit /= self.norms[part, None]
            self.keys[part] = unit.to(dtype)
            unit -= self.keys[part]
            residual = torch.maximum(residual, torch.linalg.vector_norm(unit, dim=1).max())
        self.residual = float(residual)  # of the worst key, by rounding it to dtype

    def run(self, test: Tensor, k: int, ranked: bool) -> Neighbours:
        """Neighbours of every query."""
        n, d = self.keys.shape
        kept = min(n, k + (64 if self.dtype == torch.bfloat16 else 8))
        index = torch.empty(len(test), k, dtype=torch.long, device=self.keys.device)
        width = self.keys.element_size()
        rows = max(1, min(len(test), self.memory // (width * n + 40 * d)))
        # One buffer for all products: fresh pages cost more than writing to used ones.
        buffer = torch.empty(rows, n, dtype=self.dtype, device=self.keys.device)
        rechecked = 0
        for start in range(0, len(test), rows):
            part = slice(start, start + rows)
            queries = self.centring.apply(test[part])
            rounded = queries.to(self.dtype)
            products = torch.mm(rounded, self.keys.T, out=buffer[: len(queries)])
            lost = torch.linalg.vector_norm(queries - rounded, dim=1)
            doubt = self._doubt(lost)[:, None]
            value, place = best_of(products, kept)
            index[part], pairs = self._settle(queries, products, value.double(), place, k, doubt, ranked)
            rechecked += pairs
        return Neighbours(index, rechecked)

    def _doubt(self, lost: Tensor) -> Tensor:
        """How far a product can be from its float64 value: rounded rows, a float32 sum, the format."""
        rows = lost + self.residual + lost * self.residual
        summing = (4 + self.keys.shape[1] ** 0.5) * torch.finfo(torch.float32).eps
        return rows + summing + torch.finfo(self.dtype).eps / 2

    def _settle(
        self,
        queries: Tensor,
        products: Tensor,
        value: Tensor,
        place: Tensor,
        k: int,
        doubt: Tensor,
        ranked: bool,
    ) -> tuple[Tensor, int]:
        """The k nearest of every query [q, k] and how many pairs needed float64.

        The k-th best float64 value lies within `doubt` of the k-th best product: what is above that by twice
        the doubt is certainly in, what is below it by twice the doubt is certainly out.
        """
        edge = value[:, k - 1 : k]
        possible = value >= edge - 2 * doubt
        certain = torch.zeros_like(possible) if ranked else value > edge + 2 * doubt
        settled = torch.full_like(value, -torch.inf)
        settled[possible] = torch.inf
        unsure = possible & ~certain
        if not ranked:
            # Nothing to decide where exactly k are possible.
            unsure &= possible.sum(1, keepdim=True) > k
        pairs = torch.nonzero(unsure)
        if len(pairs):
            settled[unsure] = self._exact(queries, pairs[:, 0], place[unsure])
        # The lowest row first among equals: order by row, then stably by value.
        by_row = place.argsort(1)
        by_value = settled.gather(1, by_row).argsort(dim=1, descending=True, stable=True)
        chosen = place.gather(1, by_row.gather(1, by_value[:, :k]))
        if place.shape[1] < products.shape[1]:
            for q in torch.nonzero(possible[:, -1]).flatten().tolist():
                # More candidates than were kept: take every row that could be among the nearest.
                rows = torch.nonzero(products[q].double() >= edge[q] - 2 * doubt[q]).flatten()
                exact = self._exact(queries, torch.full_like(rows, q), rows)
                chosen[q] = rows[exact.argsort(descending=True, stable=True)[:k]]
        return chosen, len(pairs)

    def _exact(self, queries: Tensor, query: Tensor, row: Tensor) -> Tensor:
        """Products in float64 of pairs (query, training row)."""
        d = queries.shape[1]
        out = torch.empty(len(row), dtype=torch.float64, device=queries.device)
        offset = queries @ self.centring.mean
        for part in row_chunks(
            len(row), 16 * d, _CACHE if queries.device.type == "cpu" else self.memory // 4
        ):
            x = self.train[row[part]].double()
            # A sum per row, not a matrix product: equal rows must give equal bits.
            out[part] = (x.mul_(queries[query[part]]).sum(1) - offset[query[part]]) / self.norms[row[part]]
        return out


def best_of(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of every row, largest first: a pass for the maxima of groups, then a small selection."""
    n, m = scores.shape
    groups = m // _GROUP
    if groups < 2 * k:
        return torch.topk(scores, k, dim=1)
    # Group j holds the columns j, j + groups, j + 2 groups, ...: maxima of contiguous slices are fast.
    grouped = scores[:, : groups * _GROUP].view(n, _GROUP, groups)
    best_groups = _best_groups(grouped, k)[:, None]
    candidates = grouped.gather(2, best_groups.expand(-1, _GROUP, -1)).flatten(1)
    places = (best_groups + groups * torch.arange(_GROUP, device=scores.device)[:, None]).flatten(1)
    rest = torch.arange(groups * _GROUP, m, device=scores.device)
    candidates = torch.cat([candidates, scores[:, groups * _GROUP :]], 1)
    places = torch.cat([places, rest.expand(n, -1)], 1)
    value, at = torch.topk(candidates.float(), k, dim=1)
    return value, places.gather(1, at)


def _best_groups(grouped: Tensor, k: int) -> Tensor:
    """Indices [n, k] of the groups with the largest maxima."""
    if grouped.dtype == torch.bfloat16:
        # Positive floats order as the integers with their bits, whose maxima are faster.
        maxima = grouped.view(torch.int16).amax(1).view(torch.bfloat16)
        value, best = torch.topk(maxima.float(), k, dim=1, sorted=False)
        if bool((value > 0).all()):
            return best
    return torch.topk(grouped.amax(1).float(), k, dim=1, sorted=False).indices


def _format(train: Tensor, queries: int) -> torch.dtype:
    """float32, or bfloat16 for large work on a processor that multiplies it much faster."""
    if train.device.type != "cpu" or float(train.numel()) * queries < _WORTH_TRYING:
        return torch.float32
    return torch.bfloat16 if _bfloat16_gain() > 2 else torch.float32


@functools.cache
def _bfloat16_gain() -> float:
    """How many times faster this processor multiplies bfloat16 than float32, by trying."""
    seconds = []
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.ones(256, 1024, dtype=dtype), torch.ones(1024, 2048, dtype=dtype)
        a @ b
        trials = []
        for _ in range(3):
            start = time.perf_counter()
            a @ b
            trials.append(time.perf_counter() - start)
        seconds.append(min(trials))
    return seconds[0] / seconds[1]
