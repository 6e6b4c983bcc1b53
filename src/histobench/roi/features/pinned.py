"""Page-locked memory: a GPU copies from it by itself, beside the computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray


@contextmanager
def pin(ring: Sequence[Sequence[NDArray[Any]]], device: str) -> Iterator[bool]:
    """Lock the pages of the ring's arrays for a GPU; where that is refused, copies are only slower."""
    locked: list[int] = []
    if torch.device(device).type == "cuda":
        runtime = torch.cuda.cudart()
        for array in (array for slot in ring for array in slot):
            pointer = array.ctypes.data
            if runtime.cudaHostRegister(pointer, array.nbytes, 0) != runtime.cudaError.success:
                break
            locked.append(pointer)
    try:
        yield bool(locked)
    finally:
        for pointer in locked:
            torch.cuda.cudart().cudaHostUnregister(pointer)
