"""The default intervals and tests beside the ones they replace, on the same simulated test sets.

    python benchmarks/coverage_of_methods.py --write     # two tables of docs/statistics.md, minutes
    python benchmarks/coverage_of_methods.py --sets 50

Percentile and BCa intervals share their resamples, drawn as `histobench bootstrap` draws them; DeLong's is
the normal interval over images, or Student's over patients. The second table has pairs of equally good
encoders.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from coverage import EQUAL
from page import write_section
from simulated_test_sets import SITUATIONS, Situation, as_predictions

from histobench.core.statistics.delong import delong_auroc
from histobench.core.statistics.intervals import Interval, bca_interval, percentile_interval
from histobench.core.statistics.jackknife import differences
from histobench.core.statistics.mcnemar import mcnemar
from histobench.core.statistics.paired import paired_difference
from histobench.core.statistics.resampling import jackknife_of_all, jackknife_strata, replicates_of_all
from histobench.roi.comparison.left_out_table import intervals_of_table, left_out_table
from histobench.roi.comparison.metric_function import all_metrics, one_metric, over_all_classes
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.predictions import Predictions

METRICS = ("balanced_accuracy", "auroc")
CHOSEN = (
    "50 images, 2 classes 10:1",
    "50 images, 3 classes 10:3:1",
    "200 images, 2 classes 10:1",
    "200 images, 3 classes 10:3:1",
    "5 patients, 3 classes 10:3:1",
    "12 patients, 3 classes 10:3:1",
    "30 patients, 3 classes 10:3:1",
    "90:10 patients, one class each",
)
RESAMPLES = 1000
COLUMNS = (
    *(f"balanced accuracy, {method}" for method in ("percentile", "BCa", "default")),
    *(f"AUROC, {method}" for method in ("percentile", "BCa", "DeLong", "default")),
)
CLAIMS = ("bootstrap p", "bootstrap interval excludes 0", "McNemar over images", "jackknife-t")


def coverage(situation: Situation, sets: int, *, seed: int) -> list[str]:
    """Percent of the intervals of every column that hold the truth."""
    truth = situation.truth()
    generator = np.random.default_rng(seed)
    held: dict[str, list[bool]] = {column: [] for column in COLUMNS}
    for k in range(sets):
        (p,), labels, patient = situation.draw(generator)
        for column, interval in _intervals(as_predictions(p, labels, patient), seed=k).items():
            if interval.low is not None:
                metric = "auroc" if column.startswith("AUROC") else "balanced_accuracy"
                held[column].append(interval.contains(truth[metric]))
    return ["too few" if len(v) < sets / 4 else f"{100 * float(np.mean(v)):.0f}" for v in held.values()]


def _intervals(run: Predictions, *, seed: int) -> dict[str, Interval]:
    units = SamplingUnits.of(run)
    evaluate = over_all_classes(all_metrics(run), run.labels)
    drawn = replicates_of_all(evaluate, units.design, n_resamples=RESAMPLES, seed=seed)
    left_out = jackknife_of_all(evaluate, units.design)
    strata = jackknife_strata(units.design)
    tables = left_out_table({"run": run}, METRICS, units)
    found = {}
    for metric, word in zip(METRICS, ("balanced accuracy", "AUROC"), strict=True):
        value = float(tables[metric].values[0])
        found[f"{word}, percentile"] = percentile_interval(drawn[metric])
        found[f"{word}, BCa"] = bca_interval(drawn[metric], value, left_out[metric], strata=strata)
        found[f"{word}, default"] = intervals_of_table(metric, tables[metric], {"run": run}, units)["run"]
    scores = run.probabilities[:, 1] if run.probabilities.shape[1] == 2 else run.probabilities
    nothing = Interval(None, None, reason="a class with one image")
    alone = units.group_of is None and np.bincount(run.labels).min() < 2
    area = None if alone else delong_auroc(scores, run.labels, clusters=run.groups)
    found["AUROC, DeLong"] = nothing if area is None else Interval(*area.interval())
    return found


def false_claims(situation: Situation, tables: int, *, seed: int) -> list[str]:
    """Percent of pairs of equally good encoders that are called different in balanced accuracy."""
    generator = np.random.default_rng(seed)
    claims = dict.fromkeys(CLAIMS, 0)
    for k in range(tables):
        (first, second), labels, patient = situation.draw(generator, models=2)
        runs = {"a": as_predictions(first, labels, patient), "b": as_predictions(second, labels, patient)}
        units = SamplingUnits.of(runs["a"])
        evaluate = over_all_classes(one_metric(runs, METRICS[0]), labels, metric=METRICS[0])
        drawn = replicates_of_all(evaluate, units.design, n_resamples=2 * RESAMPLES, seed=k)
        found = left_out_table(runs, METRICS[:1], units)[METRICS[0]]
        own = differences(found)
        resampled = paired_difference(float(own.difference[0]), drawn["a"] - drawn["b"], units.design)
        right = [run.predicted == run.labels for run in runs.values()]
        claims["bootstrap p"] += resampled.p_value < 0.05
        claims["bootstrap interval excludes 0"] += not resampled.interval.contains(0.0)
        claims["McNemar over images"] += mcnemar(right[0], right[1]).p_value < 0.05
        claims["jackknife-t"] += bool(own.p_value[0] < 0.05)
    return [f"{100 * count / tables:.1f}" for count in claims.values()]


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows])


def main() -> int:
    """Simulate, print, and write the tables where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=200, help="test sets of each situation (default: 200)")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/statistics.md")
    args = parser.parse_args()
    rows, claims = [], []
    for name in CHOSEN:
        rows.append([name, *coverage(SITUATIONS[name], args.sets, seed=args.seed)])
        print(" | ".join(rows[-1]), flush=True)
    for situation in EQUAL[:3]:
        claims.append([situation.name, *false_claims(situation, 2 * args.sets, seed=args.seed)])
        print(" | ".join(claims[-1]), flush=True)
    if args.write:
        error = 100 * (0.05 * 0.95 / args.sets) ** 0.5
        text = (
            f"Written by `python benchmarks/coverage_of_methods.py --write`: {args.sets} test sets in each "
            f"line (one standard error: {error:.1f} where 95 is true, {40 / args.sets**0.5:.1f} where 80 "
            f"is), {RESAMPLES:,} resamples; {2 * args.sets} pairs of equally good encoders in the second "
            f"table ({error / 2**0.5:.1f}), {2 * RESAMPLES:,} resamples.\n\n"
        )
        first = _table(["coverage of 95% intervals, %", *COLUMNS], rows)
        second = _table(["balanced accuracy called different at 5%, %", *CLAIMS], claims)
        page = Path(__file__).parents[1] / "docs" / "statistics.md"
        write_section("methods", f"{text}{first}\n\n{second}\n", page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
