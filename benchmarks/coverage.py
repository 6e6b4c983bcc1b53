"""What the default intervals and tests promise, and what they hold: simulated test sets with a known truth.

    python benchmarks/coverage.py --write              # the tables of docs/statistics.md, an hour on one core
    python benchmarks/coverage.py --sets 100 --only "12 patients"
    python benchmarks/coverage.py --sets 200 --only "12 patients, 3" --export /tmp/sets.csv

The first table is the share of test sets whose 95% interval holds the true value, the second the share of
pairs of equally good encoders that are called different at 5%. `--export` writes the simulated predictions of
one situation, for `benchmarks/coverage_check.py`, which shares no code with the package.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from page import write_section
from simulated_test_sets import SITUATIONS, Situation, as_predictions

from histobench.core.statistics.jackknife import differences
from histobench.core.statistics.mcnemar import clustered_mcnemar, mcnemar
from histobench.roi.comparison.left_out_table import left_out_table
from histobench.roi.comparison.metric_intervals import run_metric_intervals
from histobench.roi.comparison.sampling_units import SamplingUnits

SHOWN = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1_score": "macro F1",
    "auroc": "AUROC",
    "macro_auprc": "AUPRC",
    "quadratic_kappa": "kappa",
    "mcc": "MCC",
    "log_loss": "log loss",
    "brier": "Brier",
    "recall@1": "recall of class 1",
}
EQUAL = (
    Situation("5 patients", (10, 3, 1), patients=5, images_per_patient=30),
    Situation("12 patients", (10, 3, 1), patients=12),
    Situation("30 patients", (10, 3, 1), patients=30, images_per_patient=10),
    Situation("12 patients, accuracy .97", (1, 1), patients=12, skill=3.5),
    Situation("50 images", (10, 3, 1), images=50),
    Situation("200 images", (10, 1), images=200),
)
TESTED = ("accuracy", "balanced_accuracy", "auroc")


def coverage(situation: Situation, sets: int, *, seed: int) -> dict[str, tuple[float, int]]:
    """Of every metric the share of intervals that hold the truth, and how many test sets had one."""
    truth = situation.truth()
    generator = np.random.default_rng(seed)
    held = dict.fromkeys(truth, 0)
    made = dict.fromkeys(truth, 0)
    for _ in range(sets):
        (p,), labels, patient = situation.draw(generator)
        for name, interval in run_metric_intervals(as_predictions(p, labels, patient))[1].items():
            if interval.low is not None:
                made[name] += 1
                held[name] += interval.contains(truth[name])
    return {name: (held[name] / max(made[name], 1), made[name]) for name in truth}


def false_claims(situation: Situation, tables: int, *, seed: int) -> dict[str, float]:
    """How often two equally good encoders are called different at 5%."""
    generator = np.random.default_rng(seed)
    claims = dict.fromkeys([*TESTED, "McNemar, images", "McNemar, clustered"], 0)
    for _ in range(tables):
        (first, second), labels, patient = situation.draw(generator, models=2)
        runs = {"a": as_predictions(first, labels, patient), "b": as_predictions(second, labels, patient)}
        found = left_out_table(runs, TESTED, SamplingUnits.of(runs["a"]))
        for metric in TESTED:
            claims[metric] += bool(differences(found[metric]).p_value[0] < 0.05)
        right = [run.predicted == run.labels for run in runs.values()]
        claims["McNemar, images"] += mcnemar(right[0], right[1]).p_value < 0.05
        clusters = np.arange(len(labels)) if patient is None else patient
        claims["McNemar, clustered"] += clustered_mcnemar(right[0], right[1], clusters).p_value < 0.05
    return {name: count / tables for name, count in claims.items()}


def _percent(share: float, made: int, sets: int) -> str:
    if made < sets / 4:
        return "too few"
    return f"{100 * share:.0f}" + ("" if made > 0.995 * sets else f" ({100 * made / sets:.0f} % have one)")


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def export(situation: Situation, sets: int, path: Path, *, seed: int) -> None:
    """Simulated predictions as CSV; the set `population` is the large one that gives the truth."""
    generator = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["set", "patient", "label", *(f"p{k}" for k in range(situation.n_classes))])
        per_set = situation.images or situation.patients * situation.images_per_patient
        for name in ("population", *range(sets)):
            times = max(1, int(200_000 / per_set)) if name == "population" else 1
            (p,), labels, patient = situation.draw(generator, times=times)
            groups = np.arange(len(labels)) if patient is None else patient
            rows = zip(groups.tolist(), labels.tolist(), p.tolist(), strict=True)
            writer.writerows([name, group, label, *row] for group, label, row in rows)


def main() -> int:
    """Simulate, print, and write the tables where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=1000, help="test sets of each situation (default: 1000)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=1, help="situations at a time (default: 1)")
    parser.add_argument("--only", default="", help="situations whose name holds this")
    parser.add_argument("--export", type=Path, help="write the predictions of the first situation as CSV")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/statistics.md")
    args = parser.parse_args()
    chosen = [situation for name, situation in SITUATIONS.items() if args.only in name]
    if args.export:
        export(chosen[0], args.sets, args.export, seed=args.seed)
        return 0
    rows, claims = [], []
    equal = [situation for situation in EQUAL if args.only in situation.name]
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        covered = [pool.submit(coverage, situation, args.sets, seed=args.seed) for situation in chosen]
        claimed = [pool.submit(false_claims, situation, 2 * args.sets, seed=args.seed) for situation in equal]
        for situation, future in zip(chosen, covered, strict=True):
            found = future.result()
            rows.append([situation.name, *(_percent(*found[name], args.sets) for name in SHOWN)])
            print(" | ".join(rows[-1]), flush=True)
        for situation, shares in zip(equal, claimed, strict=True):
            claims.append([situation.name, *(f"{100 * share:.1f}" for share in shares.result().values())])
            print(" | ".join(claims[-1]), flush=True)
    if args.write:
        command = "Written by `python benchmarks/coverage.py --write`"
        first = _table(["coverage of 95% intervals, %", *SHOWN.values()], rows)
        second = _table(
            ["called different at 5%, %", *(f"{SHOWN[name]}, jackknife-t" for name in TESTED),
             "McNemar over images", "McNemar, clustered"], claims,
        )  # fmt: skip
        text = (
            f"{command}, {args.sets} test sets in each line (one standard error: "
            f"{100 * (0.05 * 0.95 / args.sets) ** 0.5:.1f}), twice as many pairs of encoders.\n\n"
        )
        page = Path(__file__).parents[1] / "docs" / "statistics.md"
        write_section("coverage", f"{text}{first}\n\n{second}\n", page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
