"""What is tried before a job: how many images at a time, whether compiling pays, which precision is exact."""

from __future__ import annotations

import logging
import shutil
import time
from typing import Any

import torch
from torch import Tensor

from histobench.roi.features.inference.forward import Forward, Pending, is_out_of_memory

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


#: Seconds of work without compilation from which compiling is worth its own time. On a CPU that is a minute
#: or so: from 20 times as much work on it costs 5 % at most, even where the program becomes no faster.
PAYS_FROM = {"cuda": 150.0, "cpu": 20 * 60.0}

CPU_SAMPLE = 4
#: With fewer images no network of today takes that long on a CPU, and none is measured.
LEAST_ON_CPU = 1000


def worth_compiling(forward: Forward, shape: tuple[int, ...], dtype: torch.dtype, images: int) -> bool:
    """Whether the job is long: timed on one batch of black images, after one to warm up."""
    kind = torch.device(forward.device).type
    if kind not in PAYS_FROM or (kind == "cpu" and (images < LEAST_ON_CPU or not has_compiler())):
        return False
    batch = forward.batch
    if kind == "cpu":  # a few images tell as much there, and a batch would be noticed
        forward.batch = min(batch, CPU_SAMPLE)
    pixels = torch.zeros((forward.batch, *shape), dtype=dtype)
    forward.finish(forward.start(pixels, forward.batch))
    began = time.perf_counter()
    forward.finish(forward.start(pixels, forward.batch))
    seconds = (time.perf_counter() - began) * images / forward.batch
    forward.batch, forward.seconds = batch, 0.0
    return seconds >= PAYS_FROM[kind]


def has_compiler() -> bool:
    """Whether a C++ compiler is there, which code for the CPU needs."""
    return any(shutil.which(name) for name in ("c++", "g++", "clang++"))


log = logging.getLogger(__name__)

IMAGES = 8
#: The least cosine between the features of the fast and the plain path.
PROMISED = {"fp32": 0.9999, "bf16": 0.999, "fp16": 0.999}


def least_cosine(forward: Forward, pixels: Tensor) -> float:
    """The least cosine between the features of these images by the fast and by the plain path."""
    return _least_cosine(forward.start(pixels, len(pixels)).result(), forward.plain(pixels))


def _least_cosine(fast: Tensor, plain: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(fast.double(), plain.double(), dim=1).min())


class Exactness:
    """Compares the first images of a job once, and remembers the outcome in the job's record."""

    def __init__(self, record: dict[str, Any] | None = None) -> None:
        self.record = record
        self.on_measured: Any = None

    def look(self, forward: Forward, pixels: Tensor, pending: Pending) -> None:
        """Compare these images' features with the plain path's, if that has not been done yet."""
        if self.record is not None:
            return
        count = min(IMAGES, len(pixels))
        plain = forward.plain(pixels[:count])
        fast = pending.result()[:count]
        cosine = _least_cosine(fast, plain)
        if cosine != cosine:
            return  # features that are not numbers are an error of their own
        self.record = {"least_cosine_to_plain_fp32": round(cosine, 7), "images": count}
        if self.on_measured is not None:
            self.on_measured(self.record)
        if cosine < PROMISED[forward.precision]:
            log.warning(
                "%s: features in %s differ too much from plain fp32 (cosine %.5f)",
                forward.name,
                forward.precision,
                cosine,
            )
