"""Exact nearest neighbors: an inexact matrix product proposes candidates, float64 decides among those that
differ by less than its known error bound.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.core.threads import spread
from histobench.roi.protocols.centering import SMALLEST_NORM, Centring, row_chunks

T = TypeVar("T")

MEMORY = 2**28  # bytes of products at a time
_SPARE = {torch.float32: 8, torch.bfloat16: 64}  # candidates beyond k
_QUERIES = 1024  # multiplied at a time
_LARGE = 2**37  # multiplications from which a bfloat16 product can pay


@dataclass(frozen=True)
class Neighbours:
    """The k nearest training rows of every query, in no order unless `ranked` was requested."""

    index: Tensor  # [n, k]
    rechecked: int  # queries that were compared again in float64
    cosine: Tensor  # [n, k] of centered rows in float64 if `ranked`, else [n, 0]


def nearest(
    train: Tensor, test: Tensor, *, k: int, centring: Centring, ranked: bool = False, memory: int = MEMORY
) -> Neighbours:
    """Find the k nearest by L2 distance of centered unit features, the lowest row among equals."""
    large = len(train) * len(test) * train.shape[1] >= _LARGE
    formats: tuple[torch.dtype, ...] = (torch.float32,)
    if large and train.device.type == "cpu" and _bfloat16_is_fast():
        formats = (torch.bfloat16, torch.float32)
    return NeighbourSearch(train, centring, memory=memory, formats=formats).nearest(test, k=k, ranked=ranked)


@functools.cache
def _bfloat16_is_fast() -> bool:
    """Try whether this processor multiplies bfloat16 at least twice as fast as float32."""
    a, b = torch.randn(512, 1024), torch.randn(1024, 2048)
    seconds = []
    for x, y in ((a, b), (a.bfloat16(), b.bfloat16())):
        x @ y
        start = time.perf_counter()
        x @ y
        seconds.append(time.perf_counter() - start)
    return 2 * seconds[1] < seconds[0]


class NeighbourSearch:
    """Training rows prepared for queries; `formats` are tried in order until a query is decided."""

    def __init__(
        self,
        train: Tensor,
        centring: Centring,
        *,
        memory: int = MEMORY,
        formats: tuple[torch.dtype, ...] = (torch.float32,),
    ) -> None:
        self.train, self.centring, self.memory, self.formats = train, centring, memory, formats
        self.keys = torch.empty(train.shape, dtype=torch.float32, device=train.device)
        self._spread(self._fill, len(train))
        # How far a float32 product of two rounded unit rows can be from its float64 value.
        self.doubt = torch.finfo(torch.float32).eps * (4 + 2 * train.shape[1] ** 0.5)

    @property
    def _step(self) -> int:
        """Bytes of other work at a time: on a CPU what its cache holds."""
        return 2**21 if self.train.device.type == "cpu" else 2**27

    def _spread(self, work: Callable[[slice], T], count: int) -> list[T]:
        """Do the work on ranges of rows, each by one thread from its beginning to its end."""
        parts = row_chunks(count, 16 * self.train.shape[1], self._step)
        return spread(work, list(parts), device=str(self.train.device))

    def _fill(self, part: slice) -> None:
        self.keys[part] = self.centring.apply(self.train[part], dtype=torch.float32)

    def nearest(self, test: Tensor, *, k: int, ranked: bool = False) -> Neighbours:
        if k > len(self.train):
            raise HistobenchError(
                f"n_neighbors is {k} but there are {len(self.train)} training images; "
                f"use `n_neighbors` {len(self.train)} or less"
            )
        index = torch.empty(len(test), k, dtype=torch.long, device=test.device)
        cosine = index.new_empty(len(test), k if ranked else 0, dtype=torch.float64)
        left, rechecked = torch.arange(len(test), device=test.device), 0
        for dtype in self.formats:
            keys = self.keys.to(dtype)
            # Length that rounding to the format takes from the worst key.
            lost = (
                0.0
                if keys is self.keys
                else max(
                    float((self.keys[part] - keys[part]).norm(dim=1).max())
                    for part in row_chunks(len(keys), 8 * keys.shape[1], self._step)
                )
            )
            undecided: list[Tensor] = []
            step = min(_QUERIES, max(1, self.memory // (keys.element_size() * len(keys))), max(1, len(left)))
            # One buffer for all products: fresh pages cost more than writing to used ones.
            products = keys.new_empty(step, len(keys))
            for start in range(0, len(left), step):
                rows = left[start : start + step]
                found, value, decided, again = self._decide(test[rows], keys, products, lost, k, ranked)
                index[rows], rechecked = found, rechecked + again
                if ranked:
                    cosine[rows] = value
                undecided.append(rows[~decided])
                if dtype != torch.float32 and 20 * len(undecided[-1]) > len(rows):
                    undecided.append(left[start + step :])  # rows too close to each other for this format
                    break
            left = torch.cat([left[:0], *undecided])
        for row in left.tolist():
            index[row], value = self._crowded(test[row : row + 1], k)
            if ranked:
                cosine[row] = value
        return Neighbours(index, rechecked + len(left), cosine)

    def _decide(
        self, test: Tensor, keys: Tensor, products: Tensor, lost: float, k: int, ranked: bool
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return the k nearest, their cosines, which queries are decided, and how many needed float64."""
        queries = torch.cat(self._spread(lambda part: self.centring.apply(test[part]), len(test)))
        rounded = queries.to(keys.dtype)
        kept = min(len(keys), k + _SPARE[keys.dtype])
        value, place = torch.topk(torch.mm(rounded, keys.T, out=products[: len(test)]), kept, dim=1)
        # No row outside of the candidates has a higher cosine than this.
        rest, value = value[:, -1].double(), value.double()
        rest += self.doubt
        if keys is not self.keys:
            away = (queries - rounded).norm(dim=1)
            rest += away + lost + away * lost + torch.finfo(keys.dtype).eps / 2 * (rest.abs() + 0.02)
            for part in row_chunks(len(place), 4 * kept * keys.shape[1], self._step):
                product = self.keys[place[part]] @ queries[part].float()[:, :, None]
                value[part], order = product[:, :, 0].double().sort(dim=1, descending=True)
                place[part] = place[part].gather(1, order)
        if kept == len(keys):
            rest.fill_(-torch.inf)
        decided = value[:, k - 1] - self.doubt > rest
        settled = torch.full_like(decided, kept == k)
        if kept > k:
            settled = value[:, k - 1] - value[:, k] > 2 * self.doubt
        unsure = torch.nonzero(~(settled & decided))[:, 0]
        if ranked:
            unsure = torch.arange(len(test), device=test.device)
        index, cosine = place[:, :k].clone(), value[:, :k].clone()
        if len(unsure):
            among = place[unsure].sort(dim=1).values
            exact = self._exact(queries, unsure.repeat_interleave(kept), among.flatten()).view(among.shape)
            # Stable: the lowest row first among equals.
            exact, order = exact.sort(dim=1, descending=True, stable=True)
            index[unsure], cosine[unsure] = among.gather(1, order)[:, :k], exact[:, :k]
            decided[unsure] = exact[:, k - 1] > rest[unsure]
        return index, cosine, decided, len(unsure)

    def _exact(self, queries: Tensor, query: Tensor, row: Tensor) -> Tensor:
        """Return the float64 cosines of pairs of a query (centered, unit length) and a training row."""
        out = torch.empty(len(row), dtype=torch.float64, device=row.device)

        def compare(part: slice) -> None:
            x = self.train[row[part]].double()
            x -= self.centring.mean
            norms = torch.linalg.vector_norm(x, dim=1).clamp_min_(SMALLEST_NORM)
            # A sum per row, not a matrix product: equal rows must give equal bits.
            out[part] = x.mul_(queries[query[part]]).sum(1) / norms

        self._spread(compare, len(row))
        return out

    def _crowded(self, test: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k nearest of one query with more near-ties than candidates, and their cosines."""
        queries = self.centring.apply(test)
        product = self.keys @ queries[0].float()
        among = torch.nonzero(product >= product.topk(k).values[-1] - 2 * self.doubt)[:, 0]
        different, copies = torch.unique(self._first_of_its_kind[among], return_inverse=True)
        exact = self._exact(queries, torch.zeros_like(different), different)[copies]
        exact, order = exact.sort(descending=True, stable=True)
        return among[order[:k]], exact[:k]

    @functools.cached_property
    def _first_of_its_kind(self) -> Tensor:
        """The first row with the same bytes as each training row [n]: copies are compared once."""
        words = self.train.contiguous().view(torch.int16 if self.train.element_size() == 2 else torch.int32)
        factors = torch.randint(2**62, (words.shape[1],), generator=torch.Generator().manual_seed(0))
        factors = 2 * factors.to(words.device) + 1
        parts = row_chunks(len(words), 8 * words.shape[1], 2**26)
        hashes = torch.cat([(words[part].long() * factors).sum(1) for part in parts])
        kinds, kind = torch.unique(hashes, return_inverse=True)
        first = torch.full_like(kinds, len(words)).scatter_reduce(
            0, kind, torch.arange(len(words), device=kind.device), "amin"
        )
        return first[kind]
