"""What is tried before a job: how many images at a time, whether compiling pays, which precision is exact."""

from __future__ import annotations

import logging
import shutil
import time
from typing import Any

import torch
from torch import Tensor

from histobench.roi.features.inference.forward import Forward, Pending

LARGEST = 1024
SMALLEST = 8


def cpu_batch() -> int:
    """On a CPU the fastest batch is one that stays in the caches: a few images per thread."""
    return min(64, max(8, 1 << (4 * torch.get_num_threads() - 1).bit_length()))


def largest_batch(forward: Forward, shape: tuple[int, ...], dtype: torch.dtype, images: int) -> int:
    """The largest power of two that fits into the device's memory with room to spare, as far as it is needed.

    The memory of a few images tells how many fit. Preparing a CNN for a batch size takes seconds: it sees one
    only, the largest, or what fits of it.
    """
    if torch.device(forward.device).type != "cuda":
        return cpu_batch()
    most = SMALLEST
    while most < min(LARGEST, images):
        most *= 2
    before = torch.cuda.memory_allocated(forward.device)
    first = most if forward.is_cnn else SMALLEST
    peak = _peak(forward, shape, dtype, first)
    if forward.batch < first:  # memory ran out, and was full before it did
        peak = _peak(forward, shape, dtype, forward.batch)
    each = (peak - before) / forward.batch
    free, total = torch.cuda.mem_get_info(forward.device)
    room = min((free + torch.cuda.memory_reserved(forward.device)) / 1.1, 0.8 * total)
    batch = SMALLEST
    while batch < most and 2 * (before + batch * each) <= room:
        batch *= 2
    if batch > forward.batch and not forward.is_cnn:
        _peak(forward, shape, dtype, batch)
    forward.batch = min(batch, forward.batch)
    forward.seconds = 0.0
    return forward.batch


def _peak(forward: Forward, shape: tuple[int, ...], dtype: torch.dtype, batch: int) -> int:
    """The most bytes that are taken while the network sees a batch; `forward.batch` is then one that fits."""
    forward.batch = batch
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(forward.device)
    forward.finish(forward.start(torch.zeros((batch, *shape), dtype=dtype), batch))
    return int(torch.cuda.max_memory_allocated(forward.device))


#: Seconds of work without compilation from which compiling is worth its own time. On a CPU that is a minute
#: or so: from 20 times as much work on it costs 5 % at most, even where the program becomes no faster.
PAYS_FROM = {"cuda": 150.0, "cpu": 20 * 60.0}

CPU_SAMPLE = 4
#: With fewer images no network of today takes that long on a CPU, and none is measured.
LEAST_ON_CPU = 1000


def worth_compiling(forward: Forward, shape: tuple[int, ...], dtype: torch.dtype, images: int) -> bool:
    """Whether the job is long: timed on one batch of black images, after one to warm up."""
    kind = torch.device(forward.device).type
    if kind not in PAYS_FROM:
        return False
    if kind == "cpu" and (images < LEAST_ON_CPU or not any(map(shutil.which, ("c++", "g++", "clang++")))):
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


log = logging.getLogger(__name__)

IMAGES = 8
#: The least cosine between the features of the fast and the plain path.
PROMISED = {"fp32": 0.9999, "bf16": 0.999, "fp16": 0.999}


def least_cosine(forward: Forward, pixels: Tensor, pending: Pending) -> float:
    """The least cosine between the features of these images by the fast (`pending`) and by the plain path."""
    plain = forward.plain(pixels)
    fast = pending.result()[: len(pixels)]
    return float(torch.nn.functional.cosine_similarity(fast.double(), plain.double(), dim=1).min())


def exactness_of(forward: Forward, pixels: Tensor, pending: Pending) -> dict[str, Any] | None:
    """How far the first of these images' features are from the plain path's; None if they are no numbers."""
    count = min(IMAGES, len(pixels))
    cosine = least_cosine(forward, pixels[:count], pending)
    if cosine != cosine:
        return None
    if cosine < PROMISED[forward.precision]:
        log.warning(
            "%s: features in %s differ too much from plain fp32 (cosine %.5f)",
            forward.name,
            forward.precision,
            cosine,
        )
    return {"least_cosine_to_plain_fp32": round(cosine, 7), "images": count}
