"""Exact nearest neighbours from inexact matrix products.

Products of unit rows are computed in float32, or in bfloat16 where the processor has tiles for it and the
rows are far enough from each other. Their error has a bound, so most neighbours are certain; the few that
rounding could confuse are compared again, in float32 and then in float64. The result is that of float64
throughout.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from histobench.core.devices import spread
from histobench.core.errors import HistobenchError

# Products of queries with all training rows, and the largest of them.

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


# Centre by the mean of the training features and scale to unit length.

SMALLEST_NORM = 1e-12  # a feature that equals the mean stays zero


def row_chunks(rows: int, bytes_per_row: int, memory: int) -> Iterator[slice]:
    """Consecutive row ranges whose working size stays within `memory` bytes."""
    step = max(1, memory // max(1, bytes_per_row))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


@dataclass(frozen=True)
class Centring:
    """x -> (x - mean) / ||x - mean||, with a mean computed in float64."""

    mean: Tensor  # [d] float64

    @classmethod
    def of(cls, features: Tensor) -> Centring:
        """The centring of a training set."""
        device = features.device

        def added(part: slice) -> Tensor:
            rows = features[part].double()
            # A product with ones sums columns several times faster than sum(0).
            return rows.new_ones(len(rows)) @ rows

        memory = 2**22 if device.type == "cpu" else 2**27
        total = torch.zeros(features.shape[1], dtype=torch.float64, device=device)
        for part in spread(
            added, list(row_chunks(len(features), 8 * features.shape[1], memory)), device=str(device)
        ):
            total += part
        return cls(total / max(1, len(features)))

    @classmethod
    def none(cls, features: Tensor) -> Centring:
        """Scaling to unit length alone."""
        return cls(torch.zeros(features.shape[1], dtype=torch.float64, device=features.device))

    def apply(self, features: Tensor, *, dtype: torch.dtype = torch.float64) -> Tensor:
        """Centred unit rows, computed in float64 and rounded once."""
        centred = features.double() - self.mean
        centred /= centred.norm(dim=1, keepdim=True).clamp_min(SMALLEST_NORM)
        return centred.to(dtype)


MEMORY = 2**28
_CACHE = 2**22  # bytes of other work at a time
_MANY = 50_000  # training rows from which bfloat16 pays: a query's second look costs the same with fewer
_SMALL = 2**32  # multiplications that are over before threads have been given parts of them
_QUERIES = 512  # multiplied at a time: more gain nothing
_TRIED = 64  # queries on which bfloat16 is tried
_CROWDED = 0.05  # share of them with more candidates than are kept, from which float32 is taken
_STEEP = 64  # a row this much shorter than the mean loses digits to float32 when it is centred


@dataclass(frozen=True)
class Neighbours:
    """The k nearest training rows of every query, in no order unless `ranked` was asked for."""

    index: Tensor  # [n, k]
    rechecked: int  # pairs that were compared again
    cosine: Tensor  # [n, k] of centred rows in float64, where `ranked` was asked for; else [n, 0]


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
    return _search(train, test, k, centring, memory).nearest(test, k=k, ranked=ranked)


def _search(train: Tensor, test: Tensor, k: int, centring: Centring, memory: int) -> NeighbourSearch:
    """A search in the format that this processor and these rows call for."""
    if (
        train.device.type == "cpu"
        and len(train) >= _MANY
        and len(test) > _TRIED
        and _multiplies_bfloat16_in_tiles()
    ):
        search = NeighbourSearch(train, centring, torch.bfloat16, memory)
        if search.crowded(test[:: max(1, len(test) // _TRIED)], k) <= _CROWDED:
            return search
    return NeighbourSearch(train, centring, memory=memory)


@functools.cache
def _multiplies_bfloat16_in_tiles() -> bool:
    """Whether the processor has instructions that multiply bfloat16 several times faster than float32."""
    info = Path("/proc/cpuinfo")
    return info.is_file() and "amx_bf16" in info.read_text(encoding="utf-8", errors="replace")


class NeighbourSearch:
    """Training rows prepared for queries that come one after the other."""

    def __init__(
        self, train: Tensor, centring: Centring, dtype: torch.dtype = torch.float32, memory: int = MEMORY
    ) -> None:
        n, d = train.shape
        self.train, self.centring, self.dtype, self.memory = train, centring, dtype, memory
        self.keys = torch.empty(Products.padded(n), d, dtype=dtype, device=train.device)
        self.keys[n:] = 0
        self._buffers = threading.local()
        self.length = float(centring.mean.norm())
        parts = list(row_chunks(n, 4 * d, self._step))
        lost = spread(self._prepare, parts, device=str(train.device))
        self.lost = max(lost, default=0.0)  # what rounding to the format takes from the worst key, its length

    def _prepare(self, part: slice) -> float:
        """Fill some of the keys; the greatest length that rounding took."""
        if self.dtype == torch.float32:
            self._unit(self.train[part], out=self.keys[part])
            return 0.0
        unit = self._unit(self.train[part])
        self.keys[part] = unit
        unit -= self.keys[part]
        return float(torch.linalg.vector_norm(unit, dim=1).max())

    def _unit(self, rows: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Centred unit rows in float32, computed in float64 where that would lose digits."""
        unit = torch.sub(rows.float(), self.centring.mean.float(), out=out)
        norms = torch.linalg.vector_norm(unit, dim=1).clamp_min_(SMALLEST_NORM)
        unit /= norms[:, None]
        steep = norms * _STEEP < self.length
        if bool(steep.any()):
            unit[steep] = self.centring.apply(rows[steep], dtype=torch.float32)
        return unit

    @functools.cached_property
    def _first_of_its_kind(self) -> Tensor:
        """Of every training row the first one with the same bytes: copies are compared once [n]."""
        seen: dict[bytes, int] = {}
        rows = self.train.contiguous().view(torch.uint8).cpu().numpy()
        first = [
            seen.setdefault(hashlib.blake2b(row, digest_size=16).digest(), place)
            for place, row in enumerate(rows)
        ]
        return torch.tensor(first, device=self.train.device)

    @property
    def _step(self) -> int:
        return _CACHE if self.train.device.type == "cpu" else self.memory // 4

    @property
    def _arithmetic(self) -> float:
        """How far a product of two rows, centred and summed in float32, can be from its float64 value."""
        return torch.finfo(torch.float32).eps * (10 + 2 * _STEEP + 2 * self.keys.shape[1] ** 0.5)

    def _doubt(self, queries: Tensor, rounded: Tensor, edge: Tensor) -> Tensor:
        """How far products near `edge` can be from their float64 values, [q, 1]."""
        lost = torch.zeros_like(edge)
        if self.dtype != torch.float32:
            lost += torch.linalg.vector_norm(queries - rounded, dim=1, keepdim=True)
        # Rows rounded to the format; the arithmetic; the product rounded.
        rows = lost + self.lost + lost * self.lost
        return rows + self._arithmetic + torch.finfo(self.dtype).eps / 2 * (edge.abs() + 0.02)

    def nearest(self, test: Tensor, *, k: int, ranked: bool = False) -> Neighbours:
        """As the function `nearest`; `k` is at most the number of training rows."""
        parts = self._parts(len(test))
        found = spread(lambda part: self._run_part(test[part], k, ranked), parts, device=str(test.device))
        none = torch.empty(0, k, dtype=torch.long, device=test.device)
        return Neighbours(
            torch.cat([none, *(part.index for part in found)]),
            sum(part.rechecked for part in found),
            torch.cat([none[:, : k if ranked else 0].double(), *(part.cosine for part in found)]),
        )

    def _parts(self, queries: int) -> list[slice]:
        """Queries that one thread multiplies at a time: as many as fit, but a part for every thread."""
        n, d = self.train.shape
        each = self.keys.element_size() * n + 40 * d
        if self.train.device.type != "cpu":
            # Every part waits for the device a few times.
            rows = max(1, 3 * self.memory // (2 * each))
        elif n * d * queries < _SMALL:
            # One part after the other: the threads of each operation do more than threads with parts.
            rows = max(1, min(self.memory // each, queries))
        else:
            threads = torch.get_num_threads()
            rows = max(1, min(self.memory // threads // each, _QUERIES, -(-queries // threads)))
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
        queries = self._unit(test)
        rounded = queries.to(self.dtype)
        products = self._products(len(test), kept)
        products.fill(rounded, self.keys)
        value, place = products.best()
        value = value.double()
        edge = value[:, k - 1 : k]
        margin = 2 * self._doubt(queries, rounded, edge)
        crowded = (value[:, -1:] >= edge - margin)[:, 0] & (kept < n)
        return _Candidates(test, queries, products, value, place, edge, margin, crowded)

    def _run_part(self, test: Tensor, k: int, ranked: bool) -> Neighbours:
        found = self._multiply(test, k)
        index, pairs = found.place[:, :k].clone(), 0
        # Nothing to decide where the next best is certainly out.
        close = found.value[:, k : k + 1] >= found.edge - found.margin
        unsettled = torch.arange(len(test), device=test.device) if ranked else torch.nonzero(close)[:, 0]
        cosine = found.value[:, : k if ranked else 0].clone()
        if len(unsettled):
            index[unsettled], value, pairs = self._settle(found.some(unsettled), k, ranked)
            if ranked:
                cosine = value
        for q in torch.nonzero(found.crowded).flatten().tolist():
            # More candidates than were kept: take every row that could be among the nearest.
            least = found.edge[q] - found.margin[q]
            among = torch.nonzero(found.products.row(q).double() >= least).flatten()
            different, copies = torch.unique(self._first_of_its_kind[among], return_inverse=True)
            exact = self._exact(found, torch.full_like(different, q), different)[copies]
            best = exact.argsort(descending=True, stable=True)[:k]
            index[q] = among[best]
            if ranked:
                cosine[q] = exact[best]
            pairs += len(among)
        return Neighbours(index, pairs, cosine)

    def _settle(self, found: _Candidates, k: int, ranked: bool) -> tuple[Tensor, Tensor, int]:
        """The k nearest of every query [q, k], their cosines, and how many pairs were compared again."""
        pairs = 0
        place = found.place
        if self.dtype == torch.bfloat16:
            value, pairs = self._look_again(found, k, ranked, self._single)
            found = replace(found, value=value, margin=torch.full_like(found.margin, 2 * self._arithmetic))
        value, exact = self._look_again(found, k, ranked, self._exact)
        # The lowest row first among equals: order by row, then stably by value.
        by_row = place.argsort(1)
        by_value = value.gather(1, by_row).argsort(dim=1, descending=True, stable=True)
        best = by_row.gather(1, by_value[:, :k])
        return place.gather(1, best), value.gather(1, best), max(pairs, exact)

    def _look_again(
        self,
        found: _Candidates,
        k: int,
        ranked: bool,
        compare: Callable[[_Candidates, Tensor, Tensor], Tensor],
    ) -> tuple[Tensor, int]:
        """Better values where they matter, and how many: +inf is certainly in, -inf certainly out.

        A value is within half the margin of its float64 value, and so is the k-th best: what is above that by
        the margin is certainly in, what is below it by the margin is certainly out.
        """
        value, margin = found.value, found.margin
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
            better[unsure] = compare(found, pairs[:, 0], found.place[unsure])
        return better, len(pairs)

    def _single(self, found: _Candidates, query: Tensor, row: Tensor) -> Tensor:
        """Products of pairs (query, training row) in float32, in float64 where that would lose digits."""
        out = torch.empty(len(row), dtype=torch.float64, device=row.device)
        for part in row_chunks(len(row), 8 * self.train.shape[1], self._step):
            out[part] = self._unit(self.train[row[part]]).mul_(found.queries[query[part]]).sum(1)
        return out

    def _exact(self, found: _Candidates, query: Tensor, row: Tensor) -> Tensor:
        """Products in float64 of pairs (query, training row)."""
        out = torch.empty(len(row), dtype=torch.float64, device=row.device)
        for part in row_chunks(len(row), 16 * self.train.shape[1], self._step):
            x = self.train[row[part]].double()
            x -= self.centring.mean
            norms = torch.linalg.vector_norm(x, dim=1).clamp_min_(SMALLEST_NORM)
            # A sum per row, not a matrix product: equal rows must give equal bits.
            out[part] = x.mul_(self.centring.apply(found.test[query[part]])).sum(1) / norms
        return out


@dataclass(frozen=True)
class _Candidates:
    """The best products of some queries."""

    test: Tensor  # [q, d], as given
    queries: Tensor  # [q, d] unit rows in float32
    products: Products
    value: Tensor  # [q, kept], largest first
    place: Tensor  # [q, kept] rows
    edge: Tensor  # [q, 1] the k-th best
    margin: Tensor  # [q, 1] twice how far a product near it may be from its float64 value
    crowded: Tensor  # [q] whether rows beyond those kept may be among the nearest

    def some(self, rows: Tensor) -> _Candidates:
        """Those of some queries; the products stay those of all."""
        names = [each.name for each in fields(self) if each.name != "products"]
        return replace(self, **{name: getattr(self, name)[rows] for name in names})
