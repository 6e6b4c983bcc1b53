"""Few-shot (SimpleShot): nearest support mean, all episodes of a setting through one matrix product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.roi.metrics.batched import evaluate_episodes
from histobench.roi.protocols.centring import SMALLEST_NORM, Centring, row_chunks
from histobench.roi.protocols.episode_sampler import Episodes, EpisodeSampler
from histobench.roi.protocols.outcome import Outcome

MEMORY = 2**26


@dataclass(frozen=True)
class FewShotSetting:
    """All episodes of one way and shot.

    `outcome.probabilities` are means over the episodes that the image's class took part in (0 for the classes
    outside of an episode); a row is NaN, and its prediction -1, where there was no such episode.
    """

    way: int
    shot: int
    outcome: Outcome
    episode_metrics: dict[str, NDArray[np.float64]]  # [E] each
    episodes_per_image: NDArray[np.int64]  # [n]
    episodes: Episodes
    votes: NDArray[np.int16]  # [n, E] class ids; -1 where the image's class was not in the episode
    probabilities: NDArray[np.float32] | None = None  # [n, E, way] where they were asked for

    @property
    def name(self) -> str:
        """As in the file names: `5way_16shot`."""
        return f"{self.way}way_{self.shot}shot"


@dataclass(frozen=True)
class FewShotResult:
    """The settings that could be run, and warnings that name the others."""

    settings: list[FewShotSetting]
    warnings: list[str] = field(default_factory=list)


def few_shot(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    n_classes: int,
    n_iter: int = 100,
    n_way: Sequence[int] = (2, 3, 4, 5, 6, 7, 8, 9, 10),
    n_shot: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256),
    use_all_way: bool = True,
    seed: int = 0,
    device: str = "cpu",
    memory: int = MEMORY,
) -> FewShotResult:
    """Run every setting; impossible ways and shots are left out with a warning that names them."""
    sampler = EpisodeSampler(train_labels.cpu().numpy(), seed=seed)
    ways, shots, warnings = possible_settings(sampler, n_way, n_shot, use_all_way=use_all_way)
    settings = few_shot_settings(
        train,
        train_labels,
        test,
        test_labels,
        n_classes=n_classes,
        ways=ways,
        shots=shots,
        n_iter=n_iter,
        seed=seed,
        device=device,
        memory=memory,
    )
    return FewShotResult(list(settings), warnings)


def few_shot_settings(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    n_classes: int,
    ways: Sequence[int],
    shots: Sequence[int],
    n_iter: int = 100,
    seed: int = 0,
    device: str = "cpu",
    memory: int = MEMORY,
    keep_probabilities: bool = False,
) -> Iterator[FewShotSetting]:
    """The settings of possible ways and shots, one at a time."""
    sampler = EpisodeSampler(train_labels.cpu().numpy(), seed=seed)
    queries = Queries.of(train, test, test_labels, device=device)
    for way in ways:
        for shot in shots:
            episodes = sampler.draw(way=way, shot=shot, n_iter=n_iter)
            yield queries.run(
                episodes, n_classes=n_classes, memory=memory, keep_probabilities=keep_probabilities
            )


def possible_settings(
    sampler: EpisodeSampler, n_way: Sequence[int], n_shot: Sequence[int], *, use_all_way: bool
) -> tuple[list[int], list[int], list[str]]:
    """The ways and shots that this training set allows, ascending, and a warning for each kind left out."""
    count = len(sampler.classes)
    asked = set(n_way) | ({count} if use_all_way else set())
    ways = sorted(way for way in asked if 2 <= way <= count)
    shots = sorted({shot for shot in n_shot if 1 <= shot <= sampler.smallest})
    warnings = []
    if wrong := sorted(asked - set(ways)):
        warnings.append(f"few-shot ways {_listed(wrong)} left out: the training set has {count} classes")
    if wrong := sorted(set(n_shot) - set(shots)):
        warnings.append(
            f"few-shot shots {_listed(wrong)} left out: the smallest class has {sampler.smallest} images"
        )
    return ways, shots, warnings


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)


@dataclass(frozen=True)
class Queries:
    """Test features prepared for any number of episodes.

    Everything is shifted by the mean of the training set: distances do not change, and the products below
    lose no digits to a large common offset.
    """

    train: Tensor  # [m, d], as given
    shift: Centring
    features: Tensor  # [n, d] float64, shifted
    squares: Tensor  # [n] squared lengths
    labels: Tensor  # [n]

    @classmethod
    def of(cls, train: Tensor, test: Tensor, test_labels: Tensor, *, device: str = "cpu") -> Queries:
        """Move to the device and shift."""
        train = train.to(device)
        shift = Centring.of(train)
        features = test.to(device).double() - shift.mean
        return cls(train, shift, features, features.square().sum(1), test_labels.to(device))

    def run(
        self, episodes: Episodes, *, n_classes: int, memory: int = MEMORY, keep_probabilities: bool = False
    ) -> FewShotSetting:
        """Score every test image of an episode's classes, in every episode."""
        n, d = self.features.shape
        way, shot = episodes.classes.shape[1], episodes.supports.shape[2]
        device = self.features.device
        total = torch.zeros(n_classes, n, dtype=torch.float64, device=device)
        taken = torch.zeros(n, dtype=torch.long, device=device)
        votes = torch.full((n, len(episodes)), -1, dtype=torch.int16)
        kept = torch.full((n, len(episodes), way), torch.nan) if keep_probabilities else None
        parts: list[dict[str, NDArray[np.float64]]] = []
        for part in row_chunks(len(episodes), 8 * (way + 1) * (d + 4 * n), memory):
            classes = torch.from_numpy(episodes.classes[part]).to(device)
            rows, labels = self._members(classes)
            # Rounded as everybody's float32 pipelines round: scores that these cannot tell apart are ties.
            distances = self._distances(episodes.supports[part], rows).float()
            probabilities = torch.softmax(distances.neg_(), dim=1)  # [E, way, q]
            parts.append(evaluate_episodes(probabilities.transpose(1, 2), labels, memory=memory))
            _add(total, taken, probabilities, rows, labels, classes)
            top = classes.gather(1, probabilities.max(1).indices)  # [E, q] class ids
            _scatter(votes[:, part], top.to(torch.int16), rows, labels)
            if kept is not None:
                _scatter(kept[:, part], probabilities.transpose(1, 2), rows, labels)
        metrics = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        scored = taken > 0
        mean = torch.where(scored, total / taken.clamp_min(1), torch.nan).T.contiguous()
        predicted = torch.where(scored, total.argmax(0), -1)
        info = {"way": way, "shot": shot, "n_iter": len(episodes)}
        outcome = Outcome(mean.cpu().numpy(), predicted.cpu().numpy(), info)
        return FewShotSetting(
            way,
            shot,
            outcome,
            metrics,
            taken.cpu().numpy(),
            episodes,
            votes.numpy(),
            None if kept is None else kept.numpy(),
        )

    def _members(self, classes: Tensor) -> tuple[Tensor | None, Tensor]:
        """Test rows of each episode [E, q] (None: all rows) and their labels within it (-1: filling)."""
        size = 1 + max(int(self.labels.max()), int(classes.max()))
        position = torch.full((len(classes), size), -1, device=classes.device)
        position.scatter_(
            1, classes, torch.arange(classes.shape[1], device=classes.device).expand(classes.shape)
        )
        local = position[:, self.labels]  # [E, n]
        if bool((local >= 0).all()):
            return None, local
        size = int((local >= 0).sum(1).max())
        rows = torch.argsort((local < 0).to(torch.int8), dim=1, stable=True)[:, :size]
        return rows, local.gather(1, rows)

    def _distances(self, supports: NDArray[np.int64], rows: Tensor | None) -> Tensor:
        """L2 distances [E, way, q] between the episode's unit queries and class means.

        With m the support mean and p a class mean of unit supports:
        ||(q - m)/|q - m| - p||^2 = 1 - 2 (q.p - m.p) / |q - m| + |p|^2  and
        |q - m|^2 = |q|^2 - 2 q.m + |m|^2,
        so the products of the queries with all m and p are all that is needed of them.
        """
        episodes, way, _ = supports.shape
        means, prototypes = self._support_means(supports)
        rays = torch.cat([prototypes.flatten(0, 1), means])
        products = rays @ self.features.T  # [E * way + E, n]
        along = products[: episodes * way].view(episodes, way, -1)
        beside = products[episodes * way :].mul_(-2).add_(self.squares)
        length = beside.add_(means.square().sum(1)[:, None]).clamp_min_(0).sqrt_()  # [E, n]
        at_mean = length <= SMALLEST_NORM
        if rows is not None:
            along = along.gather(2, rows[:, None].expand(-1, way, -1))
            length, at_mean = length.gather(1, rows), at_mean.gather(1, rows)
        offset = (prototypes * means[:, None]).sum(2)[..., None]  # [E, way, 1]
        size = prototypes.square().sum(2)[..., None]
        squared = along.sub_(offset).mul_((-2 / length.clamp_min_(SMALLEST_NORM))[:, None]).add_(1 + size)
        if bool(at_mean.any()):
            # A query that equals the support mean has no direction: it stays at the origin.
            squared = torch.where(at_mean[:, None], size, squared)
        return squared.clamp_min_(0).sqrt_()

    def _support_means(self, supports: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Means [E, d] of the supports and class means [E, way, d] of the centred unit supports."""
        episodes, way, shot = supports.shape
        d = self.features.shape[1]
        means = self.features.new_empty(episodes, d)
        prototypes = self.features.new_empty(episodes, way, d)
        index = torch.from_numpy(supports).to(self.features.device).flatten(1)
        x = self.features.new_empty(way * shot, d)
        ones = x.new_ones(way * shot)
        for e in range(episodes):
            x.copy_(self.train.index_select(0, index[e]))
            mean = (ones @ x).div_(way * shot)
            x -= mean
            scale = 1 / torch.linalg.vector_norm(x, dim=1).clamp_min_(SMALLEST_NORM)
            torch.bmm(scale.view(way, 1, shot).div_(shot), x.view(way, shot, d), out=prototypes[e][:, None])
            means[e] = mean - self.shift.mean
        return means, prototypes


def _add(
    total: Tensor, taken: Tensor, probabilities: Tensor, rows: Tensor | None, labels: Tensor, classes: Tensor
) -> None:
    """Add each image's probabilities to its column, in the rows of the episode's classes."""
    if rows is None:
        # Every episode has every image, and so the same classes.
        total[classes[0]] += probabilities.sum(0, dtype=torch.float64)
        taken += len(classes)
        return
    for e in range(len(classes)):
        counts = labels[e] >= 0
        mine = rows[e][counts]
        total[classes[e][:, None], mine] += probabilities[e][:, counts].double()
        taken[mine] += 1


def _scatter(table: Tensor, values: Tensor, rows: Tensor | None, labels: Tensor) -> None:
    """Put values [E, q, ...] of the episodes' images into a table [n, E, ...] of all images."""
    values = values.cpu()
    if rows is None:
        table.copy_(values.transpose(0, 1))
        return
    rows, counts = rows.cpu(), (labels >= 0).cpu()
    for e in range(len(values)):
        table[rows[e][counts[e]], e] = values[e][counts[e]]
