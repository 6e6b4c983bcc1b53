"""Writes shards beside the computation, so that the device does not wait for the disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from histobench.roi.features.row_cache import RowCache

#: Shards that may wait for the disk before the computation does.
WAITING = 4


class ShardWriter:
    """A thread that adds shards to caches; an error in it is raised by the next call."""

    def __init__(self) -> None:
        self._queue: queue.Queue[
            tuple[RowCache, Sequence[bytes], NDArray[np.float32], Mapping[bytes, str]] | None
        ]
        self._queue = queue.Queue(WAITING)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="histobench-write", daemon=True)
        self._thread.start()

    def put(
        self, cache: RowCache, keys: Sequence[bytes], rows: NDArray[np.float32], bad: Mapping[bytes, str]
    ) -> None:
        """Have a shard written."""
        self._check()
        self._queue.put((cache, keys, rows, bad))

    def close(self) -> None:
        """Wait until everything is on disk."""
        self._queue.put(None)
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._error is not None:
                continue
            try:
                cache, keys, rows, bad = item
                cache.add(keys, rows, bad)
            except BaseException as error:
                self._error = error
