"""K nearest neighbors, retrieval and prototypes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from histobench.roi.protocols.centering import Centring, row_chunks
from histobench.roi.protocols.neighbours import MEMORY, nearest
from histobench.roi.protocols.outcome import Outcome


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
    """Vote fractions of the k nearest, centred and scaled; with few training images fewer neighbors vote."""
    smallest = int(torch.unique(train_labels, return_counts=True)[1].min())
    warnings = []
    if n_neighbors > len(train):
        fewer = max(1, smallest // 2)
        instead = f"{fewer} instead of {n_neighbors} neighbors vote"
        warnings = [f"{instead}: there are {len(train)} training images"]
        n_neighbors = fewer
    train, train_labels, test = train.to(device), train_labels.to(device), test.to(device)
    neighbours = nearest(train, test, k=n_neighbors, centring=Centring.of(train), memory=memory)
    votes = count_votes(train_labels[neighbours.index], n_classes)
    info: dict[str, Any] = {"n_neighbors": n_neighbors, "n_train": len(train)}
    info["rechecked_pairs"] = neighbours.rechecked
    if not warnings and n_neighbors >= 2 * smallest:
        warnings = [
            f"the smallest class has {smallest} training images, at most half of the {n_neighbors} neighbors "
            f"that vote, so it rarely wins; set `n_neighbors` to {max(1, smallest // 2)} or less"
        ]
    if warnings:
        info["warnings"] = warnings
    return Outcome((votes / n_neighbors).cpu().numpy(), votes.argmax(1).cpu().numpy(), info)


def count_votes(labels: Tensor, n_classes: int) -> Tensor:
    votes = torch.zeros(len(labels), n_classes, dtype=torch.float64, device=labels.device)
    return votes.scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.float64))


RANKS = (1, 3, 5, 10)


def retrieval(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    n_classes: int,
    device: str = "cpu",
) -> tuple[Outcome, dict[str, float]]:
    """Nearest training images of every test image, and how relevant they are.

    Features are centred by the train mean and scaled to unit length. `acc_at_k`: an image of the right class
    is among the first k; `mv_at_k`: the majority of the first k is right (ties: the lowest class id);
    `map_at_k`: mean over the queries of the precision at each relevant rank, averaged over the relevant ones
    found (0 if none). The outcome's probabilities are the vote fractions of the longest list, its prediction
    is the first hit.
    """
    x, y, truth = train.to(device), train_labels.to(device), test_labels.to(device)
    possible = [k for k in RANKS if k <= len(train)] or [1]
    found = y[nearest(x, test.to(device), k=possible[-1], centring=Centring.of(x), ranked=True).index]
    relevant = (found == truth[:, None]).double()
    precision = relevant.cumsum(1) / torch.arange(1, relevant.shape[1] + 1, device=relevant.device)
    scores: dict[str, float] = {}
    for k in possible:
        hits = relevant[:, :k]
        scores[f"acc_at_{k}"] = float(hits.amax(1).mean())
        majority = count_votes(found[:, :k], n_classes).argmax(1)
        scores[f"mv_at_{k}"] = float((majority == truth).double().mean())
        scores[f"map_at_{k}"] = float(((precision[:, :k] * hits).sum(1) / hits.sum(1).clamp_min(1)).mean())
    votes = count_votes(found, n_classes) / found.shape[1]
    return Outcome(votes.cpu().numpy(), found[:, 0].cpu().numpy(), {"ranks": possible}), scores


def prototype(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    *,
    n_classes: int,
    device: str = "cpu",
    memory: int = 2**26,
) -> Outcome:
    """Centre by the train mean, scale to unit length, average each class; softmax(-L2 distance).

    The prototypes themselves are not scaled again. A class without training images gets probability 0.
    """
    train, train_labels, test = train.to(device), train_labels.to(device), test.to(device)
    centring = Centring.of(train)
    d = train.shape[1]
    sums = torch.zeros(n_classes, d, dtype=torch.float64, device=train.device)
    for part in row_chunks(len(train), 24 * d, memory):
        rows, labels = centring.apply(train[part]), train_labels[part]
        if rows.is_cuda:  # where `index_add_` adds in another order each time
            sums += torch.nn.functional.one_hot(labels, n_classes).to(rows.dtype).T @ rows
        else:
            sums.index_add_(0, labels, rows)
    counts = torch.bincount(train_labels, minlength=n_classes)
    prototypes = sums / counts.clamp_min(1)[:, None]
    parts = row_chunks(len(test), 24 * d, memory)
    distances = torch.cat([distances_to(centring.apply(test[part]), prototypes) for part in parts])
    distances[:, counts == 0] = torch.inf
    probabilities = torch.softmax(-distances, dim=1)
    info = {"n_train": len(train), "absent_from_train": torch.nonzero(counts == 0).flatten().tolist()}
    return Outcome(probabilities.cpu().numpy(), distances.argmin(1).cpu().numpy(), info)


def distances_to(queries: Tensor, prototypes: Tensor) -> Tensor:
    """L2 distances [n, c] between float64 rows."""
    squared = queries.square().sum(1)[:, None] - 2 * queries @ prototypes.T + prototypes.square().sum(1)
    return squared.clamp_min(0).sqrt()
