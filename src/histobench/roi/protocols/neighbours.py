"""Exact nearest neighbours from inexact matrix products.

Products of unit rows are computed in float32, or in bfloat16 where the processor has tiles for it and the
rows are far enough from each other. Their error has a bound, so most neighbours are certain; the few that
rounding could confuse are compared again, in float32 and then in float64. The result is that of float64
throughout.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.core.threads import spread
from histobench.roi.protocols.centring import SMALLEST_NORM, Centring, row_chunks
from histobench.roi.protocols.products import Products

MEMORY = 2**28
_CACHE = 2**20  # bytes of other work at a time
_WORTH_TRYING = 2e10  # multiplications from which bfloat16 pays for its second look
_QUERIES = 512  # multiplied at a time: more gain nothing
_TRIED = 64  # queries on which bfloat16 is tried
_CROWDED = 0.05  # share of them with more candidates than are kept, from which float32 is taken
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
            f"use `n_neighbors` {len(train)} or less"
        )
    return _search(train, test, k, centring, memory).run(test, k, ranked)


def _search(train: Tensor, test: Tensor, k: int, centring: Centring, memory: int) -> _Search:
    """A search in the format that this processor and these rows call for."""
    if (
        train.device.type == "cpu"
        and float(train.numel()) * len(test) >= _WORTH_TRYING
        and _multiplies_bfloat16_in_tiles()
    ):
        search = _Search(train, centring, torch.bfloat16, memory)
        if search.crowded(test[:: max(1, len(test) // _TRIED)], k) <= _CROWDED:
            return search
    return _Search(train, centring, torch.float32, memory)


@functools.cache
def _multiplies_bfloat16_in_tiles() -> bool:
    """Whether the processor has instructions that multiply bfloat16 several times faster than float32."""
    info = Path("/proc/cpuinfo")
    return info.is_file() and "amx_bf16" in info.read_text(encoding="utf-8", errors="replace")


class _Search:
    """Training rows prepared for queries."""

    def __init__(self, train: Tensor, centring: Centring, dtype: torch.dtype, memory: int) -> None:
        n, d = train.shape
        self.train, self.centring, self.dtype, self.memory = train, centring, dtype, memory
        self.keys = torch.zeros(Products.padded(n), d, dtype=dtype, device=train.device)
        self._buffers = threading.local()
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
            if dtype != torch.float32:
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
        if self.dtype == torch.float32:
            lost = torch.full_like(edge, torch.finfo(torch.float32).eps / 2)
        else:
            lost = torch.linalg.vector_norm(queries - rounded, dim=1, keepdim=True)
        # Rows rounded to the format; the arithmetic; the product rounded.
        rows = lost + self.lost + lost * self.lost
        return rows + self._arithmetic + torch.finfo(self.dtype).eps / 2 * (edge.abs() + 0.02)

    def run(self, test: Tensor, k: int, ranked: bool) -> Neighbours:
        """Neighbours of every query."""
        parts = self._parts(len(test))
        found = spread(lambda part: self._run_part(test[part], k, ranked), parts, device=str(test.device))
        none = torch.empty(0, k, dtype=torch.long, device=test.device)
        index = torch.cat([part.index for part in found]) if found else none
        return Neighbours(index, sum(part.rechecked for part in found))

    def _parts(self, queries: int) -> list[slice]:
        """Queries that one thread multiplies at a time: as many as fit, but a part for every thread."""
        n, d = self.train.shape
        threads = torch.get_num_threads() if self.train.device.type == "cpu" else 1
        most = self.memory // threads // (self.keys.element_size() * n + 40 * d)
        rows = max(1, min(most, _QUERIES, -(-queries // threads)))
        return [slice(start, start + rows) for start in range(0, queries, rows)]

    def crowded(self, test: Tensor, k: int) -> float:
        """The share of queries to which more rows are nearly equally near than are kept."""
        return float(self._multiply(test, k).crowded.double().mean())

    def _products(self, rows: int, kept: int) -> Products:
        """This thread's buffer: fresh pages cost more than writing to used ones."""
        held: Products | None = getattr(self._buffers, "products", None)
        if held is None or held.rows < rows or held.kept != kept:
            self._buffers.products = held = Products(
                rows, len(self.train), kept, self.dtype, self.keys.device
            )
        return held

    def _multiply(self, test: Tensor, k: int) -> _Candidates:
        n = len(self.train)
        kept = min(n, k + (64 if self.dtype == torch.bfloat16 else 8))
        queries = self.centring.apply(test)
        rounded = queries.to(self.dtype)
        products = self._products(len(test), kept)
        products.fill(rounded, self.keys)
        value, place = products.best()
        value = value.double()
        edge = value[:, k - 1 : k]
        margin = 2 * self._doubt(queries, rounded, edge)
        crowded = (value[:, -1:] >= edge - margin)[:, 0] & (kept < n)
        return _Candidates(queries, products, value, place, edge, margin, crowded)

    def _run_part(self, test: Tensor, k: int, ranked: bool) -> Neighbours:
        found = self._multiply(test, k)
        index, pairs = self._settle(found.queries, found.value, found.place, k, found.margin, ranked)
        for q in torch.nonzero(found.crowded).flatten().tolist():
            # More candidates than were kept: take every row that could be among the nearest.
            least = found.edge[q] - found.margin[q]
            among = torch.nonzero(found.products.row(q).double() >= least).flatten()
            exact = self._exact(found.queries, torch.full_like(among, q), among)
            index[q] = among[exact.argsort(descending=True, stable=True)[:k]]
            pairs += len(among)
        return Neighbours(index, pairs)

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


@dataclass(frozen=True)
class _Candidates:
    """The best products of some queries."""

    queries: Tensor  # [q, d] unit rows in float64
    products: Products
    value: Tensor  # [q, kept], largest first
    place: Tensor  # [q, kept] rows
    edge: Tensor  # [q, 1] the k-th best
    margin: Tensor  # [q, 1] twice how far a product near it may be from its float64 value
    crowded: Tensor  # [q] whether rows beyond those kept may be among the nearest
