"""Attention-based multiple-instance learning: gated attention (arXiv 1802.04712) on standardized tiles as in
eva, trained as in Patho-Bench with dropout on the pooled bag; the epoch with the least held-out loss counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from histobench.roi.protocols.linear_probe import held_out
from histobench.roi.protocols.outcome import Outcome

HIDDEN = 128
DROPOUT = 0.25
LEARNING_RATE, LEAST_RATE = 3e-4, 1e-8
WEIGHT_DECAY = 1e-5
EPOCHS = 20
PATIENCE = 5  # epochs without a smaller loss on the held-out bags
TILES = 2048  # of a bag in one update
RUNS = 5
#: Tiles that are scored at a time; bags of any size go through in blocks.
BLOCK = 2048
#: Training features of up to this many bytes are kept on the device, larger ones stay in memory.
RESIDENT_BYTES = 16 * 2**30


@dataclass(frozen=True)
class Bags:
    """Tiles with the bag of each; bags are numbered from 0 and every bag has a tile."""

    tiles: Tensor  # [n, d] float32
    bag_of: NDArray[np.int64]  # [n]
    labels: NDArray[np.int64]  # [bags]

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self) -> list[NDArray[np.int64]]:
        order = np.argsort(self.bag_of, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.bag_of, minlength=len(self)))[:-1])


class GatedAttention(nn.Module):
    """`runs` networks side by side, each with its own parameters (first dimension)."""

    def __init__(self, dimension: int, n_classes: int, *, runs: int = 1, seed: int = 0) -> None:
        super().__init__()
        generators = [torch.Generator().manual_seed(seed + run) for run in range(runs)]

        def drawn(fan_in: int, *shape: int) -> nn.Parameter:
            bound = fan_in**-0.5
            each = [torch.empty(shape).uniform_(-bound, bound, generator=g) for g in generators]
            return nn.Parameter(torch.stack(each))

        self.tanh_weight = drawn(dimension, dimension, HIDDEN)
        self.tanh_bias = drawn(dimension, 1, HIDDEN)
        self.gate_weight = drawn(dimension, dimension, HIDDEN)
        self.gate_bias = drawn(dimension, 1, HIDDEN)
        self.score_weight = drawn(HIDDEN, HIDDEN, 1)
        self.class_weight = drawn(dimension, dimension, n_classes)
        self.class_bias = drawn(dimension, 1, n_classes)

    def scores(self, tiles: Tensor) -> Tensor:
        """Attention before the softmax [runs, k] of standardized tiles [k, d] or [runs, k, d]."""
        hidden = torch.tanh(tiles @ self.tanh_weight + self.tanh_bias)
        gate = torch.sigmoid(tiles @ self.gate_weight + self.gate_bias)
        return ((hidden * gate) @ self.score_weight).squeeze(-1)

    def logits(self, bags: Tensor) -> Tensor:
        """Class scores [runs, b, c] of pooled bags [runs, b, d]."""
        return bags @ self.class_weight + self.class_bias

    def forward(self, tiles: Tensor, is_tile: Tensor, keep: Tensor) -> Tensor:
        """Class scores [runs, c] of one padded bag per run [runs, k, d]; `keep` [runs, 1, d] is dropout."""
        attention = self.scores(tiles).masked_fill(~is_tile, -torch.inf).softmax(dim=1)
        return self.logits(attention.unsqueeze(1) @ tiles * keep).squeeze(1)

    @torch.inference_mode()
    def predict(self, bags: Bags, scaling: Scaling, device: str) -> tuple[Tensor, Tensor]:
        """Class scores [runs, bags, c] and attention [runs, n], block by block with a running softmax."""
        runs, dimension = self.class_bias.shape[0], bags.tiles.shape[1]
        top = torch.full((runs, len(bags)), -torch.inf, device=device)
        total = torch.zeros(runs, len(bags), device=device)
        pooled = torch.zeros(runs, len(bags), dimension, device=device)
        scores = torch.empty(runs, len(bags.tiles))
        order = torch.from_numpy(np.argsort(bags.bag_of, kind="stable"))
        bag_of = torch.from_numpy(bags.bag_of)
        for rows in order.split(BLOCK):
            tiles = scaling.apply(bags.tiles[rows].to(device))
            here, local = bag_of[rows].unique_consecutive(return_inverse=True)
            here, local = here.to(device), local.to(device)
            member = local == torch.arange(len(here), device=device)[:, None]
            score = self.scores(tiles)
            by_bag = score[:, None, :].masked_fill(~member, -torch.inf)  # [runs, bags here, k]
            new = torch.maximum(top[:, here], by_bag.amax(dim=2))
            shrink = (top[:, here] - new).exp()
            weight = (by_bag - new[:, :, None]).exp()
            total[:, here] = total[:, here] * shrink + weight.sum(dim=2)
            pooled[:, here] = pooled[:, here] * shrink[:, :, None] + weight @ tiles
            top[:, here] = new
            scores[:, rows] = score.cpu()
        attention = (scores - top.cpu()[:, bag_of]).exp() / total.cpu()[:, bag_of]
        return self.logits(pooled / total[:, :, None]), attention


@dataclass(frozen=True)
class Scaling:
    """Mean and spread of the training tiles [d]."""

    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, tiles: Tensor, device: str) -> Scaling:
        """A dimension that does not vary is left as it is."""
        mean = torch.zeros(tiles.shape[1], dtype=torch.float64)
        for block in tiles.split(65_536):
            mean += block.sum(dim=0, dtype=torch.float64)
        mean /= len(tiles)
        square = torch.zeros_like(mean)
        for block in tiles.split(65_536):
            square += (block.double() - mean).square().sum(dim=0)
        spread = (square / len(tiles)).sqrt()
        spread[spread < 1e-12 * (1 + mean.abs())] = 1.0
        return cls(mean.float().to(device), spread.float().to(device))

    def apply(self, tiles: Tensor) -> Tensor:
        return (tiles - self.mean) / self.spread


@dataclass(frozen=True)
class MilOutcome:
    """What every run says about the test bags, and the mean attention of the runs on their tiles."""

    runs: list[Outcome]
    attention: NDArray[np.float64]  # [n] of the test tiles; the tiles of a bag sum to one


def attention_mil(
    train: Bags,
    test: Bags,
    *,
    n_classes: int,
    val: Bags | None = None,
    runs: int = RUNS,
    seed: int = 0,
    device: str = "cpu",
) -> MilOutcome:
    """Train networks, each with another held-out fifth unless there is `val`; apply them to the test bags."""
    present, local = np.unique(train.labels, return_inverse=True)
    if len(present) == 1:
        sizes = np.bincount(test.bag_of, minlength=len(test))
        certain = Outcome(np.eye(n_classes)[np.full(len(test), present[0])], np.full(len(test), present[0]))
        return MilOutcome([certain] * runs, 1.0 / sizes[test.bag_of])
    resident = train.tiles.numel() * train.tiles.element_size() <= RESIDENT_BYTES
    scaling = Scaling.of(train.tiles, device)
    tiles = train.tiles.to(device) if resident else train.tiles
    train = Bags(tiles, train.bag_of, local)
    network = GatedAttention(tiles.shape[1], len(present), runs=runs, seed=seed).to(device)
    if val is not None:
        known = np.isin(val.labels, present)
        fit = [np.arange(len(train))] * runs
        chosen = _some_bags(val, np.flatnonzero(known))
        chosen = Bags(chosen.tiles, chosen.bag_of, np.searchsorted(present, chosen.labels))
        rest = [np.arange(len(chosen))] * runs
    else:
        chosen = train
        fit, rest = map(list, zip(*(held_out(local, seed=seed + run) for run in range(runs)), strict=True))
    info = _train(network, train, chosen, fit, rest, scaling, seed=seed, device=device)
    logits, attention = network.predict(test, scaling, device)
    columns = logits.cpu().double().softmax(dim=2).numpy()
    found = []
    for run in range(runs):
        probabilities = np.zeros((len(test), n_classes))
        probabilities[:, present] = columns[run]
        found.append(Outcome(probabilities, probabilities.argmax(1), info[run]))
    return MilOutcome(found, attention.double().mean(dim=0).numpy())


def _train(
    network: GatedAttention,
    train: Bags,
    chosen: Bags,
    fit: list[NDArray[np.int64]],
    rest: list[NDArray[np.int64]],
    scaling: Scaling,
    *,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Train all runs on their bags `fit`, and choose the epoch of each by its bags `rest` of `chosen`."""
    runs, steps = len(fit), len(fit[0])
    rows = train.rows()
    labels = torch.from_numpy(train.labels).to(device)
    n_classes = network.class_bias.shape[2]
    weights = torch.stack([_balanced(train.labels[bags], n_classes) for bags in fit]).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * steps, eta_min=LEAST_RATE)
    draws = [np.random.default_rng([seed, run]) for run in range(runs)]
    best = {name: value.detach().clone() for name, value in network.named_parameters()}
    least, best_epoch = np.full(runs, np.inf), np.zeros(runs, dtype=np.int64)
    used = np.unique(np.concatenate(rest))
    held_out_rows = [torch.from_numpy(np.searchsorted(used, bags)) for bags in rest]
    judged = _some_bags(chosen, used), held_out_rows, weights.cpu().double(), scaling, device
    each = torch.arange(runs, device=device)
    for epoch in range(1, EPOCHS + 1):
        network.train()
        orders = [draw.permutation(bags) for draw, bags in zip(draws, fit, strict=True)]
        for bags in zip(*orders, strict=True):
            drawn = [
                rows[bag] if len(rows[bag]) <= TILES else draw.choice(rows[bag], TILES, replace=False)
                for bag, draw in zip(bags, draws, strict=True)
            ]
            tiles, is_tile = _padded(train.tiles, drawn, scaling, device)
            keep = np.stack([draw.random((1, tiles.shape[2])) >= DROPOUT for draw in draws])
            mask = torch.from_numpy(keep).to(device) / (1 - DROPOUT)
            truth = labels[torch.from_numpy(np.array(bags)).to(device)]
            said = network(tiles, is_tile, mask.float()).log_softmax(dim=1)
            loss = -(weights[each, truth] * said[each, truth]).sum()  # a sum: runs stay independent
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        now = _held_out_losses(network, *judged)
        better = (now < least) & (epoch - best_epoch <= PATIENCE)
        flags = torch.from_numpy(better).to(device)
        for name, value in network.named_parameters():
            best[name] = torch.where(flags[:, None, None], value.detach(), best[name])
        least, best_epoch = np.where(better, now, least), np.where(better, epoch, best_epoch)
        if (epoch - best_epoch >= PATIENCE).all():
            break
    network.load_state_dict(best)
    return [
        {"epoch": int(best_epoch[run]), "held_out_loss": float(least[run]), "bags": len(fit[run])}
        for run in range(runs)
    ]


def _held_out_losses(
    network: GatedAttention, bags: Bags, rest: list[Tensor], weights: Tensor, scaling: Scaling, device: str
) -> NDArray[np.float64]:
    """The balanced log loss of every run on its bags `rest`, that it did not train on."""
    network.eval()
    said = network.predict(bags, scaling, device)[0].cpu().double().log_softmax(dim=2)
    losses = []
    for run, rows in enumerate(rest):
        truth = torch.from_numpy(bags.labels)[rows]
        weight = weights[run, truth]
        losses.append(float(-(weight * said[run, rows, truth]).sum() / weight.sum()))
    return np.array(losses)


def _some_bags(bags: Bags, kept: NDArray[np.int64]) -> Bags:
    if len(kept) == len(bags):
        return bags
    place = np.full(len(bags), -1)
    place[kept] = np.arange(len(kept))
    rows = np.flatnonzero(place[bags.bag_of] >= 0)
    tiles = bags.tiles[torch.from_numpy(rows).to(bags.tiles.device)]
    return Bags(tiles, place[bags.bag_of[rows]], bags.labels[kept])


def _padded(
    tiles: Tensor, drawn: list[NDArray[np.int64]], scaling: Scaling, device: str
) -> tuple[Tensor, Tensor]:
    longest = max(map(len, drawn))
    places = np.stack([np.pad(rows, (0, longest - len(rows)), mode="edge") for rows in drawn])
    sizes = torch.tensor([len(rows) for rows in drawn])
    found = tiles[torch.from_numpy(places).to(tiles.device)].to(device)
    return scaling.apply(found), (torch.arange(longest) < sizes[:, None]).to(device)


def _balanced(labels: NDArray[np.int64], n_classes: int) -> Tensor:
    """Weights by which all classes count the same, 1 on average."""
    counts = np.bincount(labels, minlength=n_classes)
    return torch.from_numpy(len(labels) / (n_classes * np.maximum(counts, 1))).float()
