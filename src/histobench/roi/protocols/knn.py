"""K nearest neighbours: exact, from blocked float32 products that are checked in float64 where it matters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.protocols.centring import Centring, row_chunks
from histobench.roi.protocols.outcome import Outcome

MEMORY = 2**27
_GROUP = 32  # scores per group; the k best scores lie in the k groups with the best maxima


def knn(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    *,
    n_classes: int,
    n_neighbors: int = 20,
    device: str = "cpu",
    memory: int = MEMORY,
) -> Outcome:
    """Centre by the train mean, scale to unit length; probabilities = vote fractions of the k nearest."""
    train, train_labels, test = train.to(device), train_labels.to(device), test.to(device)
    neighbours = nearest(train, test, k=n_neighbors, centring=Centring.of(train), memory=memory)
    votes = count_votes(train_labels[neighbours.index], n_classes)
    info = {"n_neighbors": n_neighbors, "n_train": len(train), "rechecked": neighbours.rechecked}
    return Outcome((votes / n_neighbors).cpu().numpy(), votes.argmax(1).cpu().numpy(), info)


def count_votes(labels: Tensor, n_classes: int) -> Tensor:
    """Votes [n, c] of neighbour labels [n, k], as float64."""
    votes = torch.zeros(len(labels), n_classes, dtype=torch.float64, device=labels.device)
    return votes.scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.float64))


@dataclass(frozen=True)
class Neighbours:
    """The k nearest training rows of every query: nearest first where `similarity` was asked for."""

    index: Tensor  # [n, k]
    similarity: Tensor | None  # [n, k] float64
    rechecked: int  # queries whose neighbours were decided in float64


def nearest(
    train: Tensor, test: Tensor, *, k: int, centring: Centring, ranked: bool = False, memory: int = MEMORY
) -> Neighbours:
    """The k nearest by L2 distance of centred unit features; among equal distances the lowest row.

    Unit rows are nearest where their product is largest. Products are float32; a query whose k-th and next
    product are closer than rounding can explain is decided again in float64, so the result is that of
    float64 throughout. With `ranked` the neighbours come in their float64 order.
    """
    n_train, d = train.shape
    if k > n_train:
        raise HistobenchError(
            f"n_neighbors is {k} but there are {n_train} training images; use --n_neighbors {n_train} or less"
        )
    keys = torch.empty(n_train, d, dtype=torch.float32, device=train.device)
    for part in row_chunks(n_train, 16 * d, memory):
        keys[part] = centring.apply(train[part], dtype=torch.float32)
    # Rounding of both rows to float32, and of a float32 sum of d terms.
    doubt = (4 + d**0.5) * torch.finfo(torch.float32).eps
    index = torch.empty(len(test), k, dtype=torch.long, device=train.device)
    similarity = torch.empty(len(test), k, dtype=torch.float64, device=train.device) if ranked else None
    rechecked = 0
    for part in row_chunks(len(test), 4 * (n_train + 4 * d), memory):
        queries = centring.apply(test[part])
        products = queries.float() @ keys.T
        kept = min(n_train, k + 1 + k // 4)
        value, place = best_of(products, kept)
        chosen = place[:, :k]
        if ranked:
            unsure = torch.ones(len(queries), dtype=torch.bool, device=train.device)
        else:
            unsure = torch.zeros(len(queries), dtype=torch.bool, device=train.device)
            if kept > k:
                unsure = value[:, k - 1] - value[:, k] <= 2 * doubt
        rows = torch.nonzero(unsure).flatten()
        if len(rows):
            exact, order = _decide(
                train, centring, queries[rows], products[rows], value[rows], place[rows], k, doubt
            )
            chosen[rows] = order
            if similarity is not None:
                similarity[part] = exact
            rechecked += 0 if ranked else len(rows)
        index[part] = chosen
    return Neighbours(index, similarity, rechecked)


def best_of(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of every row, largest first: a pass for the maxima of groups, then a small selection."""
    n, m = scores.shape
    groups = m // _GROUP
    if groups < 2 * k:
        return torch.topk(scores, k, dim=1)
    grouped = scores[:, : groups * _GROUP].view(n, groups, _GROUP)
    best_groups = torch.topk(grouped.amax(2), k, dim=1, sorted=False).indices
    candidates = grouped.gather(1, best_groups[..., None].expand(-1, -1, _GROUP)).flatten(1)
    places = (best_groups[..., None] * _GROUP + torch.arange(_GROUP, device=scores.device)).flatten(1)
    rest = torch.arange(groups * _GROUP, m, device=scores.device)
    candidates = torch.cat([candidates, scores[:, groups * _GROUP :]], 1)
    places = torch.cat([places, rest.expand(n, -1)], 1)
    value, at = torch.topk(candidates, k, dim=1)
    return value, places.gather(1, at)


def _decide(
    train: Tensor,
    centring: Centring,
    queries: Tensor,
    products: Tensor,
    value: Tensor,
    place: Tensor,
    k: int,
    doubt: float,
) -> tuple[Tensor, Tensor]:
    """Similarities and rows of the k nearest in float64, nearest first, the lowest row among equals."""
    similarity = torch.empty(len(queries), k, dtype=torch.float64, device=queries.device)
    index = torch.empty(len(queries), k, dtype=torch.long, device=queries.device)
    for q in range(len(queries)):
        threshold = value[q, k - 1] - 2 * doubt
        if value[q, -1] < threshold:
            candidates = place[q].sort().values
        else:
            # More near-ties than were kept: look at every training row that could be among the nearest.
            candidates = torch.nonzero(products[q] >= threshold).flatten()
        # A sum per row, not a matrix product: equal rows must give equal bits.
        exact = (centring.apply(train[candidates]) * queries[q]).sum(1)
        order = torch.argsort(exact, descending=True, stable=True)[:k]
        similarity[q], index[q] = exact[order], candidates[order]
    return similarity, index
