"""Devices, threads and the garbage collector of a computation."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from threading import Barrier, Lock
from typing import Any, TypeVar

from histobench.core.errors import HistobenchError

log = logging.getLogger(__name__)


def resolve_device(asked: str | None = None) -> str:
    """The device to use: the one asked for, else the first GPU, else the CPU.

    A GPU that was asked for and is not there is a warning, not an error: the same command then works on a
    laptop, and the numbers do not depend on the device.
    """
    import torch

    if not asked:
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(asked)
    except RuntimeError as error:
        raise HistobenchError(f"unknown device {asked!r}: use cpu, cuda, cuda:0, ... or mps") from error
    if kind.type == "cuda" and not torch.cuda.is_available():
        log.warning("%s was asked for, but PyTorch sees no GPU here: running on the CPU", asked)
        return "cpu"
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        raise HistobenchError(f"there is no {asked}: this machine has {torch.cuda.device_count()} GPU(s)")
    if kind.type == "mps" and not torch.backends.mps.is_available():
        log.warning("%s was asked for, but is not available here: running on the CPU", asked)
        return "cpu"
    # Streams and memory are those of one GPU: "cuda" is the first.
    return f"cuda:{kind.index or 0}" if kind.type == "cuda" else str(kind)


def device_name(device: str) -> str:
    """A device in words: the name of the GPU, or the number of CPU threads that PyTorch uses."""
    import platform

    import torch

    kind = torch.device(device)
    if kind.type == "cuda":
        return str(torch.cuda.get_device_name(kind))
    if kind.type == "cpu":
        threads = torch.get_num_threads()
        return f"CPU ({platform.machine()}, {threads} thread{'' if threads == 1 else 's'})"
    return kind.type.upper()


def cpu_kind() -> str:
    """What has to be the same on two CPUs for the same bits: the family, and the instructions that are used.

    ATEN_CPU_CAPABILITY makes PyTorch use those of an older CPU.
    """
    import platform

    import torch

    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int | None:
    """Bytes of memory that are free on this machine, or in this container; None where it cannot be known."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, max(0, int(limit) - used))


# Work cut into parts, each done by one thread from its beginning to its end.

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def one_thread() -> Iterator[int]:
    """Operations of this thread stay on it meanwhile; gives the number that `spread` may use instead."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def spread(
    work: Callable[[T], R], parts: Sequence[T], *, device: str = "cpu", threads: int | None = None
) -> list[R]:
    """Results of `work` on every part, in their order, by that many threads: as many as torch may use.

    Operations inside of `work` run on the thread that calls them. An operation that is itself spread over
    threads ends with all of them waiting for the slowest, and they wait by spinning: with many operations
    and cores that others use too, most of the time goes there. A part that takes long delays nobody here.
    On a GPU the parts follow each other.
    """
    with closing(stream(work, parts, device=device, threads=threads)) as results:
        return list(results)


def stream(
    work: Callable[[T], R],
    parts: Iterable[T],
    *,
    device: str = "cpu",
    threads: int | None = None,
    processes: bool = False,
) -> Generator[R, None, None]:
    """As `spread`, one result after the other; parts are taken as they are needed, two for every thread.

    Close the iterator where it may not be read to its end. With `processes`, copies of this process take the
    place of threads where the system can make them: for work whose many operations would wait for Python's
    lock. Parts and results then travel between processes, so they must be small and hold no tensors.
    """
    import torch

    threads = threads or torch.get_num_threads()
    if processes and threads > 2 and torch.device(device).type == "cpu" and sys.platform == "linux":
        yield from _stream_from_copies(work, parts, threads)
        return
    if isinstance(parts, Sequence):
        threads = min(threads, len(parts))
    if threads <= 1 or torch.device(device).type != "cpu":
        yield from map(work, parts)
        return
    inference = torch.is_inference_mode_enabled()

    def alone(part: T) -> R:
        with torch.inference_mode(inference):
            return work(part)

    left = iter(parts)
    pool = _pool(threads)
    waiting: deque[Future[R]] = deque(pool.submit(alone, part) for part in islice(left, 2 * threads))
    try:
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(alone, part) for part in islice(left, 1))
            yield done
    finally:
        for future in waiting:
            future.cancel()
        wait(waiting)


def _stream_from_copies(work: Callable[[T], R], parts: Iterable[T], count: int) -> Generator[R, None, None]:
    import ctypes
    import signal
    import warnings
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
    from multiprocessing import get_context

    import torch

    inference = torch.is_inference_mode_enabled()

    def prepare() -> None:
        global _work
        _work = torch.inference_mode(inference)(work)
        torch.set_num_threads(1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)

    left = iter(parts)
    pool = ProcessPoolExecutor(count, get_context("fork"), prepare)
    waiting: deque[Future[R]] = deque()
    try:
        with warnings.catch_warnings():
            # Python warns of threads at a fork; the copies use none of what threads may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            waiting.extend(pool.submit(_call, part) for part in islice(left, 2 * count))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(_call, part) for part in islice(left, 1))
            yield done
    except BrokenProcessPool as error:
        raise HistobenchError(
            "a process of the evaluation was killed from outside, probably because memory ran out; "
            "use fewer processes: OMP_NUM_THREADS=2"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_work: Callable[[Any], Any]


def _call(part: Any) -> Any:
    return _work(part)


_pools: dict[int, ThreadPoolExecutor] = {}
_pools_lock = Lock()


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads whose operations stay on them. They are kept: starting them costs more than short work."""
    import torch

    with _pools_lock:
        if threads not in _pools:
            own = torch.get_num_threads()

            def alone() -> None:
                torch.set_num_threads(1)
                torch.get_num_threads()  # a thread takes the number that was set last when it first asks

            pool = ThreadPoolExecutor(threads, initializer=alone)
            # All are started now: threads that start later begin with the number that was set last.
            together = Barrier(threads)
            wait([pool.submit(together.wait) for _ in range(threads)])
            torch.set_num_threads(own)
            _pools[threads] = pool
        return _pools[threads]


if hasattr(os, "register_at_fork"):  # a child has none of the threads
    os.register_at_fork(after_in_child=_pools.clear)


# Python's collector of cyclic garbage, out of the way of work that makes none.


@contextmanager
def collector_paused() -> Iterator[None]:
    """Make very many objects that all stay, without looking for garbage among them again and again.

    That took a fifth of the time of reading units; in a process with a compiled network millions of other
    objects are looked through, too.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
