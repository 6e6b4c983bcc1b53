"""The `thunder` preset: nine heads, k chosen on validation, voted SimpleShot."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from histobench.roi.protocols.centering import SMALLEST_NORM, Centring
from histobench.roi.protocols.few_shot import Episodes, EpisodeSampler
from histobench.roi.protocols.knn import count_votes
from histobench.roi.protocols.neighbours import nearest
from histobench.roi.protocols.outcome import Outcome

HEADS = tuple((lr, decay) for lr in (1e-3, 1e-4, 1e-5) for decay in (0.0, 1e-3, 1e-4))
NEIGHBOURS = (1, 3, 5, 10, 20, 30, 40, 50)
SHOTS = (1, 2, 4, 8, 16)
MEMORY = 2**27


def nine_heads(
    train: Tensor,
    train_labels: Tensor,
    val: Tensor,
    val_labels: Tensor,
    test: Tensor,
    *,
    n_classes: int,
    epochs: int = 200,
    batch_size: int = 64,
    seed: int = 0,
    device: str = "cpu",
) -> Outcome:
    """Nine linear heads trained side by side with Adam; (head, epoch) by validation macro F1; tested once."""
    x, y, v = train.to(device), train_labels.to(device), val.to(device)
    weight, bias = _initial_heads(train.shape[1], n_classes, seed, device)
    rates = torch.tensor([lr for lr, _ in HEADS], device=device)
    optimiser = _Adam([weight, bias], rates, torch.tensor([decay for _, decay in HEADS], device=device))
    shuffle = torch.Generator().manual_seed(seed)
    best = (-1.0, 0, 0, weight[0].clone(), bias[0].clone())
    for epoch in range(1, epochs + 1):
        for rows in torch.randperm(len(x), generator=shuffle).to(device).split(batch_size):
            optimiser.step(_gradients(weight, bias, x[rows], y[rows]))
        scores = _macro_f1((v @ weight.transpose(1, 2) + bias[:, None]).argmax(2), val_labels, n_classes)
        head = int(np.argmax(scores))
        if scores[head] > best[0]:
            best = (scores[head], head, epoch, weight[head].clone(), bias[head].clone())
    f1, head, epoch, w, b = best
    probabilities = (test.to(device) @ w.T + b).double().softmax(1).cpu().numpy()
    rate, decay = HEADS[head]
    info = {"lr": rate, "weight_decay": decay, "epoch": epoch, "val_macro_f1": f1, "epochs": epochs}
    return Outcome(probabilities, probabilities.argmax(1), info)


def knn_chosen_on_val(
    train: Tensor,
    train_labels: Tensor,
    val: Tensor,
    val_labels: Tensor,
    test: Tensor,
    *,
    n_classes: int,
    device: str = "cpu",
) -> Outcome:
    """Cosine neighbours without centring, majority vote; k by validation F1, the smallest among equals."""
    x, y = train.to(device), train_labels.to(device)
    possible = [k for k in NEIGHBOURS if k <= len(train)]
    unit = Centring.none(x)
    near = nearest(x, val.to(device), k=possible[-1], centring=unit, ranked=True).index
    votes = [count_votes(y[near[:, :k]], n_classes).argmax(1) for k in possible]
    scores = _macro_f1(torch.stack(votes), val_labels, n_classes)
    k = possible[int(np.argmax(scores))]
    counts = count_votes(y[nearest(x, test.to(device), k=k, centring=unit).index], n_classes)
    by_k = {str(each): score for each, score in zip(possible, scores, strict=True)}
    info = {"n_neighbors": k, "val_macro_f1_by_k": by_k}
    return Outcome((counts / k).cpu().numpy(), counts.argmax(1).cpu().numpy(), info)


def voted_simple_shot(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    *,
    n_classes: int,
    shot: int,
    support_sets: int = 1000,
    seed: int = 0,
    device: str = "cpu",
) -> Outcome:
    """One answer per image from the majority of many support sets (an ensemble, not a mean over episodes).

    Supports keep their lengths in the average, unlike those of the `uni` recipe.
    """
    sampler = EpisodeSampler(train_labels.cpu().numpy(), seed=seed)
    episodes = sampler.draw(way=len(sampler.classes), shot=shot, n_iter=support_sets)
    x, q = train.to(device), test.to(device).double()
    votes = torch.zeros(len(test), n_classes, dtype=torch.float64, device=device)
    classes = torch.from_numpy(sampler.classes).to(device)
    for rays, offsets in _class_rays(x, episodes, len(test)):
        # The query's length divides all its cosines alike: the greatest product is the greatest cosine.
        products = (q @ rays.flatten(0, 1).T).view(len(q), *offsets.shape) - offsets
        winners = classes[products.argmax(2)]
        votes.scatter_add_(1, winners, torch.ones_like(winners, dtype=torch.float64))
    info = {"way": len(classes), "shot": shot, "support_sets": support_sets, "aggregation": "majority vote"}
    return Outcome((votes / support_sets).cpu().numpy(), votes.argmax(1).cpu().numpy(), info)


def _class_rays(train: Tensor, episodes: Episodes, queries: int) -> Iterator[tuple[Tensor, Tensor]]:
    _, way, shot = episodes.supports.shape
    step = max(1, MEMORY // (8 * way * (shot * train.shape[1] + queries)))
    for start in range(0, len(episodes), step):
        rows = torch.from_numpy(episodes.supports[start : start + step]).to(train.device)
        supports = train[rows].double()  # [E, way, shot, d]
        mean = supports.mean((1, 2))
        rays = supports.mean(2) - mean[:, None]
        rays /= rays.norm(dim=2, keepdim=True).clamp_min(SMALLEST_NORM)
        yield rays, (rays * mean[:, None]).sum(2)


def _initial_heads(d: int, n_classes: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """`nn.Linear`'s own initialisation, the same for every head's first number on any device."""
    generator = torch.Generator().manual_seed(seed)
    bound = d**-0.5
    weight = torch.empty(len(HEADS), n_classes, d).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(len(HEADS), n_classes).uniform_(-bound, bound, generator=generator)
    return weight.to(device), bias.to(device)


def _gradients(weight: Tensor, bias: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    error = (x @ weight.transpose(1, 2) + bias[:, None]).softmax(2)  # [heads, b, c]
    error[:, torch.arange(len(x), device=x.device), y] -= 1
    error /= len(x)
    return [error.transpose(1, 2) @ x, error.sum(1)]


class _Adam:
    """Adam for a stack of heads, each with its own rate and (L2) decay; betas 0.9 and 0.999, epsilon 1e-8."""

    def __init__(self, parameters: list[Tensor], rates: Tensor, decays: Tensor) -> None:
        self.parameters, self.rates, self.decays, self.steps = parameters, rates, decays, 0
        self.first = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters]

    def step(self, gradients: list[Tensor]) -> None:
        self.steps += 1
        scale = (1 - 0.999**self.steps) ** 0.5
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            shape = (-1, *[1] * (p.ndim - 1))
            g = g + self.decays.view(shape) * p
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            p -= self.rates.view(shape) / (1 - 0.9**self.steps) * m / (v.sqrt() / scale + 1e-8)


def _macro_f1(predicted: Tensor, labels: Tensor, n_classes: int) -> list[float]:
    truth = torch.nn.functional.one_hot(labels.to(predicted.device), n_classes).double()
    said = torch.nn.functional.one_hot(predicted, n_classes).double()
    hits = (said * truth).sum(1)
    total = said.sum(1) + truth.sum(0)
    occurs = total > 0
    return (torch.where(occurs, 2 * hits / total.clamp_min(1), 0.0).sum(1) / occurs.sum(1)).tolist()
