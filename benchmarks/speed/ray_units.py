"""What Ray costs per unit: a real cluster of two nodes on this machine, and workers that do nothing.

    python benchmarks/speed/ray_units.py [--units 5000]

The run has the units of a plan of 20 datasets x 59 encoders: each dataset is prepared, which finds shards,
then come feature files and evaluations. Driver, actors, claims and outputs are the real ones; only what a
worker does for a unit is a stub. So all of the time is the engine's, and that of one worker per unit is
printed: the time on the clock times two workers. The start of the cluster is not in it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from histobench.core.progress import Progress
from histobench.roi.units.roi_run import RoiRun
from histobench.roi.units.status import status_of
from histobench.work.engines import Display, RayEngine
from histobench.work.run_folder import Unit, write_lines

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from two_nodes import RayCluster, opened

DATASETS, ENCODERS = 20, 59


def units_of(count: int) -> list[Unit]:
    """About so many units, half of them shards, which are found when their dataset is prepared."""
    shards = max(1, count // 2 // DATASETS)
    tasks = max(1, (count - shards * DATASETS) // (DATASETS * ENCODERS) - 1)
    units: list[Unit] = []
    for dataset in (f"set-{number}" for number in range(DATASETS)):
        prepare = Unit("prepare", dataset, "", {"shards": shards})
        units.append(prepare)
        for encoder in (f"encoder-{number}" for number in range(ENCODERS)):
            features = Unit("features", dataset, encoder, {}, (prepare.id,))
            specs = [{"preset": "uni", "task": f"task-{number}"} for number in range(tasks)]
            units += [
                features,
                *(Unit("evaluate", dataset, encoder, spec, (features.id,)) for spec in specs),
            ]
    return units


class Stub:
    """In place of the real worker: an output for every unit, and nothing else."""

    def __init__(self, folder: RoiRun) -> None:
        self._folder = folder

    def perform(self, units: Sequence[Unit]) -> None:
        """Write the outputs."""
        for unit in units:
            if unit.kind == "prepare":
                found = [
                    Unit(
                        "shards",
                        unit.dataset,
                        "encoder-0",
                        {"prepare": unit.id, "encoders": [number % 15], "begin": number},
                        (unit.id,),
                    )
                    for number in range(unit.spec["shards"])
                ]
                write_lines(self._folder.path / "shards" / f"{unit.id}.jsonl", found)
            self._folder.finish(unit, computed={}, seconds={})

    def close(self) -> None:
        """Nothing to let go of."""


class StubRun(RoiRun):
    """A run whose units are done by a stub."""

    def open_worker(self, progress: Progress, say: Callable[[str], None] = lambda _: None) -> Stub:
        """Nothing but outputs."""
        return Stub(self)


def main() -> int:
    """Print one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=int, default=5000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ray-units-") as place:
        made = opened("ray", Path(place))
        assert isinstance(made, RayCluster)
        try:
            made.start()
            folder = StubRun.create(Path(place) / "results", {"engine": "ray"}, units_of(args.units))
            engine = RayEngine(made.flags[-1])
            engine.check()
            load, began = os.getloadavg()[0], time.perf_counter()
            engine.run(folder, Display())
            seconds = time.perf_counter() - began
        finally:
            made.stop()
        states = status_of(Path(place) / "results").states
    assert set(states) == {"done"}, states
    count = states["done"]
    print(
        f"{count:,} units through Ray on two nodes in {seconds:.1f} s: {2000 * seconds / count:.1f} ms of a "
        f"worker's time each (load average before: {load:.1f} on {os.cpu_count()} cores)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
