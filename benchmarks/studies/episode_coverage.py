"""How often a 95% interval of a mean over episodes, or over training runs, holds the true value.

    python benchmarks/studies/episode_coverage.py [--sets 1000]

Nearest class means of a few support images decide on test images of three classes; patients, where there are
any, shift their images, and classes are unequally frequent. The true value is that over fresh episodes and
fresh test images without end. `docs/explanation/statistics.md` quotes the outcome.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.roi.comparison.episode_intervals import crossed_intervals, crossed_metrics
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.results.episode_predictions import EpisodePredictions
from histobench.statistics.jackknife import t_quantile
from histobench.statistics.resampling import sampling_design

Floats = NDArray[np.float64]
METRICS = ("accuracy", "balanced_accuracy", "f1_score")
SHARES = np.array([0.5, 0.3, 0.2])
DIMENSIONS, BLUR, PATIENT = 6, 1.6, 0.8
CENTRES = np.random.default_rng(5).normal(size=(3, DIMENSIONS))


@dataclass(frozen=True)
class Case:
    """A kind of test set."""

    name: str
    images: int
    episodes: int
    shot: int
    patients: int = 0


CASES = (
    Case("60 images, 100 episodes", 60, 100, 4),
    Case("300 images, 100 episodes", 300, 100, 4),
    Case("300 images, 5 runs", 300, 5, 40),
    Case("12 patients, 240 images, 100 episodes", 240, 100, 4, patients=12),
    Case("12 patients, 240 images, 5 runs", 240, 5, 40, patients=12),
    Case("30 patients, 600 images, 100 episodes", 600, 100, 4, patients=30),
)


def draw(case: Case, rng: np.random.Generator) -> tuple[EpisodePredictions, list[str] | None]:
    """A test set and what its episodes say about it."""
    labels = rng.choice(3, size=case.images, p=SHARES)
    images = CENTRES[labels] + BLUR * rng.normal(size=(len(labels), DIMENSIONS))
    groups = None
    if case.patients:
        own = rng.integers(case.patients, size=len(labels))
        own[: case.patients] = np.arange(case.patients)
        images += PATIENT * rng.normal(size=(case.patients, DIMENSIONS))[own]
        groups = [f"p{k}" for k in own]
    return EpisodePredictions(
        votes(images, case, rng), labels, np.tile(np.arange(3), (case.episodes, 1))
    ), groups


def votes(images: Floats, case: Case, rng: np.random.Generator) -> NDArray[np.int64]:
    """The nearest class mean of `shot` supports, in every episode, [n, E]."""
    noise = rng.normal(size=(case.episodes, 3, DIMENSIONS)) * BLUR / case.shot**0.5
    means = CENTRES[None] + noise
    distance = (means**2).sum(2)[None] - 2 * np.einsum("nd,ecd->nec", images, means)
    return np.asarray(distance.argmin(2))


def truth(case: Case, rng: np.random.Generator, *, rounds: int = 200) -> dict[str, float]:
    """The metrics over many fresh episodes, each on many fresh test images."""
    large = Case(case.name, 5000, 20, case.shot)
    rows = []
    for _ in range(rounds):
        labels = np.repeat(np.arange(3), np.round(SHARES * large.images).astype(int))
        images = CENTRES[labels] + BLUR * rng.normal(size=(len(labels), DIMENSIONS))
        if case.patients:
            images += PATIENT * rng.normal(size=images.shape)
        rows.append(episode_means(votes(images, large, rng), labels).mean(axis=1))
    return dict(zip(METRICS, np.mean(rows, axis=0), strict=True))


def episode_means(said: NDArray[np.int64], labels: NDArray[np.int64]) -> Floats:
    """Accuracy, balanced accuracy and macro F1 of every episode [3, E], from votes [n, E]."""
    hits = np.stack([((said == c) & (labels == c)[:, None]).sum(0) for c in range(3)])
    size = np.bincount(labels, minlength=3)[:, None]
    named = np.stack([(said == c).sum(0) for c in range(3)])
    accuracy = hits.sum(0) / len(labels)
    return np.stack([accuracy, (hits / size).mean(0), (2 * hits / (size + named)).mean(0)])


def coverage(case: Case, sets: int, seed: int, *, rounds: int = 200) -> dict[str, dict[str, float]]:
    """The share of test sets whose interval holds the true value: kind of interval -> metric -> share."""
    rng = np.random.default_rng([seed, case.images, case.episodes])
    true = truth(case, rng, rounds=rounds)
    held = {kind: dict.fromkeys(METRICS, 0.0) for kind in ("over episodes alone", "crossed")}
    for _ in range(sets):
        episodes, groups = draw(case, rng)
        found = crossed_metrics(episodes, sampling_design(case.images, clusters=groups))
        codes = None if groups is None else np.unique(groups, return_inverse=True)[1].astype(np.int64)
        units = SamplingUnits(episodes.labels, codes, ("a", "b", "c"), 3)
        each = dict(zip(METRICS, episode_means(episodes.votes, episodes.labels), strict=True))
        for metric in METRICS:
            reach = t_quantile(len(episodes) - 1) * each[metric].std(ddof=1) / len(episodes) ** 0.5
            alone = abs(each[metric].mean() - true[metric]) <= reach
            held["over episodes alone"][metric] += alone / sets
            interval = crossed_intervals(found[metric], metric, units)[metric]
            held["crossed"][metric] += interval.contains(true[metric]) / sets
    return held


def main() -> int:
    """Print the coverage of every case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--case", type=int, help="only this one, counted from 0")
    args = parser.parse_args()
    print("| test set | interval | " + " | ".join(METRICS) + " |\n|---|---|" + "---|" * len(METRICS))
    for case in CASES if args.case is None else CASES[args.case : args.case + 1]:
        for method, shares in coverage(case, args.sets, 3).items():
            cells = " | ".join(f"{100 * shares[metric]:.1f}" for metric in METRICS)
            print(f"| {case.name} | {method} | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
