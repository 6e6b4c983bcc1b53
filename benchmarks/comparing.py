"""What comparing encoders costs: in units of their own, and in the report that reads what they made.

    python benchmarks/comparing.py [--datasets 2 6] [--encoders 59] [--images 200]

Predictions are made up and written as results of five tasks; the units, the worker that does them and the
report are the real ones. Intervals, which whoever evaluates computes, are there before. Seconds are those of
the processor, the libraries that are loaded first not counted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from simulated_results import SimulatedSet, write_run

from histobench.core.progress import Silent
from histobench.roi.comparison.run_intervals import BootstrapSettings
from histobench.roi.comparison.stored_intervals import bootstrap_runs
from histobench.roi.plan.benchmark import collect
from histobench.roi.plan.planner import comparison_units
from histobench.roi.plan.run import outcome_of
from histobench.roi.plan.summary import compare_tasks
from histobench.roi.results.reader import load_runs
from histobench.roi.work.loop import work_through
from histobench.roi.work.run_folder import REPORT, RunFolder, Unit
from histobench.roi.work.worker import Worker

TASKS = ("Linear-Probe", "KNN", "Proto", "Zero-shot", "Few-shot")
RESAMPLES = 20


def evaluated(results: Path, datasets: int, encoders: int, images: int) -> RunFolder:
    """A run that has done everything but comparisons and the report."""
    done: list[Unit] = []
    for data in (SimulatedSet.of_size(f"set-{number}", images) for number in range(datasets)):
        prepare = Unit("prepare", data.name, "")
        done.append(prepare)
        for encoder in (f"encoder-{number:02d}" for number in range(encoders)):
            features = Unit("features", data.name, encoder, {}, (prepare.id,))
            done.append(features)
            for task in TASKS:
                setting = {"setting": "9way_16shot", "episodes": 40} if task == "Few-shot" else {}
                write_run(
                    results / data.name / encoder / "uni", data, task, encoder=encoder,
                    skill=1 + 0.02 * int(encoder[-2:]), keep_votes=True, **setting,
                )  # fmt: skip
                spec = {"preset": "uni", "task": task, "seed": 0}
                done.append(Unit("evaluate", data.name, encoder, spec, (features.id,)))
    for _ in bootstrap_runs(load_runs(results), BootstrapSettings(RESAMPLES)):
        pass
    compare = comparison_units(done, results)
    report = Unit(REPORT, "", "", {}, tuple(unit.id for unit in compare))
    folder = RunFolder.create(results, {"engine": "ray"}, [*done, *compare, report])
    for unit in done:
        folder.finish(unit, threads=1, computed=0, seconds=0.0, outcome="evaluated")
    return folder


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds of the processor."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(datasets: int, encoders: int, images: int) -> None:
    """Print the seconds of each part."""
    with tempfile.TemporaryDirectory(prefix="comparing-") as place:
        results = Path(place)
        folder = evaluated(results, datasets, encoders, images)
        in_one = seconds_of(lambda: compare_tasks(results))
        worker = Worker(folder, Silent())
        units = seconds_of(lambda: work_through(folder, worker, kinds=("compare",), alone=True))
        outcome = outcome_of(RunFolder(folder.path), results)
        report = seconds_of(
            lambda: collect(
                outcome, n_bootstrap=RESAMPLES, over_splits=False, say=lambda _: None, heading="Summary"
            )
        )
    tables = datasets * len(TASKS)
    print(
        f"{datasets} datasets x {encoders} encoders x {len(TASKS)} tasks, {images} images: {units:.1f} s in "
        f"{tables} units ({units / tables:.2f} s each), then {report:.1f} s of report; comparisons by one "
        f"process: {in_one:.1f} s",
        flush=True,
    )


def main() -> None:
    """Measure for each number of datasets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", type=int, nargs="+", default=[2, 6])
    parser.add_argument("--encoders", type=int, default=59)
    parser.add_argument("--images", type=int, default=200)
    args = parser.parse_args()
    for datasets in args.datasets:
        measure(datasets, args.encoders, args.images)


if __name__ == "__main__":
    main()
