"""What the statements about the winner are worth: simulated tables of encoders whose true values are known.

    python benchmarks/winner.py [--tables 1000] [--encoders 10] [--seed 1] [--metric accuracy]

Encoders predict the same images; patients are of unequal size and differ in difficulty, for all encoders
alike and for each encoder on its own; classes are 10:3:1. For every kind of table the shares, in percent,
of tables in which

    any false pair     some simultaneous interval (max-t) misses its true difference set missed         the
    set of the best lacks a truly best encoder (mean over the truly best ones) rank missed        some
    simultaneous rank interval does not hold the true ranks winner missed      the corrected interval of the
    winner misses its true value (beside it: the ordinary interval)

and the mean error of the winner's value, corrected and as measured, and how many encoders the set holds.
`docs/statistics.md` quotes the outcome.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from histobench.core.statistics.best import best_set, winner_value
from histobench.core.statistics.effective_units import effective_freedom
from histobench.core.statistics.jackknife import LeaveOneOut, leave_one_out_of_totals, t_quantile
from histobench.core.statistics.resampling import design_for_labels
from histobench.core.statistics.simultaneous import rank_intervals, simultaneous_pairs

Floats = NDArray[np.float64]
CLASSES = np.array([10, 3, 1]) / 14
#: Image difficulty, patient difficulty for all encoders, patient difficulty for one encoder (logits).
IMAGE, PATIENT, OWN = 1.0, 1.0, 0.5


@dataclass(frozen=True)
class Kind:
    """A kind of table: patients (None: independent images), images, each encoder's advantage in logits."""

    name: str
    patients: int | None
    images: int
    advantage: Floats


def main() -> int:
    """Print one line for each kind of table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--encoders", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--metric", choices=("accuracy", "balanced_accuracy"), default="accuracy")
    args = parser.parse_args()
    print(
        f"{args.tables} tables of {args.encoders} encoders, {args.metric}\n"
        "| table | any false pair | set missed | rank missed | winner missed (ordinary) "
        "| winner's error (as measured) | in the set | pairs of the best shown |\n" + "|---" * 8 + "|"
    )
    for kind in kinds(args.encoders):
        found = rates(kind, args.metric, n_tables=args.tables, seed=args.seed)
        print(
            f"| {kind.name} | {found['pair']:.1f} | {found['set']:.1f} | {found['rank']:.1f} "
            f"| {found['winner']:.1f} ({found['ordinary']:.1f}) "
            f"| {found['error']:+.3f} ({found['measured']:+.3f}) | {found['size']:.1f} "
            f"| {'-' if np.isnan(found['shown']) else format(found['shown'], '.0f')} |",
            flush=True,
        )
    return 0


def kinds(m: int) -> list[Kind]:
    """Equal encoders; one better; a row of encoders each a little worse than the one before."""
    equal, one = np.zeros(m), np.where(np.arange(m) == 0, 1.2, 0.0)
    row = np.linspace(0, -1.5, m)
    sets: list[tuple[str, int | None, int]] = [
        ("5 patients", 5, 100),
        ("12 patients", 12, 240),
        ("30 patients", 30, 600),
        ("50 images", None, 50),
        ("200 images", None, 200),
    ]
    shapes = [("equal", equal), ("one better", one), ("a row", row)]
    return [
        Kind(f"{shape}, {name}", patients, images, advantage)
        for shape, advantage in shapes
        for name, patients, images in sets
    ]


def rates(kind: Kind, metric: str, *, n_tables: int, seed: int) -> dict[str, float]:
    """Shares (percent) and means over `n_tables` simulated tables."""
    generator = np.random.default_rng(seed)
    truth = true_values(kind)
    best = np.flatnonzero(truth >= truth.max() - 1e-12)
    set_ranks = np.stack(
        [1 + (truth[None] > truth[:, None] + 1e-12).sum(1), (truth[None] >= truth[:, None] - 1e-12).sum(1)], 1
    )
    counted: dict[str, list[float]] = {
        key: [] for key in ("pair", "set", "rank", "winner", "ordinary", "error", "measured", "size", "shown")
    }
    for _ in range(n_tables):
        found, n = simulated_table(kind, metric, generator)
        pairs = simultaneous_pairs(found)
        true_difference = truth[:, None] - truth[None]
        outside = (pairs.low > true_difference + 1e-12) | (pairs.high < true_difference - 1e-12)
        ranks = rank_intervals(pairs.better)
        best_of = best_set(found)
        on_logits = found.mapped(lambda share, n=n: special.logit(np.clip(share, 0.5 / n, 1 - 0.5 / n)))
        winner = winner_value(on_logits)
        place = found.names.index(winner.name)
        target = special.logit(truth[place])
        half = t_quantile(found.freedom) * on_logits.variance()[place] ** 0.5
        counted["pair"].append(100 * outside.any())
        counted["set"].append(100 * (~best_of.members[best]).mean())
        counted["rank"].append(
            100 * bool((ranks[:, 0] > set_ranks[:, 0]).any() or (ranks[:, 1] < set_ranks[:, 1]).any())
        )
        counted["winner"].append(100 * (not winner.interval.contains(float(target))))
        counted["ordinary"].append(100 * (abs(on_logits.values[place] - target) > half))
        counted["error"].append(float(special.expit(winner.value) - truth[place]))
        counted["measured"].append(float(found.values[place] - truth[place]))
        counted["size"].append(float(best_of.members.sum()))
        worse = truth < truth.max() - 1e-12
        counted["shown"].append(100 * pairs.better[0, worse].mean() if worse.any() else np.nan)
    return {key: float(np.mean(values)) for key, values in counted.items()}


def true_values(kind: Kind) -> Floats:
    """Each encoder's true share of right images: the mean over patients and images (Gauss-Hermite)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    spread = (IMAGE**2 + (PATIENT**2 + OWN**2 if kind.patients else 0)) ** 0.5
    means = special.expit(1.2 + kind.advantage[:, None] + spread * nodes) @ weights / weights.sum()
    return np.asarray(means, dtype=np.float64)


def simulated_table(kind: Kind, metric: str, generator: np.random.Generator) -> tuple[LeaveOneOut, int]:
    """One metric of all encoders with each unit left out, and the number of images."""
    m = len(kind.advantage)
    if kind.patients is None:
        sizes = np.ones(kind.images, dtype=np.int64)
    else:
        mean = kind.images / kind.patients
        sizes = np.maximum(2, generator.poisson(generator.gamma(2, mean / 2, kind.patients)))
    unit_of = np.repeat(np.arange(len(sizes)), sizes)
    n = len(unit_of)
    labels = generator.choice(3, n, p=CLASSES)
    labels[:3] = [0, 1, 2]  # a class without images has no balanced accuracy
    logits = 1.2 + kind.advantage + generator.normal(0, IMAGE, (n, 1))
    if kind.patients is not None:
        logits = logits + generator.normal(0, PATIENT, (len(sizes), 1))[unit_of]
        logits = logits + generator.normal(0, OWN, (len(sizes), m))[unit_of]
    right = generator.random((n, m)) < special.expit(logits)
    design = design_for_labels(labels, unit_of.tolist() if kind.patients else None)
    classes = labels if metric == "balanced_accuracy" else np.zeros(n, dtype=np.int64)
    parts = np.zeros((len(sizes), classes.max() + 1, m + 1))
    np.add.at(parts, (unit_of, classes), np.column_stack([right, np.ones(n)]))

    def value(sums: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((sums[..., :m] / sums[..., m:]).mean(axis=1))

    found = leave_one_out_of_totals(
        value,
        parts,
        names=[f"encoder {k}" for k in range(m)],
        stratum_of=design.stratum_of,
        freedom=effective_freedom(design, labels if metric == "balanced_accuracy" else None),
    )
    return found, n


if __name__ == "__main__":
    sys.exit(main())
