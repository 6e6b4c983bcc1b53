"""What the intervals and comparisons of the ROI track hold: simulated test sets with a known truth.

    python benchmarks/statistics_study.py --quick                                   # a few minutes on one core
    python benchmarks/statistics_study.py --workers 16 --draws 1000 --out study     # study.json and study.md

An image is classified correctly if its latent margin is positive. The margin is the encoder's skill plus an
effect of the image's group (patient) plus noise; half of the effect and of the noise is shared by all encoders.
Every draw is one test set and a table of four encoders: three equally good ones, and one with 1.5 times their
error rate. It goes through `left_out_table` and `metric_statistics`, which `compare`, the Python tables and the
report also call. A cell of the table is one combination of class shares, groups, group sizes, classes per group,
intraclass correlation and accuracy.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from histobench.roi.comparison.left_out_table import left_out_table
from histobench.roi.comparison.metric_function import label_metrics_of_confusions
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.comparison.table_statistics import metric_statistics
from histobench.roi.metrics.left_out import auroc_left_out
from histobench.roi.predictions import Predictions

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CLASSES = {
    "1:1": (1, 1),
    "9:1": (9, 1),
    "30:1": (30, 1),
    "nine uneven": (30, 20, 15, 10, 8, 7, 5, 3, 2),
}
SIZES = ("equal", "lognormal", "one half")
METRICS = ("balanced_accuracy", "accuracy", "f1_score", "auroc")
IMAGES_PER_GROUP = 25
NAMES = ("a", "b", "c", "d")
#: Half of the effects of groups and images is shared by the encoders.
SHARED = 0.5


@dataclass(frozen=True)
class Cell:
    """One setting of the simulation."""

    classes: str
    groups: int
    sizes: str
    per_group: str  # "one class" or "mixed"
    icc: float
    accuracy: float

    @property
    def shares(self) -> Floats:
        """Shares of the classes among images (among groups where each has one class)."""
        share = np.array(CLASSES[self.classes], dtype=np.float64)
        share /= share.sum()
        return share if self.per_group == "mixed" else self._groups_of_classes() / self.groups

    def _groups_of_classes(self) -> Ints:
        share = np.array(CLASSES[self.classes], dtype=np.float64)
        counts = np.maximum(1, np.round(share / share.sum() * self.groups)).astype(np.int64)
        while counts.sum() != self.groups:
            counts[counts.argmax()] += 1 if counts.sum() < self.groups else -1
        return counts

    def draw(self, generator: np.random.Generator) -> tuple[Ints, Ints]:
        """Labels and groups of the images of one test set in which every class occurs."""
        c = len(CLASSES[self.classes])
        while True:
            group = np.repeat(np.arange(self.groups), self._sizes(generator))
            if self.per_group == "mixed":
                labels = generator.choice(c, size=len(group), p=self.shares)
            else:
                of_group = generator.permutation(np.repeat(np.arange(c), self._groups_of_classes()))
                labels = of_group[group]
            if len(np.unique(labels)) == c:
                return labels, group

    def _sizes(self, generator: np.random.Generator) -> Ints:
        n = IMAGES_PER_GROUP * self.groups
        if self.sizes == "equal":
            return np.full(self.groups, IMAGES_PER_GROUP)
        if self.sizes == "lognormal":
            drawn = generator.lognormal(-0.5, 1.0, self.groups) * IMAGES_PER_GROUP
            return np.maximum(2, np.round(drawn)).astype(np.int64)
        return np.r_[n // 2, np.full(self.groups - 1, max(n // 2 // (self.groups - 1), 1))]

    def skills(self) -> Floats:
        """The mean margin of each encoder."""
        error = 1 - self.accuracy
        return special.ndtri(1 - np.array([error, error, error, 1.5 * error]))

    def predictions(
        self, labels: Ints, group: Ints, generator: np.random.Generator
    ) -> dict[str, Predictions]:
        """What the four encoders say about the images."""
        n, m, c = len(labels), len(NAMES), len(CLASSES[self.classes])
        n_groups = int(group.max()) + 1
        effect = _half_shared(generator, n_groups, m)[group]
        margin = (
            self.skills() + self.icc**0.5 * effect + (1 - self.icc) ** 0.5 * _half_shared(generator, n, m)
        )
        groups, names = tuple(map(str, group)), tuple(map(str, range(n)))
        found = {}
        for k, name in enumerate(NAMES):
            p = probabilities(margin[:, k], labels, c, generator)
            found[name] = Predictions(
                p, labels, p.argmax(axis=1), tuple(f"class {j}" for j in range(c)), names, groups
            )
        return found


def _half_shared(generator: np.random.Generator, n: int, m: int) -> Floats:
    own, common = generator.normal(size=(n, m)), generator.normal(size=(n, 1))
    return np.asarray(SHARED**0.5 * common + (1 - SHARED) ** 0.5 * own)


def probabilities(margin: Floats, labels: Ints, c: int, generator: np.random.Generator) -> Floats:
    """Probabilities [n, c]: the margin decides between the true class and one other, drawn at random."""
    n = len(labels)
    other = (labels + generator.integers(1, c, n)) % c
    scores = np.full((n, c), -4.0) + 0.1 * generator.normal(size=(n, c))
    scores[np.arange(n), labels] = margin
    scores[np.arange(n), other] = -margin
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    # A large negative margin must not make a third class the most probable one: two columns decide.
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


@lru_cache(maxsize=256)
def truths(shares: tuple[float, ...], skills: tuple[float, ...]) -> dict[str, Floats]:
    """The true value of every metric of every encoder."""
    share, right = np.array(shares), special.ndtr(np.array(skills))
    c = len(share)
    generator = np.random.default_rng(1)
    found: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for accuracy, skill in zip(right, skills, strict=True):
        confusion = share[:, None] * np.where(np.eye(c) == 1, accuracy, (1 - accuracy) / (c - 1))
        values = label_metrics_of_confusions(confusion[None], ["f1_score"])
        found["accuracy"].append(float(accuracy))
        found["balanced_accuracy"].append(float(accuracy))
        found["f1_score"].append(float(values["f1_score"][0]))
        if c == 2:
            found["auroc"].append(float(special.ndtr(2**0.5 * skill)))
            continue
        labels = generator.choice(c, size=60_000, p=share)
        margin = skill + generator.normal(size=len(labels))
        p = probabilities(margin, labels, c, generator)
        found["auroc"].append(auroc_left_out(p, labels, np.arange(len(labels)) % 2)[0])
    return {metric: np.array(values) for metric, values in found.items()}


def measure(cell: Cell, draws: int, seed: int) -> dict[str, object]:
    """Shares of draws in which each statement of the table is false, and of draws with an interval."""
    generator = np.random.default_rng([seed, zlib.crc32(repr(cell).encode())])
    true = truths(tuple(cell.shares), tuple(cell.skills()))
    tallies = {metric: _Tally() for metric in METRICS}
    for _ in range(draws):
        labels, group = cell.draw(generator)
        runs = cell.predictions(labels, group, generator)
        units = SamplingUnits.of(runs["a"])
        tables = left_out_table(runs, METRICS, units)
        for metric, found in tables.items():
            statistics = metric_statistics(metric, found, runs, units)
            tallies[metric].add(statistics, dict(zip(NAMES, true[metric], strict=True)))
    return {"cell": asdict(cell), "draws": draws, "metrics": {m: t.shares(draws) for m, t in tallies.items()}}


class _Tally:
    """Counts of one metric of one cell."""

    def __init__(self) -> None:
        self.single = self.single_missed = 0
        self.pairs = self.pair_missed = self.family_missed = self.false_claims = 0
        self.claims = self.best_missed = self.winner_missed = self.winners = 0
        self.width: list[float] = []
        self.pair_width: list[float] = []

    def add(self, statistics, true: dict[str, float]) -> None:
        interval = statistics.intervals["a"]
        if interval.low is not None:
            self.single += 1
            self.single_missed += not interval.contains(true["a"])
            self.width.append(interval.high - interval.low)
        if not statistics.test:
            return
        self.pairs += 1
        pairs = statistics.pairs
        first, second = pairs.places
        value = np.array([true[name] for name in pairs.names])
        difference = value[first] - value[second]
        both = [k for k in range(len(pairs)) if {pairs.names[first[k]], pairs.names[second[k]]} == {"a", "d"}]
        k = both[0]
        self.pair_missed += not pairs.own_low[k] - 1e-12 <= difference[k] <= pairs.own_high[k] + 1e-12
        self.pair_width.append(pairs.own_high[k] - pairs.own_low[k])
        missed = (pairs.low > difference + 1e-12) | (pairs.high < difference - 1e-12)
        self.family_missed += bool(missed.any())
        self.false_claims += bool((pairs.holds & (np.sign(pairs.difference) != np.sign(difference))).any())
        self.claims += bool((pairs.holds & (difference != 0)).any())
        listed = statistics.standings.best.listed()
        self.best_missed += sum(name not in listed for name in "abc") / 3
        winner = statistics.standings.winner
        if winner.interval.low is not None:
            self.winners += 1
            self.winner_missed += not winner.interval.contains(true[winner.name])

    def shares(self, draws: int) -> dict[str, float | None]:
        """In percent of the draws that have the statement."""

        def percent(count: float, of: int) -> float | None:
            return round(100 * count / of, 2) if of >= 0.1 * draws else None

        return {
            "have an interval": round(100 * self.single / draws, 1),
            "have comparisons": round(100 * self.pairs / draws, 1),
            "single": percent(self.single - self.single_missed, self.single),
            "difference": percent(self.pairs - self.pair_missed, self.pairs),
            "all differences": percent(self.pairs - self.family_missed, self.pairs),
            "winner": percent(self.winners - self.winner_missed, self.winners),
            "false claim": percent(self.false_claims, self.pairs),
            "best missed": percent(self.best_missed, self.pairs),
            "power": percent(self.claims, self.pairs),
            "width": round(float(np.median(self.width)), 4) if self.width else None,
            "width of difference": round(float(np.median(self.pair_width)), 4) if self.pair_width else None,
        }
