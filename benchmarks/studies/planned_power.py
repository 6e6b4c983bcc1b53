"""The power that `histobench power` promises, and what `histobench compare` then finds.

    python benchmarks/studies/planned_power.py [--pilots 40] [--test-sets 150] [--seed 1]

Two encoders of `statistics_study.py`, of which one makes 1.5 times as many mistakes. For each of many pilot
test sets `power` says how many patients show the true difference; test sets of so many patients are then
drawn, and the share in which `compare` finds the difference (p < 0.05) is what the plan was worth. Sizes
between those that are drawn are interpolated.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from statistics_study import CLASSES, METRICS, Cell, area_of, runs_of

from histobench.roi.comparison.left_out_table import left_out_table
from histobench.roi.comparison.power_of_runs import plan_test_set
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.metrics.formulas import label_metrics_of
from histobench.roi.predictions import Predictions
from histobench.roi.result_options import PowerSettings
from histobench.roi.results.layout import RunIdentity
from histobench.roi.results.stored_run import StoredRun
from histobench.statistics.jackknife import differences

DESIGNS = (
    (Cell("9:1", 0.97, 20, "equal", "normal"), "accuracy"),
    (Cell("9:1", 0.97, 20, "equal", "normal"), "balanced_accuracy"),
    (Cell("9:1", 0.97, 40, "lognormal", "normal"), "accuracy"),
    (Cell("1:1", 0.9, 12, "equal", "normal"), "accuracy"),
    (Cell("1:1", 0.8, 40, "lognormal", "exponential"), "balanced_accuracy"),
    (Cell("9:1", 0.9, 40, "equal", "normal"), "auroc"),
)
SIZES = (0.0, 0.15, 0.35, 0.65, 0.85, 1.0)  # quantiles of the planned sizes at which power is measured


def main() -> int:
    """Print promised and realized power of every design."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pilots", type=int, default=40)
    parser.add_argument("--test-sets", type=int, default=150, help="of each of six sizes (default: 150)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print("| metric, pilot | difference | patients planned | promised, found | at the pilot's own noise | "
          "present test set |\n" + "|---" * 6 + "|")  # fmt: skip
    for cell, metric in DESIGNS:
        generator = np.random.default_rng([args.seed, zlib.crc32(f"{cell} {metric}".encode())])
        skill, delta = _truth(cell, metric, generator)
        plans = []
        for _ in range(args.pilots):
            runs = [_stored(name, run) for name, run in _draw(cell, skill, generator).items()]
            plans.append(plan_test_set(runs, PowerSettings(metric, delta=delta, n_bootstrap=500)).estimate)
        needed, at_pilot = (
            np.array([getattr(plan, name) for plan in plans]) for name in ("units_needed", "units_at_pilot")
        )
        planned = np.concatenate([needed, at_pilot, [cell.groups]])
        sizes = np.unique(np.maximum(np.quantile(planned, SIZES).astype(int), 6))
        cells = [replace(cell, groups=int(n)) for n in sizes]
        found = [_found(each, metric, skill, args.test_sets, generator) for each in cells]

        def power(units, sizes=sizes, found=found) -> float:
            return float(np.mean(np.interp(np.log(units), np.log(sizes), np.maximum.accumulate(found))))

        assured, present = (
            np.mean([getattr(plan, name) for plan in plans])
            for name in ("assurance_at_pilot", "present_power")
        )
        print(f"| {metric}, {str(cell).replace(' | ', ', ')} | {delta:.3f} | {np.median(needed):.0f} | "
              f"0.80, {power(needed):.2f} | {assured:.2f}, {power(at_pilot):.2f} | "
              f"{present:.2f}, {power([cell.groups]):.2f} |", flush=True)  # fmt: skip
    return 0


def _truth(cell: Cell, metric: str, generator: np.random.Generator) -> tuple[np.ndarray, float]:
    """The skills of the encoders, and the true difference of the metric between the first and the third."""
    parts = [cell.draw(generator) for _ in range(max(12000 // cell.groups, 40))]
    labels, margin = (np.concatenate([part[k] for part in parts]) for k in (0, 2))
    error = 1 - cell.accuracy
    skill = -np.array([np.quantile(margin[:, k], error * more) for k, more in enumerate((1, 1, 1.5))])
    c = len(CLASSES[cell.classes])
    values = []
    for run in _chosen(runs_of(labels, labels, margin + skill, c, generator)).values():
        if metric == METRICS[3]:
            values.append(area_of(run.probabilities[:, 1], labels == 1))
        else:
            confusion = np.bincount(labels * c + run.predicted, minlength=c * c).reshape(1, c, c)
            values.append(float(label_metrics_of(confusion.astype(float), [metric])[metric][0]))
    return skill, values[0] - values[1]


def _chosen(runs: dict[str, Predictions]) -> dict[str, Predictions]:
    return {name: runs[name] for name in ("a", "c")}


def _draw(cell: Cell, skill: np.ndarray, generator: np.random.Generator) -> dict[str, Predictions]:
    labels, group, margin = cell.draw(generator)
    return _chosen(runs_of(labels, group, margin + skill, len(CLASSES[cell.classes]), generator))


def _stored(name: str, run: Predictions) -> StoredRun:
    stored = StoredRun(Path(name), RunIdentity("d", name), "Linear-probe", "", {}, run.classes)
    stored.__dict__["predictions"] = run  # what would be read from its file
    return stored


def _found(
    cell: Cell, metric: str, skill: np.ndarray, test_sets: int, generator: np.random.Generator
) -> float:
    """The share of test sets in which `compare` finds the difference."""
    found = 0
    for _ in range(test_sets):
        runs = _draw(cell, skill, generator)
        table = left_out_table(runs, [metric], SamplingUnits.of(runs["a"]))[metric]
        pair = differences(table)
        found += bool(pair.p_value[0] < 0.05 and pair.difference[0] > 0)
    return found / test_sets


if __name__ == "__main__":
    sys.exit(main())
