"""Retrieval: which training images come back for a test image."""

from __future__ import annotations

import torch
from torch import Tensor

from histobench.roi.protocols.centring import Centring
from histobench.roi.protocols.knn import count_votes
from histobench.roi.protocols.neighbours import nearest
from histobench.roi.protocols.outcome import Outcome

RANKS = (1, 3, 5, 10)


def retrieval(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    n_classes: int,
    ranks: tuple[int, ...] = RANKS,
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
    possible = [k for k in ranks if k <= len(train)] or [1]
    found = y[nearest(x, test.to(device), k=possible[-1], centring=Centring.of(x), ranked=True).index]
    relevant = (found == truth[:, None]).double()
    precision = relevant.cumsum(1) / torch.arange(1, relevant.shape[1] + 1, device=relevant.device)
    scores: dict[str, float] = {}
    for k in possible:
        hits = relevant[:, :k]
        scores[f"acc_at_{k}"] = float(hits.amax(1).mean())
        scores[f"mv_at_{k}"] = float(
            (count_votes(found[:, :k], n_classes).argmax(1) == truth).double().mean()
        )
        average = (precision[:, :k] * hits).sum(1) / hits.sum(1).clamp_min(1)
        scores[f"map_at_{k}"] = float(average.mean())
    votes = count_votes(found, n_classes) / found.shape[1]
    outcome = Outcome(votes.cpu().numpy(), found[:, 0].cpu().numpy(), {"ranks": possible})
    return outcome, scores
