"""How many images the device takes at a time."""

from __future__ import annotations

import torch

from histobench.roi.features.forward import Forward, is_out_of_memory

LARGEST = 1024
SMALLEST = 8


def cpu_batch() -> int:
    """On a CPU the fastest batch is one that stays in the caches: a few images per thread."""
    return min(64, max(8, 1 << (4 * torch.get_num_threads() - 1).bit_length()))


def largest_batch(forward: Forward, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The largest power of two that fits into the device's memory, with room to spare."""
    if torch.device(forward.device).type != "cuda":
        return cpu_batch()
    best, batch = SMALLEST, SMALLEST
    while batch <= LARGEST:
        forward.batch = batch
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(forward.device)
        try:
            pixels = torch.zeros((batch, *shape), dtype=dtype)
            forward.finish(forward.start(pixels, batch))
        except Exception as error:
            if is_out_of_memory(error):
                break
            raise
        if forward.batch < batch:  # it ran out of memory and was halved
            break
        best = batch
        free, total = torch.cuda.mem_get_info(forward.device)
        used = torch.cuda.max_memory_allocated(forward.device)
        if 2.2 * used > free + torch.cuda.memory_reserved(forward.device) or 2 * used > 0.8 * total:
            break
        batch *= 2
    forward.seconds = 0.0
    return best
