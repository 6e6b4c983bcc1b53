"""K nearest neighbours: uniform votes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from histobench.roi.protocols.centring import Centring
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
    """Centre by the train mean, scale to unit length; probabilities = vote fractions of the k nearest."""
    train, train_labels, test = train.to(device), train_labels.to(device), test.to(device)
    neighbours = nearest(train, test, k=n_neighbors, centring=Centring.of(train), memory=memory)
    votes = count_votes(train_labels[neighbours.index], n_classes)
    info: dict[str, Any] = {
        "n_neighbors": n_neighbors,
        "n_train": len(train),
        "rechecked_pairs": neighbours.rechecked,
    }
    smallest = int(torch.unique(train_labels, return_counts=True)[1].min())
    if n_neighbors >= 2 * smallest:
        info["warnings"] = [
            f"{n_neighbors} neighbours vote, but the smallest class has {smallest} training images and can "
            f"hardly win a vote; try n_neighbors {max(1, smallest // 2)}"
        ]
    return Outcome((votes / n_neighbors).cpu().numpy(), votes.argmax(1).cpu().numpy(), info)


def count_votes(labels: Tensor, n_classes: int) -> Tensor:
    """Votes [n, c] of neighbour labels [n, k], as float64."""
    votes = torch.zeros(len(labels), n_classes, dtype=torch.float64, device=labels.device)
    return votes.scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.float64))
