"""Few-shot (SimpleShot): sampled episodes, nearest support mean, played in groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.core.threads import one_thread, stream
from histobench.roi.metrics.batched import evaluate_episodes
from histobench.roi.protocols.centering import SMALLEST_NORM, Centring, row_chunks
from histobench.roi.protocols.outcome import Outcome

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Episodes:
    """E episodes of one setting. `classes` ascend within an episode; `supports` are training rows."""

    classes: Ints  # [E, way]
    supports: Ints  # [E, way, shot]

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, some: slice | Ints) -> Episodes:
        return Episodes(self.classes[some], self.supports[some])


class EpisodeSampler:
    """Draws episodes; those of a setting depend on the seed, the way and the shot, not on other settings."""

    def __init__(self, train_labels: Ints, *, seed: int) -> None:
        self.seed = seed
        self.classes, counts = np.unique(train_labels, return_counts=True)
        self.members = [np.flatnonzero(train_labels == label) for label in self.classes]
        self.smallest = int(counts.min())

    def draw(self, *, way: int, shot: int, n_iter: int) -> Episodes:
        """`n_iter` episodes: classes and images without replacement within an episode."""
        rng = np.random.default_rng([self.seed, way, shot])
        classes = np.empty((n_iter, way), dtype=np.int64)
        supports = np.empty((n_iter, way, shot), dtype=np.int64)
        for e in range(n_iter):
            chosen = np.sort(rng.choice(len(self.classes), size=way, replace=False))
            classes[e] = self.classes[chosen]
            for k, label in enumerate(chosen):
                supports[e, k] = rng.choice(self.members[label], size=shot, replace=False)
        return Episodes(classes, supports)


def possible_settings(
    count: int, smallest: int, n_way: Sequence[int], n_shot: Sequence[int], *, use_all_way: bool
) -> tuple[list[int], list[int], list[str]]:
    """The ways and shots that `count` classes of `smallest` images or more allow, and warnings of others."""
    asked = set(n_way) | ({count} if use_all_way else set())
    ways = sorted(way for way in asked if 2 <= way <= count)
    shots = sorted({shot for shot in n_shot if 1 <= shot <= smallest})
    warnings = []
    if wrong := sorted(asked - set(ways)):
        warnings.append(f"ways {', '.join(map(str, wrong))} left out: the training set has {count} classes")
    if wrong := sorted(set(n_shot) - set(shots)):
        shots_left = ", ".join(map(str, wrong))
        warnings.append(f"shots {shots_left} left out: the smallest class has fewer training images")
    return ways, shots, warnings


MEMORY = {"cpu": 2**26, "cuda": 2**29}  # bytes that one group of episodes works in
_BYTES_PER_SCORE = {"cpu": 40, "cuda": 150}
_MANY_SCORES = 2**24  # from which several processes gain more than starting them costs
_SUPPORT = 2**22  # bytes of supports, in float64, that are scaled at a time on the CPU


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
    keep_probabilities: bool = False,
) -> Iterator[FewShotSetting]:
    """Possible settings (way, shot), one at a time; none depends on which others there are."""
    sampler = EpisodeSampler(train_labels.cpu().numpy(), seed=seed)
    queries = Queries.of(train, test, test_labels, device=device)
    played: deque[tuple[Episodes, list[Ints]]] = deque()

    def draw(setting: tuple[int, int]) -> Episodes:
        return sampler.draw(way=setting[0], shot=setting[1], n_iter=n_iter)

    def groups(drawn: Iterable[Episodes]) -> Iterator[Episodes]:
        for episodes in drawn:
            some = queries.groups(episodes)
            played.append((episodes, some))
            yield from (episodes[group] for group in some)

    def play(episodes: Episodes) -> _Part:
        return queries.play(episodes, n_classes, keep=keep_probabilities)

    scores = n_iter * len(test) * sum(way**2 for way, _ in settings) // max(1, len(sampler.classes))
    with ExitStack() as stack:
        drawing = ThreadPoolExecutor(1)  # the next ones, while some are played
        stack.callback(drawing.shutdown, cancel_futures=True)
        drawn = groups(drawing.map(draw, settings))
        parts = stream(play, drawn, device=device, processes=scores >= _MANY_SCORES)
        stack.enter_context(closing(parts))
        for first in parts:
            episodes, some = played.popleft()
            # Threads of an operation here would wait for cores that the groups of the next settings use.
            with one_thread():
                setting = queries.joined(episodes, some, [first, *islice(parts, len(some) - 1)])
            yield setting


@dataclass(frozen=True)
class _Part:
    """What a group of episodes said, by class; arrays on the CPU, for they travel between processes."""

    metrics: dict[str, NDArray[np.float64]]  # [E] each
    total: Tensor | NDArray[np.float64]  # [n_classes, n] sums of probabilities over the episodes
    votes: Tensor | NDArray[np.int16]  # [E, n]
    kept: Tensor | NDArray[np.float32] | None  # [E, way, n]


@dataclass(frozen=True)
class Queries:
    """Test features, shifted by the mean of the training set and sorted by class, for any episodes."""

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
        runs = {
            int(label): slice(int(end - count), int(end))
            for label, count, end in zip(present, counts, counts.cumsum(0), strict=True)
        }
        order = order.to(device)
        features = test.to(device)[order].double() - shift.mean
        return cls(train, shift, features, features.square().sum(1), order, runs)

    @property
    def _device(self) -> str:
        return self.features.device.type

    def groups(self, episodes: Episodes) -> list[Ints]:
        """Episodes that are played together: as many as the memory allows, of about the same size."""
        memory = MEMORY.get(self._device, MEMORY["cuda"])
        way = episodes.classes.shape[1]
        sizes = self._columns(episodes.classes).sum(1)
        order = np.argsort(sizes, kind="stable")
        each = way * (_BYTES_PER_SCORE.get(self._device, 150) * sizes.max() + 16 * self.features.shape[1])
        return np.array_split(order, min(len(order), -(-len(order) * int(each) // memory)))

    def _columns(self, classes: Ints) -> Ints:
        """How many columns each class [E, way] of an episode has among its scores."""
        if self._device != "cpu":
            return np.full((len(classes), 1), len(self.features))
        return self._of_classes(classes, lambda rows: rows.stop - rows.start)

    def _of_classes(self, classes: Ints, value: Callable[[slice], int]) -> Ints:
        """Something about the rows of each class; 0 for a class that no test image has."""
        known = np.zeros(max([*self.runs, int(classes.max())]) + 1, dtype=np.int64)
        for label, rows in self.runs.items():
            known[label] = value(rows)
        return known[classes]

    def joined(self, episodes: Episodes, groups: Sequence[Ints], parts: Sequence[_Part]) -> FewShotSetting:
        """The setting whose episodes were played in groups."""
        way, shot = episodes.supports.shape[1:]
        whence = np.argsort(np.concatenate(groups))
        first = parts[0].metrics
        metrics = {name: np.concatenate([p.metrics[name] for p in parts])[whence] for name in first}
        back = torch.argsort(self.order)
        # In the order of the groups, so that the sums do not depend on the threads.
        total = torch.stack([torch.as_tensor(p.total) for p in parts]).sum(0)[:, back]
        turn = torch.from_numpy(whence).to(back.device)
        votes = torch.cat([torch.as_tensor(p.votes) for p in parts])[turn][:, back].T.contiguous()
        taken = (votes >= 0).sum(1)
        scored = taken > 0
        mean = torch.where(scored, total / taken.clamp_min(1), torch.nan).T.contiguous()
        predicted = torch.where(scored, total.T.contiguous().argmax(1), -1)
        info = {"way": way, "shot": shot, "n_iter": len(episodes)}
        outcome = Outcome(mean.cpu().numpy(), predicted.cpu().numpy(), info)
        kept = [torch.as_tensor(p.kept) for p in parts if p.kept is not None]
        probabilities = torch.cat(kept)[turn][:, :, back].permute(2, 0, 1).contiguous() if kept else None
        said = votes.cpu().numpy(), None if probabilities is None else probabilities.cpu().numpy()
        return FewShotSetting(way, shot, outcome, metrics, taken.cpu().numpy(), episodes, *said)

    def play(self, episodes: Episodes, n_classes: int, *, keep: bool = False) -> _Part:
        """Score some episodes together."""
        if self._device != "cpu":
            return self._play_all(episodes, n_classes, keep=keep)
        (count, way), n = episodes.classes.shape, len(self.features)
        rays = self._rays(episodes.supports)
        numbers, images, begins = self._layout(episodes.classes)
        labels = torch.from_numpy(numbers)
        scores = torch.zeros(count, way, labels.shape[1])
        total = torch.zeros(n_classes, n, dtype=torch.float64)
        for label, rows in self.runs.items():
            episode, number = np.nonzero(episodes.classes == label)
            if not len(episode):
                continue
            which = slice(None) if len(episode) == count else torch.from_numpy(episode)
            said = self._probabilities(rays[which], rows)
            # Sums over the episodes by class, exact to float64: which rows belong to which class is a matrix.
            chosen = np.zeros((n_classes, len(episode), way))
            np.put_along_axis(chosen, episodes.classes[None, episode], 1, 0)
            total[:, rows] = torch.from_numpy(chosen).flatten(1) @ said.double().flatten(0, 1)
            if begins is None:
                scores[which, :, rows] = said
                continue
            for e, start, value in zip(episode, begins[episode, number], said, strict=True):
                scores[e, :, start : start + said.shape[2]] = value
        metrics = evaluate_episodes(scores.transpose(1, 2), labels, memory=MEMORY["cuda"])
        classes = torch.from_numpy(episodes.classes)
        top = classes.gather(1, scores.max(1).indices).to(torch.int16)  # [E, width] class ids
        where = torch.from_numpy(images)
        votes = top.new_full((count, n + 1), -1).scatter_(1, where, top)[:, :n]
        kept = None
        if keep:
            kept = scores.new_full((count, way, n + 1), torch.nan)
            kept = kept.scatter_(2, where[:, None].expand(-1, way, -1), scores)[:, :, :n]
        return _Part(metrics, total.numpy(), votes.numpy(), None if kept is None else kept.numpy())

    def _play_all(self, episodes: Episodes, n_classes: int, *, keep: bool) -> _Part:
        """Score all images in every episode, and leave out what does not count: few, large operations."""
        classes = torch.from_numpy(episodes.classes).to(self.features.device)
        count, way = classes.shape
        held = classes.new_full((count, max([*self.runs, int(episodes.classes.max())]) + 1), -1)
        held.scatter_(1, classes, torch.arange(way, device=classes.device).expand(count, -1))
        labels = held[:, self._labels]  # [E, n] the number of the class in the episode, else -1
        counts = labels >= 0
        scores = self._probabilities(self._rays(episodes.supports), slice(None))
        scores *= counts[:, None]
        chosen = (classes == torch.arange(n_classes, device=classes.device)[:, None, None]).double()
        total = chosen.flatten(1) @ scores.double().flatten(0, 1)
        metrics = evaluate_episodes(scores.transpose(1, 2), labels, memory=MEMORY["cuda"])
        top = classes.gather(1, scores.max(1).indices)
        votes = torch.where(counts, top, -1).to(torch.int16)
        kept = torch.where(counts[:, None], scores, torch.nan) if keep else None
        return _Part(metrics, total, votes, kept)

    @cached_property
    def _labels(self) -> Tensor:
        lengths = torch.tensor([rows.stop - rows.start for rows in self.runs.values()])
        return torch.tensor(list(self.runs)).repeat_interleave(lengths).to(self.features.device)

    def _layout(self, classes: Ints) -> tuple[Ints, Ints, Ints | None]:
        """What the columns of the scores of episodes with these classes [E, way] are.

        Given are the number of the class in the episode [E, width], -1 where there is no image to be scored;
        the row of the image [E, width], n where there is none; and where the columns of each class begin
        [E, way], None where every image has a column of its own in every episode.
        """
        count, way = classes.shape
        n = len(self.features)
        sizes = self._columns(classes)
        if (sizes.sum(1) == n).all():
            lengths = [rows.stop - rows.start for rows in self.runs.values()]
            held = np.full((count, max([*self.runs, int(classes.max())]) + 1), -1)
            np.put_along_axis(held, classes, np.arange(way)[None], 1)
            numbers = held[:, np.repeat(list(self.runs), lengths)]
            return numbers, np.where(numbers < 0, n, np.arange(n)), None
        ends = sizes.cumsum(1)
        column = np.arange(ends[:, -1].max())
        number = (column >= ends[..., None]).sum(1)  # `way` beyond the last image
        inside = number.clip(max=way - 1)
        first = self._of_classes(classes, lambda rows: rows.start) - (ends - sizes)
        images = np.where(number < way, np.take_along_axis(first, inside, 1) + column, n)
        return np.where(number < way, number, -1), images, ends - sizes

    def _probabilities(self, rays: Tensor, rows: slice) -> Tensor:
        """Softmax of the negative L2 distances [E, way, r] of some unit queries to the class means.

        With m the support mean and p a class mean of unit supports:
        ||(q - m)/|q - m| - p||^2 = 1 - 2 (q.p - m.p) / |q - m| + |p|^2  and
        |q - m|^2 = |q|^2 - 2 q.m + |m|^2,
        so the products of the queries with all m and p are all that is needed of them.
        """
        prototypes, means = rays[:, :-1], rays[:, -1]
        products = (rays.flatten(0, 1) @ self.features[rows].T).unflatten(0, rays.shape[:2])
        along = products[:, :-1]
        beside = products[:, -1].mul_(-2).add_(self.squares[rows])
        length = beside.add_(means.square().sum(1)[:, None]).clamp_min_(0).sqrt_()  # [E, r]
        at_mean = length <= SMALLEST_NORM
        offset = (prototypes * means[:, None]).sum(2)[..., None]  # [E, way, 1]
        size = prototypes.square().sum(2)[..., None]
        squared = along.sub_(offset).mul_((-2 / length.clamp_min_(SMALLEST_NORM))[:, None]).add_(1 + size)
        # A query that equals the support mean has no direction: it stays at the origin.
        if self._device != "cpu" or bool(at_mean.any()):
            squared = torch.where(at_mean[:, None], size, squared)
        # Distances are rounded as everybody's float32 pipelines round: what these cannot tell apart are ties.
        # The exponentials of devices and processors differ in the last digits of float32, not of float64.
        distances = squared.clamp_min_(0).sqrt_().float().double()
        return torch.softmax(distances.neg_(), dim=1).float()

    def _rays(self, supports: Ints) -> Tensor:
        """Class means of the centred unit supports and, last, the mean of all supports [E, way + 1, d]."""
        count, way, shot = supports.shape
        d = self.features.shape[1]
        rays = self.features.new_empty(count, way + 1, d)
        index = torch.from_numpy(supports).to(self.features.device).flatten(1)
        memory = _SUPPORT if self._device == "cpu" else MEMORY["cuda"] // 4
        for some in row_chunks(count, 8 * way * shot * d, memory):
            given = self.train.index_select(0, index[some].flatten()).view(-1, way, shot, d)
            # Supports of an episode that do not fit are made float64 class by class, and twice.
            parts = given.split(way if len(given) > 1 or 8 * way * shot * d <= memory else 1, 1)
            exact = [parts[0].double()] if len(parts) == 1 else None
            mean = rays.new_zeros(len(given), 1, d)
            for part in exact or parts:
                mean += rays.new_full((len(given), 1, part.shape[1] * shot), 1) @ part.double().flatten(1, 2)
            mean /= way * shot
            for k, part in enumerate(exact or parts):
                x = part.double().flatten(1, 2).sub_(mean)
                scale = 1 / torch.linalg.vector_norm(x, dim=2).clamp_min_(SMALLEST_NORM)
                means = scale.view(-1, 1, shot).div_(shot) @ x.view(-1, shot, d)
                rays[some, k * part.shape[1] : (k + 1) * part.shape[1]] = means.view(len(given), -1, d)
            rays[some, way] = mean[:, 0] - self.shift.mean
        return rays
