"""Coverage and width of every interval, and false claims of comparisons, on data with a known truth.

    python benchmarks/studies/statistics_study.py --quick                 # a few minutes on two cores
    python benchmarks/studies/statistics_study.py --workers 16 --seed 7   # the tables of the documentation

Everything goes through the functions that `compare`, the report, `consult table` and `mint` call. A cell is
one kind of data. For each cell and measure: the share of 95 % intervals that hold the truth, and their mean
width divided by the width of the central 95 % of the estimates (1: as wide as a correct interval must be).
Classification: an image is right if its latent margin (skill, effect of its patient, noise) is positive.
Three encoders share half of all effects; two are equal, and one has 1.5 times their error rate. Cells are
ordinary or heavy: exponential patient effects, 15 % bad patients, larger patients harder, or one patient with
half of all images. A table that claims nothing is never wrong: how often the worse encoder is shown to be
worse (p < 0.05) is counted, too, beside a test that knows the noise of the difference. Prints Markdown and
ends with exit code 1 if a goal is missed. Cells are seeded one by one: the number of workers changes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np  # noqa: E402  (after the number of threads is set)
from numpy.typing import NDArray  # noqa: E402

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CLASSES = {"1:1": (1, 1), "9:1": (9, 1), "30:1": (30, 1), "100:1": (100, 1), "12:6:1": (12, 6, 1)}
KINDS = (
    ("equal", "normal"), ("lognormal", "normal"), ("half", "normal"),
    ("lognormal", "exponential"), ("equal", "bad"), ("lognormal", "larger"),
)  # fmt: skip
METRICS = ("accuracy", "balanced_accuracy", "f1_score", "auroc", "macro_auprc")
NAMES = ("a", "b", "c")
CORRELATION, SHARED = 0.25, 0.5
#: measure -> (ordinary, heavy: least coverage), median width, width of nine of ten cells, largest width
GOALS = {
    "accuracy": (92.5, 85.0, 1.5, 3.0, np.inf),
    "balanced_accuracy": (92.5, 85.0, 1.5, 3.0, np.inf),
    "f1_score": (92.5, 85.0, 1.5, 3.0, np.inf),
    "auroc": (91.0, 84.0, 1.5, 4.5, 25.0),
    "macro_auprc": (91.0, 84.0, 1.5, 4.5, 25.0),
}
OTHER_GOALS = (92.0, 92.0, 1.6, np.inf, np.inf)
FALSE_CLAIMS, WORST_FALSE_CLAIMS = 5.0, 6.5


@dataclass(frozen=True)
class Cell:
    """One kind of test set."""

    classes: str
    accuracy: float
    groups: int
    sizes: str
    effect: str

    @property
    def heavy(self) -> bool:
        return self.sizes == "half" or self.effect != "normal"

    @property
    def images(self) -> int:
        """Images of a patient; rare classes need more."""
        return 60 if self.classes in ("30:1", "100:1") else 25

    def draw(self, rng: np.random.Generator) -> tuple[Ints, Ints, Floats]:
        """Labels, patients and margins [n, 3] without skill; every class in at least three patients."""
        share = np.array(CLASSES[self.classes], dtype=np.float64)
        while True:
            sizes = self._sizes(rng)
            group = np.repeat(np.arange(self.groups), sizes)
            labels = rng.choice(len(share), size=len(group), p=share / share.sum())
            if all(len(np.unique(group[labels == k])) >= 3 for k in range(len(share))):
                break
        effect = _mixed(lambda size: self._effects(sizes, size, rng), self.groups)
        noise = _mixed(lambda size: rng.normal(size=size), len(group))
        return labels, group, CORRELATION**0.5 * effect[group] + (1 - CORRELATION) ** 0.5 * noise

    def _sizes(self, rng: np.random.Generator) -> Ints:
        if self.sizes == "equal":
            return np.full(self.groups, self.images)
        if self.sizes == "lognormal":
            drawn = rng.lognormal(-0.5, 1.0, self.groups) * self.images
            return np.maximum(2, np.round(drawn)).astype(np.int64)
        rest = max(self.groups * self.images // 2 // (self.groups - 1), 1)
        return np.r_[self.groups * self.images // 2, np.full(self.groups - 1, rest)]

    def _effects(self, sizes: Ints, size: int | tuple[int, int], rng: np.random.Generator) -> Floats:
        """Of mean 0 and variance 1, long towards the bad side where they are not normal."""
        if self.effect == "exponential":
            return 1 - rng.exponential(size=size)
        if self.effect == "bad":
            return np.where(rng.random(size) < 0.15, -2.38, 0.42)
        drawn = rng.normal(size=size)
        if self.effect == "larger":
            log = np.log(sizes)
            z = (log - log.mean()) / max(float(log.std()), 1e-9)
            return -0.7 * z.reshape(-1, *[1] * (drawn.ndim - 1)) + 0.714 * drawn
        return drawn

    def __str__(self) -> str:
        return f"{self.classes} | {self.accuracy:g} | {self.groups} | {self.sizes} | {self.effect}"


def _mixed(draw, n: int) -> Floats:
    """Three columns that share half of their variance."""
    common, own = draw((n, 1)), draw((n, len(NAMES)))
    return np.asarray(SHARED**0.5 * common + (1 - SHARED) ** 0.5 * own)


def runs_of(labels: Ints, group: Ints, margin: Floats, c: int, rng: np.random.Generator) -> dict:
    """Predictions of every encoder: the margin decides between the true class and one other."""
    from histobench.roi.predictions import Predictions

    n = len(labels)
    found = {}
    for k, name in enumerate(NAMES):
        other = (labels + rng.integers(1, c, n)) % c
        scores = np.full((n, c), -4.0) + 0.1 * rng.normal(size=(n, c))
        scores[np.arange(n), labels], scores[np.arange(n), other] = margin[:, k], -margin[:, k]
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        found[name] = Predictions(
            p, labels, p.argmax(axis=1), tuple(map(str, range(c))), tuple(map(str, range(n))),
            tuple(map(str, group)),
        )  # fmt: skip
    return found


def classification(
    cell: Cell, draws: int, seed: int, metrics: tuple[str, ...] = METRICS
) -> dict[str, dict[str, float]]:
    """Metric -> coverage, width, and false claims of the table of three encoders, in percent."""
    from sklearn.metrics import average_precision_score

    from histobench.roi.comparison.left_out_table import left_out_table
    from histobench.roi.comparison.sampling_units import SamplingUnits
    from histobench.roi.comparison.table_statistics import metric_statistics
    from histobench.roi.metrics.formulas import label_metrics_of

    rng = np.random.default_rng([seed, zlib.crc32(str(cell).encode())])
    c = len(CLASSES[cell.classes])
    parts = [cell.draw(rng) for _ in range(max(12000 // cell.groups, 40))]
    labels, margin = (np.concatenate([part[k] for part in parts]) for k in (0, 2))
    error = 1 - cell.accuracy
    skill = -np.array([np.quantile(margin[:, k], min(x * error, 0.9)) for k, x in enumerate((1, 1, 1.5))])
    skill[:2] = skill[:2].mean()
    truth: dict[str, Floats] = {}
    for name, run in zip(NAMES, runs_of(labels, labels, margin + skill, c, rng).values(), strict=True):
        confusion = np.bincount(labels * c + run.predicted, minlength=c * c).reshape(1, c, c).astype(float)
        values = label_metrics_of(confusion, METRICS[:3])
        columns = [(labels == k, run.probabilities[:, k]) for k in (range(c) if c > 2 else [1])]
        area = np.mean([area_of(scores, positive) for positive, scores in columns])
        precision = np.mean([average_precision_score(*column) for column in columns])
        truth[name] = np.array([*(float(values[metric][0]) for metric in METRICS[:3]), area, precision])
    truth["a"] = truth["b"] = (truth["a"] + truth["b"]) / 2
    kept = {metric: Kept() for metric in metrics}
    for _ in range(draws):
        labels, group, margin = cell.draw(rng)
        runs = runs_of(labels, group, margin + skill, c, rng)
        units = SamplingUnits.of(runs["a"])
        for metric, found in left_out_table(runs, metrics, units).items():
            statistics = metric_statistics(metric, found, units)
            true = {name: float(truth[name][METRICS.index(metric)]) for name in NAMES}
            kept[metric].add(found.values[0], statistics.intervals["a"], true["a"])
            kept[metric].add_table(statistics, true)
    return {metric: each.shares() for metric, each in kept.items()}


def area_of(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """The area under the ROC curve of scores without ties, by ranks."""
    place = np.empty(len(scores))
    place[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    n = int(positive.sum())
    return float((place[positive].sum() - n * (n + 1) / 2) / (n * (len(scores) - n)))


class Kept:
    """Estimates, intervals and claims of one measure of one cell."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.bounds: list[tuple[float, float]] = []
        self.held: list[bool] = []
        self.apart: list[tuple[float, bool]] = []  # of one encoder and a worse one: difference, p < 0.05
        self.tables = self.false = self.winners = self.winners_held = 0

    def add(self, value: float, interval, truth: float) -> None:
        if interval is not None and interval.low is not None:
            self.values.append(float(value))
            self.bounds.append((interval.low, interval.high))
            self.held.append(interval.contains(truth))

    def add_table(self, statistics, true: dict[str, float]) -> None:
        if not statistics.test:
            return
        pairs = statistics.pairs
        first, second = pairs.places
        apart = np.array(
            [true[pairs.names[i]] - true[pairs.names[j]] for i, j in zip(first, second, strict=True)]
        )
        self.tables += 1
        self.false += bool((pairs.holds & (np.sign(pairs.difference) != np.sign(apart))).any())
        for i, j, difference, p in zip(first, second, pairs.difference, pairs.p_value, strict=True):
            if {pairs.names[i], pairs.names[j]} == {"a", "c"}:
                self.apart.append((difference if pairs.names[i] == "a" else -difference, p < 0.05))
        winner = statistics.standings.winner
        if winner.interval.low is not None:
            self.winners += 1
            self.winners_held += winner.interval.contains(true[winner.name])

    def shares(self) -> dict[str, float]:
        """Coverage in percent, relative width, and what the tables came to."""
        if len(self.values) < 20:
            return {}
        low, high = np.quantile(self.values, [0.025, 0.975])
        width = float(np.mean([b - a for a, b in self.bounds]))
        found = {"coverage": 100 * float(np.mean(self.held)), "width": width / max(high - low, 1e-9)}
        if self.tables:
            found |= {
                "false": 100 * self.false / self.tables,
                "winner": 100 * self.winners_held / max(self.winners, 1),
            }
        if self.apart:
            differences, shown = np.array(self.apart).T
            limit = np.quantile(np.abs(differences - differences.mean()), 0.95)
            found |= {"shown": 100 * shown.mean(), "could be": 100 * np.mean(np.abs(differences) > limit)}
        return found


def grid(*, quick: bool) -> list[Cell]:
    """The cells from 12 groups up; `quick` takes a part of them."""
    cells = [
        Cell(classes, accuracy, groups, *kind)
        for classes, accuracy, groups, kind in product(CLASSES, (0.8, 0.9, 0.97, 0.995), (12, 20, 40), KINDS)
    ]
    return cells[::23] if quick else cells


def others(*, quick: bool) -> list[tuple[str, object, int]]:
    """(kind, case, how many more or fewer draws) of what is not classification."""
    import agent_coverage
    import consult_coverage
    import robustness_coverage
    import target_coverage

    jobs: list[tuple[str, object, int]] = [("target", case, 1) for case in target_coverage.CASES]
    jobs += [("mint", setting, 2) for setting in agent_coverage.settings(quick=False)[::9]]
    jobs += [
        ("consult", setting, 1) for setting in consult_coverage.grid(False)[1::7] if setting.groups >= 12
    ]
    jobs += [("robustness", place, 4) for place in (0, 2, 5, 8, 10)][: len(robustness_coverage.CELLS)]
    return jobs[::12] if quick else jobs


Job = tuple[str, object, int, int, tuple[str, ...]]
Row = tuple[str, object, dict[str, dict[str, float]]]


def measured(job: Job) -> Row:
    """One cell of any kind."""
    kind, case, draws, seed, metrics = job
    if kind == "classification":
        return kind, case, classification(case, draws, seed, metrics)
    if kind == "target":
        import target_coverage as study
    elif kind == "mint":
        import agent_coverage as study
    elif kind == "consult":
        import consult_coverage as study
    else:
        import robustness_coverage as study
    kept: dict[str, Kept] = {}
    for name, value, interval, truth in study.samples(case, draws, seed):
        kept.setdefault(name, Kept()).add(value, interval, truth)
    return kind, case, {name: each.shares() for name, each in kept.items()}


def lowest(rows: list[Row], count: int) -> list[int]:
    """The places of the cells with the lowest coverage of each measure, ordinary and heavy ones apart."""
    found: dict[tuple[str, str, bool], list[tuple[float, int]]] = {}
    for place, (kind, case, measures) in enumerate(rows):
        for name, shares in measures.items():
            if shares:
                heavy = kind == "classification" and case.heavy
                found.setdefault((kind, name, heavy), []).append((shares["coverage"], place))
    return sorted({place for cells in found.values() for _, place in sorted(cells)[:count]})


def table(rows: list[Row]) -> tuple[str, list[str]]:
    """The page in Markdown, and the goals that were missed."""
    lines, missed = [], []
    columns = (
        "measure", "cells", "coverage, ordinary: worst, mean", "coverage, heavy: worst, mean",
        "width: median, nine of ten below, largest", "false claims: mean, worst",
        "true differences shown, by a test that knows the noise", "winner: worst",
    )  # fmt: skip
    lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    every: dict[str, list[tuple[object, dict[str, float], bool]]] = {}
    for kind, case, found in rows:
        for name, shares in found.items():
            label = name if kind == "classification" else f"{kind}: {name.partition('@')[0]}"
            heavy = kind == "classification" and case.heavy
            if shares:
                every.setdefault(label, []).append((case, shares, heavy))
    worst: list[tuple[float, str]] = []
    for label, cells in every.items():
        ordinary, heavy = (
            [shares["coverage"] for _, shares, is_heavy in cells if is_heavy == which]
            for which in (False, True)
        )
        widths = np.array([shares["width"] for _, shares, _ in cells])
        false = [shares["false"] for _, shares, _ in cells if "false" in shares]
        winner = [shares["winner"] for _, shares, _ in cells if "winner" in shares]
        goal = GOALS.get(label, OTHER_GOALS)
        checks = [
            (min(ordinary, default=100.0) >= goal[0], f"{label}: ordinary coverage below {goal[0]:g}"),
            (min(heavy, default=100.0) >= goal[1], f"{label}: heavy coverage below {goal[1]:g}"),
            (float(np.median(widths)) <= goal[2], f"{label}: median width above {goal[2]:g}"),
            (float(np.quantile(widths, 0.9)) <= goal[3], f"{label}: nine of ten widths above {goal[3]:g}"),
            (float(widths.max()) <= goal[4], f"{label}: largest width above {goal[4]:g}"),
            (float(np.mean(false or [0])) <= FALSE_CLAIMS, f"{label}: mean false claims too many"),
            (max(false, default=0) <= WORST_FALSE_CLAIMS, f"{label}: worst false claims too many"),
        ]  # fmt: skip
        missed += [words for met, words in checks if not met]

        def both(values: list[float], pick) -> str:
            return f"{pick(values):.1f}, {np.mean(values):.1f}" if values else "-"

        width = f"{np.median(widths):.2f}, {np.quantile(widths, 0.9):.2f}, {widths.max():.1f}"
        claims = f"{np.mean(false):.1f}, {max(false):.1f}" if false else "-"
        power = [(shares["shown"], shares["could be"]) for _, shares, _ in cells if "shown" in shares]
        shown = "{:.0f}, {:.0f}".format(*np.mean(power, axis=0)) if power else "-"
        lines.append(
            f"| {label} | {len(cells)} | {both(ordinary, min)} | {both(heavy, min)} | {width} | {claims} "
            f"| {shown} | {f'{min(winner):.1f}' if winner else '-'} |"
        )
        worst += [(shares["coverage"], f"{label} | {case} | {shares['coverage']:.1f} | {shares['width']:.2f}")
                  for case, shares, _ in cells]  # fmt: skip
    lines += [
        "",
        "The ten cells of lowest coverage:",
        "",
        "| measure and cell | coverage | width |",
        "|---|---|---|",
    ]
    for _, text in sorted(worst)[:10]:
        head, coverage, width = text.rsplit(" | ", 2)
        lines.append(f"| {head.replace(' | ', ', ')} | {coverage} | {width} |")
    return "\n".join(lines), missed


def main() -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, help="data sets of a cell (default: 300; 60 with --quick)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--quick", action="store_true", help="a few cells")
    parser.add_argument("--only", choices=("classification", "target", "mint", "consult", "robustness"))
    parser.add_argument("--metrics", nargs="+", choices=METRICS, default=METRICS, help="of classification")
    parser.add_argument(
        "--cells", default="", help="only cells whose line holds this text, such as '100:1 |'"
    )
    parser.add_argument(
        "--again",
        type=int,
        default=0,
        help="measure the six lowest cells of each measure again with so many other data sets, which alone "
        "count: the lowest of many cells is partly chance (default: 0)",
    )
    parser.add_argument("--every", type=int, default=1, help="only every so many cells (default: 1)")
    args = parser.parse_args()
    draws = args.draws or (60 if args.quick else 300)
    cases = [("classification", cell, 1) for cell in grid(quick=args.quick)] + others(quick=args.quick)
    jobs = [
        (kind, case, max(draws // share, 20), args.seed, tuple(args.metrics))
        for kind, case, share in cases[:: args.every]
        if args.only in (None, kind) and args.cells in str(case)
    ]
    jobs.sort(key=lambda job: job[0] != "robustness")  # the longest first
    started = time.monotonic()
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(measured, jobs))
        if args.again:
            places = lowest(rows, 6)
            second = [(kind, case, args.again, seed + 1, metrics)
                      for kind, case, _, seed, metrics in (jobs[place] for place in places)]  # fmt: skip
            for place, row in zip(places, pool.map(measured, second), strict=True):
                rows[place] = row
    page, missed = table(rows)
    command = f"python benchmarks/studies/statistics_study.py {' '.join(sys.argv[1:])}".strip()
    print(f"`{command}`: {len(jobs)} cells, {draws} data sets each, {time.monotonic() - started:.0f} s "
          f"with {args.workers} processes.\n\n{page}\n")  # fmt: skip
    print("\n".join(f"MISSED {words}" for words in missed) or "All goals are met.", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
