"""Prototypes: the nearest class mean of centred unit features."""

from __future__ import annotations

import torch
from torch import Tensor

from histobench.roi.protocols.centring import Centring, row_chunks
from histobench.roi.protocols.outcome import Outcome

MEMORY = 2**26


def prototype(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    *,
    n_classes: int,
    device: str = "cpu",
    memory: int = MEMORY,
) -> Outcome:
    """Centre by the train mean, scale to unit length, average each class; softmax(-L2 distance).

    The prototypes themselves are not scaled again. A class without training images gets probability 0.
    """
    train, train_labels, test = train.to(device), train_labels.to(device), test.to(device)
    centring = Centring.of(train)
    d = train.shape[1]
    sums = torch.zeros(n_classes, d, dtype=torch.float64, device=train.device)
    for part in row_chunks(len(train), 24 * d, memory):
        sums.index_add_(0, train_labels[part], centring.apply(train[part]))
    counts = torch.bincount(train_labels, minlength=n_classes)
    prototypes = sums / counts.clamp_min(1)[:, None]
    distances = torch.cat(
        [
            distances_to(centring.apply(test[part]), prototypes)
            for part in row_chunks(len(test), 24 * d, memory)
        ]
    )
    distances[:, counts == 0] = torch.inf
    probabilities = torch.softmax(-distances, dim=1)
    info = {"n_train": len(train), "absent_from_train": torch.nonzero(counts == 0).flatten().tolist()}
    return Outcome(probabilities.cpu().numpy(), distances.argmin(1).cpu().numpy(), info)


def distances_to(queries: Tensor, prototypes: Tensor) -> Tensor:
    """L2 distances [n, c] between float64 rows."""
    squared = queries.square().sum(1)[:, None] - 2 * queries @ prototypes.T + prototypes.square().sum(1)
    return squared.clamp_min(0).sqrt()
