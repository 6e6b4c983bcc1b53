"""Work cut into parts, each done by one thread from its beginning to its end."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from itertools import islice
from threading import Barrier, Lock
from typing import Any, TypeVar

from histobench.core.errors import HistobenchError

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
    and cores that others use too, most of the time goes there. A part that takes long delays no one here.
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
