"""A loading worker: a process that decodes images into shared memory. It never imports torch.

As a program of its own it neither copies the parent's threads (fork) nor runs its script again (spawn).
"""

from __future__ import annotations

import mmap
import random
import sys
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.roi.data.plain_jpeg import agreeing_codec
from histobench.roi.features.loading.job import perform
from histobench.roi.features.loading.loading_pool import arrays_of

#: Of Linux since 5.14; the `mmap` module has no name for it.
_MADV_POPULATE_READ = 22


def populate(pages: mmap.mmap) -> None:
    """Have all pages at hand; every worker begins somewhere else, for at the same pages they would wait."""
    first = random.randrange(len(pages) // mmap.PAGESIZE + 1) * mmap.PAGESIZE
    for start, end in ((first, len(pages)), (0, first)):
        if end > start:
            # A system that does not know it brings them when they are used.
            with suppress(OSError, ValueError, AttributeError):
                pages.madvise(_MADV_POPULATE_READ, start, end - start)


def main(socket: int, memory: int) -> None:
    """Do jobs until the other end is closed, which also happens when the parent is killed."""
    warnings.simplefilter("ignore")  # a bad image is reported by its outcome
    parent = Connection(socket)
    ring: list[list[NDArray[Any]]] = []
    transforms: Any = ()
    try:
        parent.send(("ready", None))
        agreeing_codec()  # now, and not when the first batch is waited for
        while True:
            kind, content = parent.recv()
            if kind == "ring":
                layout, transforms = content
                pages = mmap.mmap(memory, layout.nbytes)
                populate(pages)
                ring = arrays_of(layout, np.frombuffer(pages, dtype=np.uint8))
            else:
                parent.send(("done", perform(content, ring, transforms)))
    except (EOFError, ConnectionError):
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
