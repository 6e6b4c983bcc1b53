"""Few-shot (SimpleShot): nearest support mean, many episodes through one matrix product per class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.core.threads import spread
from histobench.roi.metrics.batched import evaluate_episodes
from histobench.roi.protocols.centring import SMALLEST_NORM, Centring, row_chunks
from histobench.roi.protocols.episode_sampler import Episodes, EpisodeSampler, Ints, possible_settings
from histobench.roi.protocols.outcome import Outcome

MEMORY = 2**26
_EPISODES = 10  # at most, that one thread scores at a time


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
    ways, shots, warnings = possible_settings(
        len(sampler.classes), sampler.smallest, n_way, n_shot, use_all_way=use_all_way
    )
    settings = few_shot_settings(
        train,
        train_labels,
        test,
        test_labels,
        n_classes=n_classes,
        settings=list(product(ways, shots)),
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
    settings: Sequence[tuple[int, int]],
    n_iter: int = 100,
    seed: int = 0,
    device: str = "cpu",
    memory: int = MEMORY,
    keep_probabilities: bool = False,
) -> Iterator[FewShotSetting]:
    """Possible settings (way, shot), one at a time; none depends on which others there are."""
    sampler = EpisodeSampler(train_labels.cpu().numpy(), seed=seed)
    queries = Queries.of(train, test, test_labels, device=device)
    for way, shot in settings:
        episodes = sampler.draw(way=way, shot=shot, n_iter=n_iter)
        yield queries.run(episodes, n_classes=n_classes, memory=memory, keep_probabilities=keep_probabilities)


@dataclass(frozen=True)
class _Part:
    """What some of the episodes of a setting said, with the test images sorted by class."""

    metrics: dict[str, NDArray[np.float64]]  # [E] each
    total: Tensor  # [n_classes, n] sums of probabilities over the episodes
    taken: Tensor  # [n] episodes with the image's class
    votes: Tensor  # [E, n]
    kept: Tensor | None  # [E, way, n]


@dataclass(frozen=True)
class Queries:
    """Test features prepared for any number of episodes.

    Everything is shifted by the mean of the training set: distances do not change, and the products below
    lose no digits to a large common offset. Test images are sorted by class, so that those of an episode are
    a few runs of rows.
    """

    train: Tensor  # [m, d], as given
    shift: Centring
    features: Tensor  # [n, d] float64, shifted
    squares: Tensor  # [n] squared lengths
    order: Tensor  # [n] where each row was among the test images
    runs: dict[int, slice]  # the rows of each class

    @classmethod
    def of(cls, train: Tensor, test: Tensor, test_labels: Tensor, *, device: str = "cpu") -> Queries:
        """Move to the device, shift and sort."""
        train = train.to(device)
        shift = Centring.of(train)
        labels, order = torch.sort(test_labels, stable=True)
        present, counts = torch.unique_consecutive(labels, return_counts=True)
        ends = counts.cumsum(0)
        runs = {
            int(label): slice(int(end - count), int(end))
            for label, count, end in zip(present, counts, ends, strict=True)
        }
        order = order.to(device)
        features = test.to(device)[order].double() - shift.mean
        return cls(train, shift, features, features.square().sum(1), order, runs)

    def run(
        self, episodes: Episodes, *, n_classes: int, memory: int = MEMORY, keep_probabilities: bool = False
    ) -> FewShotSetting:
        """Score every test image of an episode's classes, in every episode."""
        n, d = self.features.shape
        way, shot = episodes.classes.shape[1], episodes.supports.shape[2]
        parts = []
        for chunk in row_chunks(len(episodes), 8 * (way + 1) * (d + n), memory):
            parts += self._run_chunk(episodes[chunk], n_classes, memory, keep_probabilities)
        metrics = {name: np.concatenate([p.metrics[name] for p in parts]) for name in parts[0].metrics}
        back = torch.argsort(self.order)
        # In the order of the parts, so that the sums do not depend on the threads.
        total = torch.stack([p.total for p in parts]).sum(0)[:, back]
        taken = torch.stack([p.taken for p in parts]).sum(0)[back]
        votes = torch.cat([p.votes for p in parts])[:, back].T.contiguous()
        scored = taken > 0
        mean = torch.where(scored, total / taken.clamp_min(1), torch.nan).T.contiguous()
        predicted = torch.where(scored, total.T.contiguous().argmax(1), -1)
        info = {"way": way, "shot": shot, "n_iter": len(episodes)}
        outcome = Outcome(mean.cpu().numpy(), predicted.cpu().numpy(), info)
        kept = [p.kept for p in parts if p.kept is not None]
        probabilities = torch.cat(kept)[:, :, back].permute(2, 0, 1).contiguous() if kept else None
        return FewShotSetting(
            way,
            shot,
            outcome,
            metrics,
            taken.cpu().numpy(),
            episodes,
            votes.cpu().numpy(),
            None if probabilities is None else probabilities.cpu().numpy(),
        )

    def _run_chunk(self, episodes: Episodes, n_classes: int, memory: int, keep: bool) -> list[_Part]:
        """Score some episodes: large products for all of them, then a few at a time."""
        device = str(self.features.device)
        way = episodes.classes.shape[1]
        # The same parts whatever the number of threads, and enough of them to keep all threads at work.
        each = 8 * (way + 1) * 4 * len(self.features)
        groups = list(row_chunks(len(episodes), each, min(memory, _EPISODES * each)))
        means = spread(lambda part: self._support_means(episodes.supports[part]), groups, device=device)
        rays = torch.cat(means)  # [E, way + 1, d]
        labels = list(self.runs)
        products = spread(lambda label: self._table(rays, episodes, label), labels, device=device)
        tables = dict(zip(labels, products, strict=True))

        def score(part: slice) -> _Part:
            some = episodes[part]
            places = [self._places(classes) for classes in some.classes.tolist()]
            distances = self._distances(rays[part], *self._products(tables, some, places, part.start))
            return self._part(some, places, distances, n_classes, memory, keep)

        return spread(score, groups, device=device)

    def _table(self, rays: Tensor, episodes: Episodes, label: int) -> tuple[Ints, Tensor]:
        """Products [E', way + 1, r] of a class's r queries with the rays of the episodes that have it.

        The first of the pair [E] tells which of the E' an episode is.
        """
        mine = (episodes.classes == label).any(1)
        some = rays if mine.all() else rays[torch.from_numpy(mine).to(rays.device)]
        queries = self.features[self.runs[label]]
        products = some.view(-1, rays.shape[2]) @ queries.T
        return np.cumsum(mine) - 1, products.view(len(some), rays.shape[1], len(queries))

    def _part(
        self,
        episodes: Episodes,
        places: list[list[tuple[int, slice, slice]]],
        distances: Tensor,
        n_classes: int,
        memory: int,
        keep: bool,
    ) -> _Part:
        n, count = len(self.features), len(episodes)
        device = self.features.device
        # Rounded as everybody's float32 pipelines round: scores that these cannot tell apart are ties.
        distances = distances.float()
        probabilities = torch.softmax(distances.neg_(), dim=1)  # [E, way, q]
        labels = torch.full((count, probabilities.shape[2]), -1, device=device)
        for e, runs in enumerate(places):
            for k, _, columns in runs:
                labels[e, columns] = k
        metrics = evaluate_episodes(probabilities.transpose(1, 2), labels, memory=memory)
        total = torch.zeros(n_classes, n, dtype=torch.float64, device=device)
        taken = torch.zeros(n, dtype=torch.long, device=device)
        classes = torch.from_numpy(episodes.classes).to(device)
        top = classes.gather(1, probabilities.max(1).indices).to(torch.int16)  # [E, q] class ids
        votes = torch.full((count, n), -1, dtype=torch.int16, device=device)
        kept = torch.full((count, classes.shape[1], n), torch.nan, device=device) if keep else None
        # Together where all have the same classes.
        alike = [slice(None)] if episodes.alike else [slice(e, e + 1) for e in range(count)]
        for some, runs in zip(alike, places, strict=False):
            for _, rows, columns in runs:
                said = probabilities[some, :, columns]
                total[classes[some][0], rows] += said.sum(0, dtype=torch.float64)
                taken[rows] += len(said)
                votes[some, rows] = top[some, columns]
                if kept is not None:
                    kept[some, :, rows] = said
        return _Part(metrics, total, taken, votes, kept)

    def _places(self, classes: list[int]) -> list[tuple[int, slice, slice]]:
        """For each class of an episode that has test images: its number in it, their rows and columns."""
        found = []
        start = 0
        for k, label in enumerate(classes):
            rows = self.runs.get(label)
            if rows is not None:
                end = start + rows.stop - rows.start
                found.append((k, rows, slice(start, end)))
                start = end
        return found

    def _distances(self, rays: Tensor, products: Tensor, squares: Tensor) -> Tensor:
        """L2 distances [E, way, q] between the episode's unit queries and class means.

        With m the support mean and p a class mean of unit supports:
        ||(q - m)/|q - m| - p||^2 = 1 - 2 (q.p - m.p) / |q - m| + |p|^2  and
        |q - m|^2 = |q|^2 - 2 q.m + |m|^2,
        so the products of the queries with all m and p are all that is needed of them. Columns beyond an
        episode's queries are filled with zeros.
        """
        prototypes, means = rays[:, :-1], rays[:, -1]
        along = products[:, :-1]
        beside = products[:, -1].mul_(-2).add_(squares)
        length = beside.add_(means.square().sum(1)[:, None]).clamp_min_(0).sqrt_()  # [E, q]
        at_mean = length <= SMALLEST_NORM
        offset = (prototypes * means[:, None]).sum(2)[..., None]  # [E, way, 1]
        size = prototypes.square().sum(2)[..., None]
        squared = along.sub_(offset).mul_((-2 / length.clamp_min_(SMALLEST_NORM))[:, None]).add_(1 + size)
        if bool(at_mean.any()):
            # A query that equals the support mean has no direction: it stays at the origin.
            squared = torch.where(at_mean[:, None], size, squared)
        return squared.clamp_min_(0).sqrt_()

    def _products(
        self,
        tables: dict[int, tuple[Ints, Tensor]],
        episodes: Episodes,
        places: list[list[tuple[int, slice, slice]]],
        first: int,
    ) -> tuple[Tensor, Tensor]:
        """Products [E, way + 1, q] of rays with the queries of their episodes, and squared lengths [E, q]."""
        count, way = episodes.classes.shape
        if episodes.alike and places[0]:
            # Queries side by side: all episodes have them in the same order.
            found = [tables[label] for label in episodes.classes[0].tolist() if label in tables]
            together = [table[which[first] : which[first] + count] for which, table in found]
            squares = torch.cat([self.squares[rows] for _, rows, _ in places[0]])
            return torch.cat(together, 2), squares.expand(count, -1)
        most = max((runs[-1][2].stop if runs else 0) for runs in places)
        products = self.features.new_zeros(count, way + 1, most)
        squares = self.features.new_zeros(count, most)
        for e, runs in enumerate(places):
            for k, rows, columns in runs:
                which, table = tables[int(episodes.classes[e, k])]
                products[e, :, columns] = table[which[first + e]]
                squares[e, columns] = self.squares[rows]
        return products, squares

    def _support_means(self, supports: Ints) -> Tensor:
        """Class means of the centred unit supports and, last, the mean of all supports [E, way + 1, d]."""
        episodes, way, shot = supports.shape
        d = self.features.shape[1]
        rays = self.features.new_empty(episodes, way + 1, d)
        index = torch.from_numpy(supports).to(self.features.device).flatten(1)
        x = self.features.new_empty(way * shot, d)
        ones = x.new_ones(way * shot)
        for e in range(episodes):
            x.copy_(self.train.index_select(0, index[e]))
            mean = (ones @ x).div_(way * shot)
            x -= mean
            scale = 1 / torch.linalg.vector_norm(x, dim=1).clamp_min_(SMALLEST_NORM)
            torch.bmm(scale.view(way, 1, shot).div_(shot), x.view(way, shot, d), out=rays[e, :way, None])
            rays[e, way] = mean - self.shift.mean
        return rays
