"""A run of the ROI track: the kinds of its units, what their outputs hold, and the jobs that do them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

from histobench.core.files import names_in
from histobench.core.progress import Progress
from histobench.work.clusters import MOST_TASKS
from histobench.work.run_folder import DONE, JobArray, RunFolder, Unit, Worker

#: `prepare` hashes the images and decides how features are computed; `shards` computes rows for the cache;
#: `features` writes an encoder's feature files; `evaluate` and `splits` are tasks on features; `network` is a
#: task that runs an encoder on images; `compare` puts the encoders of one dataset and task side by side.
KINDS = ("prepare", "shards", "network", "features", "evaluate", "splits", "compare")
#: Units of one task of one encoder.
EVALUATED = ("evaluate", "network")
#: The last unit, done by the process that began the run, or by Slurm's last job: what is made of everything.
REPORT = "report"
#: What is done without a network; units of different encoders do not depend on each other.
EVALUATING = ("features", "evaluate", "splits", "compare")
#: Tasks of an array have at least this much estimated work: shorter jobs waste a scheduler.
TASK_SECONDS = 15 * 60
#: An evaluation of one task, about, for the size of the array.
EVALUATION_SECONDS = 30.0
#: The same of a task that trains on images, at the least.
NETWORK_SECONDS = 600.0


class RoiRun(RunFolder):
    track = "roi"
    kinds = KINDS
    on_device = ("prepare", "shards", "network")
    finding = ("prepare",)
    found = ("shards",)
    at_once = {"shards": 4}  # noqa: RUF012 - declared in the base class

    def open_worker(self, progress: Progress, say: Callable[[str], None] = lambda _: None) -> Worker:
        from histobench.roi.units.unit_worker import UnitWorker

        return UnitWorker(self, progress, say)

    def batch_of(self, unit: Unit) -> tuple[str, ...]:
        """Units of one batch share an encoder on the device, or loaded features."""
        if unit.kind == "shards":
            return unit.kind, unit.spec["prepare"], json.dumps(unit.spec["encoders"])
        if unit.kind == "evaluate":
            return unit.kind, unit.dataset, unit.encoder, unit.spec["preset"]
        return (unit.id,)

    def title(self, unit: Unit) -> str:
        presets = self.plan.get("presets", ()) if unit.encoder else ()
        parts = [unit.dataset, unit.encoder, unit.spec.get("preset", "") if len(presets) > 1 else ""]
        title = " x ".join(part for part in parts if part)
        if unit.kind == "compare":
            return f"{title}: encoders compared by {unit.spec['task']}"
        return f"{title}: features" if unit.kind in ("prepare", "shards", "features") else title

    def forget_failures(self) -> int:
        """Let what failed be tried again; how many units that are."""
        self.refresh()
        finished = {unit.id: self.output(unit.id) or {} for unit in self.units() if self.state(unit.id)}
        again = {
            unit
            for unit, note in finished.items()
            if note["state"] != DONE or note.get("failures") or note.get("bad")
        }
        gone = set(again)
        for unit in self.units():  # what was made of the rest is made again with it
            if unit.kind == "features" and unit.id in again:
                gone.add(unit.spec["prepare"])  # images may have been replaced since
            if unit.kind in ("compare", REPORT) and not gone.isdisjoint(unit.needs):
                gone.add(unit.id)
        listed = {name.removesuffix(".json") for name in names_in(self.path / "outputs", ".json")}
        self.forget(gone | (listed - finished.keys()))  # and outputs whose files are gone
        return len(again)

    def steps(self) -> list[JobArray]:
        """One that prepares, an array that computes, an array that evaluates, one that collects."""
        units = self.units()
        planning = sum(unit.kind == "prepare" for unit in units)
        computing = sum(unit.seconds or 0.0 for unit in units if unit.kind == "features")
        on_images = (unit.seconds or 0.0 for unit in units if unit.kind == "network")
        computing += sum(max(seconds, NETWORK_SECONDS) for seconds in on_images)
        evaluating = EVALUATION_SECONDS * sum(unit.kind in ("evaluate", "splits") for unit in units)
        prepare = JobArray("prepare", ("prepare",), min(planning, MOST_TASKS), True, False)
        return [
            *([prepare] if planning else []),
            JobArray("shards", ("shards", "network"), _tasks(computing), on_device=True),
            JobArray("evaluate", EVALUATING, _tasks(evaluating)),
            JobArray("collect", ("compare", REPORT), 1, is_shared=False),
        ]


def _tasks(seconds: float) -> int:
    """How many tasks share so much work.

    >>> _tasks(0), _tasks(3600), _tasks(1e9)
    (1, 4, 1000)
    """
    return min(MOST_TASKS, max(1, math.floor(seconds / TASK_SECONDS)))
