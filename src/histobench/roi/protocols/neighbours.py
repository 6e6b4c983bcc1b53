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
_BLOCK = 8192  # training rows multiplied at a time; their products stay in the processor's cache
_GROUP = 32  # products per group; the k best lie in the k groups with the best maxima
_CACHE = 2**20  # bytes of other work at a time
_WORTH_TRYING = 2e10  # multiplications from which bfloat16 pays for its second look
_STEEP = 64  # a row this much shorter than the mean loses digits to float32 when it is centred


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
        self.keys = torch.zeros(Products.padded(n), d, dtype=dtype, device=train.device)
        self.lost = 0.0  # length of what rounding to the format takes from the worst key
        mean = centring.mean.float()
        length = float(centring.mean.norm())
        for part in row_chunks(n, 4 * d, self._step):
            unit = train[part].float() - mean
            norms = torch.linalg.vector_norm(unit, dim=1).clamp_min_(SMALLEST_NORM)
            unit /= norms[:, None]
            if bool((norms * _STEEP < length).any()):
                steep = norms * _STEEP < length
                unit[steep] = centring.apply(train[part][steep], dtype=torch.float32)
            self.keys[part] = unit
            unit -= self.keys[part]
            self.lost = max(self.lost, float(torch.linalg.vector_norm(unit, dim=1).max()))

    @property
    def _step(self) -> int:
        return _CACHE if self.train.device.type == "cpu" else self.memory // 4

    def _doubt(self, queries: Tensor, rounded: Tensor, edge: Tensor) -> Tensor:
        """How far products near `edge` can be from their float64 values, [q, 1]."""
        lost = torch.linalg.vector_norm(queries - rounded, dim=1, keepdim=True)
        single = torch.finfo(torch.float32).eps
        # Rows rounded to the format; rows centred in float32 and a sum in float32; the product rounded.
        rows = lost + self.lost + lost * self.lost
        arithmetic = single * (8 + 2 * _STEEP + 2 * self.keys.shape[1] ** 0.5)
        return rows + arithmetic + torch.finfo(self.dtype).eps / 2 * (edge.abs() + 0.02)

    def run(self, test: Tensor, k: int, ranked: bool) -> Neighbours:
        """Neighbours of every query."""
        n, d = self.train.shape
        kept = min(n, k + (64 if self.dtype == torch.bfloat16 else 8))
        index = torch.empty(len(test), k, dtype=torch.long, device=self.keys.device)
        rows = max(1, min(len(test), self.memory // (self.keys.element_size() * n + 40 * d)))
        # One buffer for all products: fresh pages cost more than writing to used ones.
        products = Products(rows, n, self.dtype, self.keys.device)
        rechecked = 0
        for start in range(0, len(test), rows):
            part = slice(start, start + rows)
            queries = self.centring.apply(test[part])
            rounded = queries.to(self.dtype)
            products.fill(rounded, self.keys)
            value, place = products.best(kept)
            value = value.double()
            doubt = self._doubt(queries, rounded, value[:, k - 1 : k])
            index[part], pairs = self._settle(queries, products, value, place, k, doubt, ranked)
            rechecked += pairs
        return Neighbours(index, rechecked)

    def _settle(
        self,
        queries: Tensor,
        products: Products,
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
        margin = 2 * doubt
        possible = value >= edge - margin
        certain = torch.zeros_like(possible) if ranked else value > edge + margin
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
        if place.shape[1] < len(self.train):
            for q in torch.nonzero(possible[:, -1]).flatten().tolist():
                # More candidates than were kept: take every row that could be among the nearest.
                rows = torch.nonzero(products.row(q).double() >= edge[q] - margin[q]).flatten()
                exact = self._exact(queries, torch.full_like(rows, q), rows)
                chosen[q] = rows[exact.argsort(descending=True, stable=True)[:k]]
        return chosen, len(pairs)

    def _exact(self, queries: Tensor, query: Tensor, row: Tensor) -> Tensor:
        """Products in float64 of pairs (query, training row)."""
        out = torch.empty(len(row), dtype=torch.float64, device=queries.device)
        for part in row_chunks(len(row), 16 * queries.shape[1], self._step):
            x = self.train[row[part]].double()
            x -= self.centring.mean
            norms = torch.linalg.vector_norm(x, dim=1).clamp_min_(SMALLEST_NORM)
            # A sum per row, not a matrix product: equal rows must give equal bits.
            out[part] = x.mul_(queries[query[part]]).sum(1) / norms
        return out


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
