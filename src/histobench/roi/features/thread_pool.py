"""Loading workers that are threads: for transforms that cannot leave the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.roi.features.job import Job, Outcome, Transform, perform
from histobench.roi.features.ring import Layout, arrays_of

#: Called with the position of the first outcome within the job that was submitted.
Done = Callable[[int, Sequence[Outcome]], None]


class ThreadPool:
    """Pillow and hashlib release the interpreter lock, so threads do load in parallel."""

    def __init__(self, workers: int) -> None:
        #: At least one thread, so that loading goes on beside the computation.
        self.workers = max(workers, 1)
        self._executor = ThreadPoolExecutor(self.workers, thread_name_prefix="histobench-load")
        self._ring: list[list[NDArray[Any]]] = []
        self._transforms: Sequence[Transform] = ()
        self._error: BaseException | None = None

    def set_ring(self, layout: Layout, transforms: Sequence[Transform]) -> list[list[NDArray[Any]]]:
        """Make the arrays that decode jobs write to."""
        self._transforms = transforms
        self._ring = arrays_of(layout, np.zeros(layout.nbytes, dtype=np.uint8))
        return self._ring

    def submit(self, job: Job, done: Done) -> None:
        """Do a job in some thread and call `done` there."""

        def finish(future: Future[list[Outcome]]) -> None:
            error = future.exception() if not future.cancelled() else None
            if error is not None:
                self._error = error
                done(0, [])
            elif not future.cancelled():
                done(0, future.result())

        self._executor.submit(perform, job, self._ring, self._transforms).add_done_callback(finish)

    def check(self) -> None:
        """Raise what went wrong in a thread (an encoder's own transform may raise anything)."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Drop what is not started and wait for the rest."""
        self._executor.shutdown(wait=True, cancel_futures=True)
