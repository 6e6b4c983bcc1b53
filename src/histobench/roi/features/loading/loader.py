"""Batches of decoded images, in order, a few ahead of their use."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from histobench.core.devices import usable_cores
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.loading.job import DecodeJob, Failure, Hashed, HashJob, Outcome, Ring, Transform
from histobench.roi.features.loading.loading_pool import Layout, ProcessPool, ThreadPool

#: Batches in memory: two that the device works on and two that are being filled.
SLOTS = 4
#: Images per job of a worker: enough to make messages cheap, few enough to spread one batch over workers.
JOB_IMAGES = 16
HASH_IMAGES = 64

Pool = ProcessPool | ThreadPool


def open_pool(workers: int, *, polite: bool = False) -> Pool:
    """Processes, or threads of this one for 0; polite ones leave the cores to the network."""
    return ProcessPool(workers, polite=polite) if workers > 0 else ThreadPool(workers)


@dataclass(frozen=True)
class LoadRequest:
    """Images that are decoded into one batch; `tag` comes back with it."""

    refs: tuple[ImageRef, ...]
    keys: tuple[bytes, ...]
    tag: Any = None


@dataclass
class Batch:
    """Decoded images: `pixels[i]` is [batch, ...] for the i-th transform, of which `count` rows are meant."""

    request: LoadRequest
    slot: int
    pixels: Sequence[NDArray[Any]]
    failures: dict[int, Failure] = field(default_factory=dict)
    left: int = 0

    @property
    def count(self) -> int:
        """Number of images, the bad ones included (their pixels are zero)."""
        return len(self.request.refs)


class Loader:
    """Turns requests into batches with the workers of a pool."""

    def __init__(
        self,
        pool: Pool,
        transforms: Sequence[Transform],
        shapes: Sequence[tuple[int, ...]],
        *,
        batch: int,
        slots: int = SLOTS,
        on_written: Callable[[Ring], None] | None = None,
    ) -> None:
        """`on_written` gets the ring before the first batch, when the workers have made its pages."""
        dtypes = tuple("uint8" if isinstance(item, TransformSpec) else "float32" for item in transforms)
        self.layout = Layout(slots, batch, tuple(shapes), dtypes)
        self._pool = pool
        self._ring = pool.set_ring(self.layout, transforms)
        self._free = deque(range(slots))
        self._changed = threading.Condition()
        self._on_written = on_written

    def batches(self, requests: Iterable[LoadRequest]) -> Generator[Batch]:
        """The requests' batches in order; give each back with `release` when its pixels have been used."""
        ahead: deque[Batch] = deque()
        try:
            yield from self._in_order(iter(requests), ahead)
        finally:
            # An early stop leaves jobs behind, which must not be at work in the memory of what is next.
            while ahead:
                self._settle(ahead.popleft())

    def _in_order(self, waiting: Iterator[LoadRequest], ahead: deque[Batch]) -> Iterator[Batch]:
        more = True
        while True:
            while more and self._free:
                request = next(waiting, None)
                more = request is not None
                ahead += [self._begin(request)] if request is not None else []
            if not ahead:
                assert not more, "every batch of the ring is in use"
                return
            self._settle(ahead[0])
            self._pool.check()
            if self._on_written is not None:
                self._on_written(self._ring)
                self._on_written = None
            yield ahead.popleft()

    def _settle(self, batch: Batch) -> None:
        """Wait until no job of a batch is left, or the pool has stopped working."""
        with self._changed:
            while batch.left > 0 and self._pool.error is None:
                self._changed.wait()

    def release(self, batch: Batch) -> None:
        self._free.append(batch.slot)

    def _begin(self, request: LoadRequest) -> Batch:
        slot = self._free.popleft()
        batch = Batch(request, slot, self._ring[slot], left=len(request.refs))
        for array in batch.pixels:  # what is left of another batch must not reach the device
            array[len(request.refs) :] = 0
        size = max(1, min(JOB_IMAGES, -(-len(request.refs) // (2 * self._pool.workers))))
        for start in range(0, len(request.refs), size):
            part = slice(start, start + size)
            job = DecodeJob(slot, start, request.refs[part], request.keys[part])

            def done(position: int, outcomes: Sequence[Outcome], start: int = start) -> None:
                self._note(batch, start + position, outcomes)

            self._pool.submit(job, done)
        return batch

    def _note(self, batch: Batch, first: int, outcomes: Sequence[Outcome]) -> None:
        with self._changed:
            for row, outcome in enumerate(outcomes, first):
                if isinstance(outcome, Failure):
                    batch.failures[row] = outcome
                    for array in batch.pixels:
                        array[row] = 0
            batch.left -= len(outcomes)
            self._changed.notify_all()


class Hashing:
    """Content hashes of images that are handed over bit by bit: the workers begin with the first."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._results: list[Outcome] = []
        self._left = 0
        self._changed = threading.Condition()

    def put(self, refs: Sequence[ImageRef]) -> None:
        with self._changed:
            first = len(self._results)
            self._results += [None] * len(refs)
            self._left += len(refs)
        for start in range(0, len(refs), HASH_IMAGES):

            def done(position: int, outcomes: Sequence[Outcome], start: int = first + start) -> None:
                with self._changed:
                    self._results[start + position : start + position + len(outcomes)] = outcomes
                    self._left -= len(outcomes)
                    self._changed.notify_all()

            self._pool.submit(HashJob(tuple(refs[start : start + HASH_IMAGES])), done)

    def results(self) -> list[Hashed | Failure]:
        with self._changed:
            while self._left:
                self._pool.check()
                self._changed.wait()
        self._pool.check()
        return [result for result in self._results if result is not None]


def useful_workers(asked: int, *, on_cpu: bool) -> int:
    """As many loading workers as asked for, but no more than there are cores for them."""
    cores = usable_cores()
    return min(asked, max(1, cores // 2) if on_cpu else cores)
