"""A ring of batches in shared memory: workers write pixels into it, the device reads them out of it."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError

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
        """Bytes of the whole ring."""
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
    """Anonymous memory with a descriptor that child processes inherit; it vanishes with its last user.

    Nothing in /dev/shm is left behind by a killed run, and the small /dev/shm of containers is no limit.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("histobench")
        else:
            with tempfile.TemporaryFile() as handle:
                self.descriptor = os.dup(handle.fileno())
        self._map: mmap.mmap | None = None

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """The memory as bytes; views of an earlier, larger one must not be used any more."""
        try:
            os.ftruncate(self.descriptor, nbytes)
            self._map = mmap.mmap(self.descriptor, nbytes)
        except OSError as error:
            raise HistobenchError(
                f"cannot take {nbytes / 1e9:.1f} GB of memory for images; use a smaller `batch_size`"
            ) from error
        return np.frombuffer(self._map, dtype=np.uint8)

    def close(self) -> None:
        """Give the descriptor back; the memory goes when the last view of it does."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
