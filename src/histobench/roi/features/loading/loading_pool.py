"""The workers that load images, and the memory they share."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.redaction import environment_without_keys
from histobench.roi.features.loading.job import Failure, Job, Outcome, Transform, perform

#: Starts of arrays, so that copies and page locking work on whole pages.
ALIGNMENT = 4096


@dataclass(frozen=True)
class Layout:
    """`slots` batches; each holds one array [batch, *shape] of `dtypes[i]` per distinct transform."""

    slots: int
    batch: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def array_bytes(self) -> tuple[int, ...]:
        """Bytes of each array of a slot, rounded up to whole pages."""
        sizes = (
            self.batch * int(np.prod(shape)) * np.dtype(dtype).itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )
        return tuple(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)

    @property
    def nbytes(self) -> int:
        return self.slots * sum(self.array_bytes)


def arrays_of(layout: Layout, memory: NDArray[np.uint8]) -> list[list[NDArray[Any]]]:
    """Views into the memory: `arrays[slot][transform]`."""
    offset = 0
    ring = []
    for _ in range(layout.slots):
        slot = []
        for shape, dtype, nbytes in zip(layout.shapes, layout.dtypes, layout.array_bytes, strict=True):
            count = layout.batch * int(np.prod(shape)) * np.dtype(dtype).itemsize
            slot.append(memory[offset : offset + count].view(dtype).reshape(layout.batch, *shape))
            offset += nbytes
        ring.append(slot)
    return ring


class SharedMemory:
    """Anonymous memory with a descriptor that child processes inherit; it vanishes with its last user."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("histobench")
        else:
            with tempfile.TemporaryFile() as handle:
                self.descriptor = os.dup(handle.fileno())
        self._map: mmap.mmap | None = None

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """The memory as bytes; views of an earlier, larger one must not be used any more."""
        os.ftruncate(self.descriptor, nbytes)
        self._map = mmap.mmap(self.descriptor, nbytes)
        return np.frombuffer(self._map, dtype=np.uint8)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


#: Called with the position of the first outcome within the job that was submitted.
Done = Callable[[int, Sequence[Outcome]], None]


class _FallibleWorkers:
    """Workers that an error may stop; the waiting process finds it."""

    def __init__(self) -> None:
        self._ring: list[list[NDArray[Any]]] = []
        self.error: BaseException | None = None

    def check(self) -> None:
        """Raise what went wrong (an encoder's own transform may raise anything)."""
        if self.error is not None:
            raise self.error


class ThreadPool(_FallibleWorkers):
    """Pillow and hashlib release the interpreter lock, so threads do load in parallel."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        #: At least one thread, so that loading goes on beside the computation.
        self.workers = max(workers, 1)
        self._executor = ThreadPoolExecutor(self.workers, thread_name_prefix="histobench-load")
        self._transforms: Sequence[Transform] = ()

    def set_ring(self, layout: Layout, transforms: Sequence[Transform]) -> list[list[NDArray[Any]]]:
        self._transforms = transforms
        self._ring = arrays_of(layout, np.zeros(layout.nbytes, dtype=np.uint8))
        return self._ring

    def submit(self, job: Job, done: Done) -> None:
        def finish(future: Future[list[Outcome]]) -> None:
            error = future.exception() if not future.cancelled() else None
            if error is not None:
                self.error = error
                done(0, [])
            elif not future.cancelled():
                done(0, future.result())

        self._executor.submit(perform, job, self._ring, self._transforms).add_done_callback(finish)

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


#: Jobs in the hands of one worker: one it does and one it finds when it is done.
AHEAD = 2
#: How often an image may take a worker down before it counts as bad.
ATTEMPTS = 2


@dataclass
class _Task:
    job: Job
    done: Done
    position: int = 0
    attempts: int = 0


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    socket: Connection
    tasks: deque[_Task] = field(default_factory=deque)
    greeted: bool = False
    informed: bool = False  # knows the ring


class ProcessPool(_FallibleWorkers):
    """`workers` processes that hash and decode images; see `worker.py` for their side."""

    def __init__(self, workers: int, *, polite: bool = False) -> None:
        super().__init__()
        self.workers = workers
        self._polite = polite
        self._memory = SharedMemory()
        self._setting: tuple[Layout, Sequence[Transform]] | None = None
        self._queue: deque[_Task] = deque()
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = Pipe(duplex=False)
        self._woken = False
        self._closing = False
        self.restarts = 0
        self._workers: list[_Worker] = []
        self._thread: threading.Thread | None = None

    def set_ring(self, layout: Layout, transforms: Sequence[Transform]) -> list[list[NDArray[Any]]]:
        """Make the shared arrays that decode jobs write to; while no decode job is under way."""
        self._ring = arrays_of(layout, self._memory.allocate(layout.nbytes))
        self._setting = (layout, tuple(transforms))
        for worker in self._workers:
            worker.informed = False
        return self._ring

    def start(self) -> None:
        if self._thread is None:
            self._workers = [self._start() for _ in range(self.workers)]
            self._thread = threading.Thread(target=self._run, name="histobench-feed", daemon=True)
            self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        self.start()
        with self._lock:
            self._queue.append(_Task(job, done))
        self._wake()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._thread is not None:
            self._wake()
            self._thread.join()
        for worker in self._workers:
            worker.socket.close()
        for worker in self._workers:
            try:
                worker.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._memory.close()

    def _wake(self) -> None:
        with self._lock:
            if not self._woken:  # one message at a time, so that the pipe can never be full
                self._woken = True
                self._wake_write.send_bytes(b".")

    def _start(self) -> _Worker:
        ours, theirs = Pipe(duplex=True)
        environment = environment_without_keys() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        descriptors = (theirs.fileno(), self._memory.descriptor)
        command = [sys.executable, "-m", "histobench.roi.features.loading.loading_worker"]
        command += map(str, descriptors)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=descriptors, env=environment, process_group=0
            )  # a group of its own: this process decides what Ctrl-C means
        finally:
            theirs.close()
        if self._polite:
            with suppress(OSError, AttributeError):  # no need; not every system has it
                os.setpriority(os.PRIO_PROCESS, process.pid, 5)
        return _Worker(process, ours)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._feed()
                for source in wait([self._wake_read, *(worker.socket for worker in self._workers)]):
                    if source is self._wake_read:
                        with self._lock:
                            self._wake_read.recv_bytes()
                            self._woken = False
                    else:
                        self._receive(next(w for w in self._workers if w.socket is source))
        except BaseException as error:
            self.error = error
            # Let everyone who waits find the error.
            with self._lock:
                tasks = [task for worker in self._workers for task in worker.tasks] + list(self._queue)
                self._queue.clear()
            for task in tasks:
                task.done(task.position, [])

    def _feed(self) -> None:
        for load in range(AHEAD):  # every worker gets its first job before any gets its second
            for worker in self._workers:
                if len(worker.tasks) > load:
                    continue
                with self._lock:
                    if not self._queue:
                        return
                    task = self._queue.popleft()
                worker.tasks.append(task)
                if self._setting is not None and not worker.informed:
                    worker.informed = True
                    self._send(worker, ("ring", self._setting))
                self._send(worker, ("job", task.job))

    def _send(self, worker: _Worker, message: Any) -> None:
        with suppress(ConnectionError):  # its death is noticed when its socket is read
            worker.socket.send(message)

    def _receive(self, worker: _Worker) -> None:
        try:
            kind, outcomes = worker.socket.recv()
        except (EOFError, ConnectionError):
            self._bury(worker)
            return
        if kind == "ready":
            worker.greeted = True
            return
        task = worker.tasks.popleft()
        task.done(task.position, outcomes)

    def _bury(self, worker: _Worker) -> None:
        """Replace a dead worker and have its jobs done again; the one it died of is taken apart."""
        if self._closing:
            return
        worker.socket.close()
        worker.process.wait()
        if not worker.greeted:
            code = worker.process.returncode
            raise HistobenchError(f"loading workers cannot start (exit code {code}); use `num_workers` 0")
        tasks = list(worker.tasks)
        if tasks:
            tasks[:1] = self._suspects(tasks[0])
        with self._lock:
            self._queue.extendleft(reversed(tasks))
        self.restarts += 1
        self._workers[self._workers.index(worker)] = self._start()

    def _suspects(self, task: _Task) -> list[_Task]:
        task.attempts += 1
        if task.attempts < ATTEMPTS:
            return [task]
        if len(task.job.refs) > 1:
            places = range(len(task.job.refs))
            return [_Task(task.job.one(index), task.done, task.position + index) for index in places]
        task.done(task.position, [Failure("decoding it crashed the decoder", lasting=False)])
        return []
