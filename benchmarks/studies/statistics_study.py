"""What the intervals and comparisons of the ROI track hold: simulated test sets with a known truth.

    python benchmarks/studies/statistics_study.py --quick  # a few minutes on one core
    python benchmarks/studies/statistics_study.py --workers 16 --draws 1000 --out study  # both files

An image is classified correctly if its latent margin is positive. The margin is the encoder's skill plus an
effect of the image's group (patient) plus noise; encoders share half of the effect and of the noise. Every
draw is one test set and a table of four encoders: three equally good ones, and one with 1.5 times their error
rate. It goes through `left_out_table` and `metric_statistics`, which `compare`, the Python tables and the
report also call. A cell is one combination of class shares, groups, group sizes, classes per group,
intraclass correlation and accuracy. Cells are seeded one by one: the number of workers changes nothing.
`--percentile` also measures the older percentile bootstrap (300 resamples).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from histobench.roi.comparison.left_out_table import left_out_table
from histobench.roi.comparison.metric_function import (
    one_metric,
    over_all_classes,
)
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.comparison.table_statistics import MetricStatistics, metric_statistics
from histobench.roi.metrics.formulas import label_metrics_of
from histobench.roi.metrics.left_out import auroc_left_out
from histobench.roi.predictions import Predictions
from histobench.statistics.intervals import Interval, percentile_interval
from histobench.statistics.resampling import replicates_of_all

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
        values = label_metrics_of(confusion[None], ["f1_score"])
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


def measure(cell: Cell, draws: int, seed: int, *, percentile: bool = False) -> dict[str, Any]:
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
            if percentile:
                tallies[metric].add_older(_percentile(metric, runs["a"], units), true[metric][0])
    return {"cell": asdict(cell), "draws": draws, "metrics": {m: t.shares(draws) for m, t in tallies.items()}}


def _percentile(metric: str, run: Predictions, units: SamplingUnits) -> Interval:
    evaluate = over_all_classes(one_metric({"a": run}, metric), run.labels, metric=metric)
    return percentile_interval(replicates_of_all(evaluate, units.design, n_resamples=300, seed=0)["a"])


class _Tally:
    """Counts of one metric of one cell."""

    def __init__(self) -> None:
        self.single = self.single_missed = 0
        self.pairs = self.pair_missed = self.family_missed = self.false_claims = 0
        self.claims = self.best_missed = self.winner_missed = self.winners = 0
        self.older = self.older_missed = 0
        self.width: list[float] = []
        self.pair_width: list[float] = []

    def add(self, statistics: MetricStatistics, true: dict[str, float]) -> None:
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

    def add_older(self, interval: Interval, true: float) -> None:
        self.older += interval.low is not None
        self.older_missed += not interval.contains(true)

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
            "percentile": percent(self.older - self.older_missed, self.older) if self.older else None,
            "power": percent(self.claims, self.pairs),
            "width": round(float(np.median(self.width)), 4) if self.width else None,
            "width of difference": round(float(np.median(self.pair_width)), 4) if self.pair_width else None,
        }


def grid(*, quick: bool = False) -> list[Cell]:
    """All cells, those that decide most first; `quick` takes a part of them.

    One class in each group needs three groups of the rarest class, which 30:1 and nine classes do not have.
    """
    cells = [
        Cell(classes, groups, sizes, per_group, icc, accuracy)
        for classes, groups, sizes, per_group, icc, accuracy in product(
            CLASSES, (8, 12, 20, 40), SIZES, ("mixed", "one class"), (0.0, 0.3, 0.6), (0.6, 0.9, 0.98, 0.99)
        )
    ]
    cells = [cell for cell in cells if cell.per_group == "mixed" or cell.classes in ("1:1", "9:1")]
    # Each pair of values of any two settings occurs; of all combinations a third is left.
    levels = {0.0: 0, 0.3: 1, 0.6: 2}
    kept = [
        cell
        for cell in cells
        if (
            list(CLASSES).index(cell.classes)
            + (8, 12, 20, 40).index(cell.groups)
            + SIZES.index(cell.sizes)
            + levels[cell.icc]
            + (0.6, 0.9, 0.98, 0.99).index(cell.accuracy)
        )
        % 3
        == 0
    ]
    kept.sort(key=lambda cell: (cell.groups != 12, cell.classes == "nine uneven"))
    return kept[::11] if quick else kept


#: statement -> (the least coverage, or the largest error, in percent)
WANTED = {"single": 92.0, "difference": 92.0, "all differences": 92.0, "winner": 92.0, "false claim": 6.0}


def shortfall(shares: dict[str, float | None]) -> float:
    """By how many percent the worst statement of a cell misses what is wanted; negative where none does."""
    missed = [
        (value - WANTED[name]) if name == "false claim" else (WANTED[name] - value)
        for name in WANTED
        if (value := shares[name]) is not None
    ]
    return max(missed, default=-100.0)


def markdown(results: list[dict[str, Any]], *, rows: int = 30) -> str:
    """The cells of 12 groups and more, worst first, and what the smaller ones come to."""
    flat = [(r["cell"], metric, shares) for r in results for metric, shares in r["metrics"].items()]
    shown = sorted((x for x in flat if x[0]["groups"] >= 12), key=lambda x: -shortfall(x[2]))
    older = any(x[2]["percentile"] is not None for x in flat)
    names = [*WANTED, "have an interval", "power", *(["percentile"] if older else [])]
    draws = max(result["draws"] for result in results)
    lines = [
        f"{len(results)} cells, {draws} test sets each, half as many with 8 and 40 groups; one standard "
        f"error near 95 is {100 * (0.05 * 0.95 / draws) ** 0.5:.1f}. Worst first; `-`: there is a reason "
        "instead.",
        "",
        "| metric | classes | groups | sizes | per group | ICC | accuracy | " + " | ".join(names) + " |",
        "|---" * (7 + len(names)) + "|",
    ]
    for cell, metric, shares in shown[:rows]:
        numbers = ["-" if shares[name] is None else f"{shares[name]:.1f}" for name in names]
        lines.append("| " + " | ".join([metric, *map(str, cell.values()), *numbers]) + " |")
    for least, most in ((12, 10**9), (0, 11)):
        part = [x for x in flat if least <= x[0]["groups"] <= most]
        missed = sum(shortfall(x[2]) > 0 for x in part)
        none = sum(x[2]["have an interval"] < 10 for x in part)
        words = "12 groups and more" if least else "8 groups"
        lines.append("")
        lines.append(
            f"{words}: {len(part)} combinations of cell and metric, {missed} miss what is wanted, "
            f"{none} have an interval in fewer than 10% of test sets."
        )
        for name in WANTED:
            values = [x[2][name] for x in part if x[2][name] is not None]
            if values:
                worst = max(values) if name == "false claim" else min(values)
                lines.append(f"- {name}: worst {worst:.1f}, mean {np.mean(values):.1f}")
    return "\n".join(lines) + "\n"


def _measured(cell: Cell, draws: int, seed: int, percentile: bool) -> dict[str, Any]:
    # The ends of the range of groups decide least.
    return measure(cell, draws if cell.groups in (12, 20) else draws // 2, seed, percentile=percentile)


def main() -> int:
    """Simulate, print the table, and write it where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, help="test sets of each cell (default: 1000; 100 with --quick)")
    parser.add_argument("--seed", type=int, default=27)
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--quick", action="store_true", help="an eleventh of the cells")
    parser.add_argument("--percentile", action="store_true", help="also the older percentile bootstrap")
    parser.add_argument("--seconds", type=float, help="start no new cell after this many seconds")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    args = parser.parse_args()
    draws = args.draws or (100 if args.quick else 1000)
    results: list[dict[str, Any]] = []
    started = time.monotonic()
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        cells = grid(quick=args.quick)
        waiting = [pool.submit(_measured, cell, draws, args.seed, args.percentile) for cell in cells]
        for future in waiting:
            if args.seconds and time.monotonic() - started > args.seconds and future.cancel():
                continue
            results.append(future.result())
            print(f"{len(results)} of {len(waiting)} cells, {time.monotonic() - started:.0f} s", flush=True)
    page = markdown(results)
    print(page)
    if args.out:
        args.out.with_suffix(".json").write_text(json.dumps(results, indent=1))
        args.out.with_suffix(".md").write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
