"""Exact nearest neighbours from inexact matrix products.

Products of unit rows are computed in a fast format (float32, or bfloat16 where the processor multiplies it
several times faster). Their error has a bound, so most neighbours are certain; the few that rounding could
confuse are compared again, in float32 and then in float64. The result is that of float64 throughout.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.protocols.centring import SMALLEST_NORM, Centring, row_chunks
from histobench.roi.protocols.products import Products

MEMORY = 2**28
_CACHE = 2**20  # bytes of other work at a time
_WORTH_TRYING = 2e10  # multiplications from which bfloat16 pays for its second look
_CROWDED = 0.05  # share of queries with more candidates than were kept, from which bfloat16 is given up
_STEEP = 64  # a row this much shorter than the mean loses digits to float32 when it is centred


@dataclass(frozen=True)
class Neighbours:
    """The k nearest training rows of every query, in no order unless `ranked` was asked for."""

    index: Tensor  # [n, k]
    rechecked: int  # pairs that were compared again


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

    @property
    def _arithmetic(self) -> float:
        """How far a product of float32 rows, centred and summed in float32, can be from its float64 value."""
        return torch.finfo(torch.float32).eps * (10 + 2 * _STEEP + 2 * self.keys.shape[1] ** 0.5)

    def _doubt(self, queries: Tensor, rounded: Tensor, edge: Tensor) -> Tensor:
        """How far products near `edge` can be from their float64 values, [q, 1]."""
        lost = torch.linalg.vector_norm(queries - rounded, dim=1, keepdim=True)
        # Rows rounded to the format; the arithmetic; the product rounded.
        rows = lost + self.lost + lost * self.lost
        return rows + self._arithmetic + torch.finfo(self.dtype).eps / 2 * (edge.abs() + 0.02)

    def run(self, test: Tensor, k: int, ranked: bool) -> Neighbours:
        """Neighbours of every query."""
        n, d = self.train.shape
        quick = self.dtype == torch.bfloat16
        kept = min(n, k + (64 if quick else 8))
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
            edge = value[:, k - 1 : k]
            margin = 2 * self._doubt(queries, rounded, edge)
            crowded = value[:, -1] >= (edge - margin)[:, 0] if kept < n else value.new_zeros(0)
            if quick and int(crowded.sum()) > _CROWDED * len(queries):
                # Too many rows are nearly equally near for such coarse products to tell them apart.
                del products
                self.keys = self.keys[:0]
                rest = _Search(self.train, self.centring, torch.float32, self.memory).run(
                    test[start:], k, ranked
                )
                index[start:] = rest.index
                return Neighbours(index, rechecked + rest.rechecked)
            index[part], pairs = self._settle(queries, value, place, k, margin, ranked)
            for q in torch.nonzero(crowded).flatten().tolist():
                # More candidates than were kept: take every row that could be among the nearest.
                among = torch.nonzero(products.row(q).double() >= edge[q] - margin[q]).flatten()
                exact = self._exact(queries, torch.full_like(among, q), among)
                index[start + q] = among[exact.argsort(descending=True, stable=True)[:k]]
                pairs += len(among)
            rechecked += pairs
        return Neighbours(index, rechecked)

    def _settle(
        self, queries: Tensor, value: Tensor, place: Tensor, k: int, margin: Tensor, ranked: bool
    ) -> tuple[Tensor, int]:
        """The k nearest of every query [q, k] and how many pairs were compared again."""
        pairs = 0
        if self.dtype == torch.bfloat16:
            value, pairs = self._look_again(queries, value, place, k, margin, ranked, self._single)
            margin = torch.full_like(margin, 2 * self._arithmetic)
        value, exact = self._look_again(queries, value, place, k, margin, ranked, self._exact)
        # The lowest row first among equals: order by row, then stably by value.
        by_row = place.argsort(1)
        by_value = value.gather(1, by_row).argsort(dim=1, descending=True, stable=True)
        return place.gather(1, by_row.gather(1, by_value[:, :k])), max(pairs, exact)

    def _look_again(
        self,
        queries: Tensor,
        value: Tensor,
        place: Tensor,
        k: int,
        margin: Tensor,
        ranked: bool,
        compare: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> tuple[Tensor, int]:
        """Better values where they matter, and how many: +inf is certainly in, -inf certainly out.

        A value is within half the margin of its float64 value, and so is the k-th best: what is above that by
        the margin is certainly in, what is below it by the margin is certainly out.
        """
        edge = torch.topk(value, k, dim=1).values[:, -1:]
        possible = value >= edge - margin
        certain = torch.zeros_like(possible) if ranked else value > edge + margin
        better = torch.full_like(value, -torch.inf)
        better[possible] = torch.inf
        unsure = possible & ~certain
        if not ranked:
            # Nothing to decide where exactly k are possible.
            unsure &= possible.sum(1, keepdim=True) > k
        pairs = torch.nonzero(unsure)
        if len(pairs):
            better[unsure] = compare(queries, pairs[:, 0], place[unsure])
        return better, len(pairs)

    def _single(self, queries: Tensor, query: Tensor, row: Tensor) -> Tensor:
        """Products of pairs (query, training row) in float32, in float64 where that would lose digits."""
        out = torch.empty(len(row), dtype=torch.float64, device=queries.device)
        mean, rounded = self.centring.mean.float(), queries.float()
        length = float(self.centring.mean.norm())
        for part in row_chunks(len(row), 8 * queries.shape[1], self._step):
            x = self.train[row[part]].float()
            x -= mean
            norms = torch.linalg.vector_norm(x, dim=1)
            out[part] = x.mul_(rounded[query[part]]).sum(1) / norms.clamp_min(SMALLEST_NORM)
            steep = torch.nonzero(norms * _STEEP < length).flatten()
            if len(steep):
                out[part][steep] = self._exact(queries, query[part][steep], row[part][steep])
        return out

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
