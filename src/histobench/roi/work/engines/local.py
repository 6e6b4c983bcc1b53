"""This process does everything, one unit after the other."""

from __future__ import annotations

from collections.abc import Sequence

from histobench.roi.work.engines.engine import Display
from histobench.roi.work.loop import work_through
from histobench.roi.work.run_folder import RunFolder
from histobench.roi.work.unit import Unit
from histobench.roi.work.worker import Worker


class LocalEngine:
    """No cluster, no second process; the features of a dataset are computed in one pass over its images."""

    name = "local"
    whole = True

    def check(self) -> None:
        """This process is always there."""

    def run(self, folder: RunFolder, display: Display) -> bool:
        """Do the units in their order."""
        worker = Worker(folder, display.progress, display.say)

        def before(units: Sequence[Unit]) -> None:
            if units[0].kind in ("hash", "prepare"):
                display.before_extraction()

        def after(units: Sequence[Unit]) -> None:
            if units[0].kind in ("hash", "prepare"):
                display.after_extraction()

        work_through(folder, worker, alone=True, before=before, after=after)
        return True
