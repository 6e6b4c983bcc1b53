"""Does units, one batch after another, and writes their outputs; the same on every machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from histobench.core.errors import DiskFullError, HistobenchError, error_text
from histobench.core.files import patiently
from histobench.work.run_folder import BLOCKED, DONE, RunFolder, Unit

if TYPE_CHECKING:
    from histobench.core.progress import Progress
    from histobench.roi.data.roi_dataset import RoiDataset
    from histobench.roi.features.feature_extraction import Extractor
    from histobench.roi.features.inference.device_runner import DeviceRunner


class WorkerStoppedError(Exception):
    """The worker was asked to stop; what it had finished is kept, and the unit is not done."""


class UnitWorker:
    """Keeps the encoders of the last batch on the device, for the next one often needs the same."""

    def __init__(
        self, folder: RunFolder, progress: Progress, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.folder = folder
        self._progress = progress
        self._say = say
        self._runner: DeviceRunner | None = None
        self._batch: tuple[str, ...] = ()
        #: What this process has planned, with its networks, if it computes all of it.
        self._job: Extractor | None = None
        #: The dataset of the unit that has prepared it, read last.
        self._loaded: tuple[str, RoiDataset] | None = None

    def perform(self, units: Sequence[Unit]) -> None:
        """Do the units of one batch; one that cannot be done has an output that says why."""
        left = [unit for unit in units if not self._is_blocked(unit)]
        if self._job is not None and units[0].kind != "shards":
            self.close()
        together = {"evaluate": self._evaluate, "shards": self._compute}
        if left and left[0].kind in together:
            self._attempt(left, lambda: together[left[0].kind](left))
            return
        for unit in left:
            self._attempt([unit], lambda unit=unit: self._perform_one(unit))  # type: ignore[misc]

    def _attempt(self, units: Sequence[Unit], work: Callable[[], None]) -> None:
        """An error of the disk may pass, and what a unit has done so far is not done again."""
        try:
            patiently(work)
        except DiskFullError:  # not even this could be written down
            raise
        except (HistobenchError, OSError) as error:
            for unit in units:
                if self.folder.output(unit.id) is None:
                    self._say(f"FAILED: {self.folder.title(unit)}: {error_text(error)}")
                    self.folder.fail(unit, error_text(error))

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner, self._batch = None, ()
        if self._job is not None:
            self._job.close()
            self._job = None

    def _is_blocked(self, unit: Unit) -> bool:
        """Whether it waits for something that failed; the failure itself is reported there."""
        if unit.kind == "features":  # which tells of its own encoder alone
            return False
        outputs = ((need, self.folder.output(need)) for need in unit.needs)
        failed = [need for need, output in outputs if output is not None and output["state"] != DONE]
        # What is there is compared; with nothing of it there is nothing to be done.
        is_blocked = len(failed) == len(unit.needs) if unit.kind == "compare" else bool(failed)
        if is_blocked:
            self.folder.fail(unit, f"{failed[0]} failed", state=BLOCKED)
        return is_blocked

    def _perform_one(self, unit: Unit) -> None:
        from histobench.roi.features.fingerprint import versions
        from histobench.roi.units import comparing, extraction
        from histobench.roi.units.evaluating import evaluate_on_network, evaluate_splits

        if unit.kind == "prepare":
            self.close()
            if unit.spec["recipes"]:
                self._job = extraction.prepare(self.folder, unit, self._data(unit), self._progress)
            else:  # every feature comes from elsewhere
                self.folder.finish(unit, failures={}, versions=versions())
        elif unit.kind == "network":
            self.close()
            evaluate_on_network(self.folder, unit, self._say)
        elif unit.kind == "features":
            planning = self.folder.unit(unit.needs[0])
            output = self._output(planning.id)
            if output["state"] != DONE:
                raise HistobenchError(str(output["reason"]))
            extraction.check_versions(output)
            extraction.write_feature_files(self.folder, unit, output, planning, lambda: self._data(planning))
        elif unit.kind == "compare":
            self._say(self.folder.title(unit))
            with self._as_planned(unit):
                comparing.compare(self.folder, unit)
        else:
            with self._as_planned(unit):
                evaluate_splits(self.folder, unit, self._output(unit.needs[0]), self._say)

    def _compute(self, units: Sequence[Unit]) -> None:
        """Rows for the cache, those of encoders that can be made here."""
        from histobench.roi.units.extraction import compute_shards, open_runner

        planning = self.folder.unit(units[0].spec["prepare"])
        prepared = self._output(planning.id)
        work: Extractor | DeviceRunner | None = self._job
        if work is None:
            if self._runner is None or self._batch != self.folder.batch_of(units[0]):
                self.close()
                self._runner = open_runner(self.folder, prepared, units[0], planning.spec)
                self._batch = self.folder.batch_of(units[0])
            work = self._runner
        compute_shards(self.folder, prepared, units, work, self._progress)

    def _data(self, planning: Unit) -> RoiDataset:
        from histobench.roi.data.source import DatasetSource

        if self._loaded is None or self._loaded[0] != planning.id:
            self._loaded = planning.id, DatasetSource.from_note(planning.spec["source"]).load()
        return self._loaded[1]

    def _evaluate(self, units: Sequence[Unit]) -> None:
        from histobench.roi.units.evaluating import evaluate_units

        with self._as_planned(units[0]):
            evaluate_units(self.folder, units, self._output(units[0].needs[0]), self._say)

    def _as_planned(self, unit: Unit) -> AbstractContextManager[Any]:
        """As where the run was planned: versions, and threads, for sums depend on them in their last bits."""
        from histobench.roi.units.extraction import check_versions

        planning = self._planning(unit)
        if planning is None:  # the task has worked on images
            return nullcontext()
        prepared = self._output(planning.id)
        check_versions(prepared)
        if (threads := prepared.get("threads")) is None:  # this process has planned it
            return nullcontext()
        import torch
        from threadpoolctl import threadpool_limits

        torch.set_num_threads(threads)
        return cast(AbstractContextManager[Any], threadpool_limits(threads))

    def _planning(self, unit: Unit) -> Unit | None:
        """The unit that has prepared the dataset of another one, if features are made of it."""
        while unit.kind != "prepare":
            if unit.kind == "network":
                return None
            unit = self.folder.unit(unit.needs[0])
        return unit

    def _output(self, name: str) -> dict[str, Any]:
        output = self.folder.output(name)
        if output is None:
            raise HistobenchError(f"the output of {name} is missing; run again with `retry_failed`")
        return output
