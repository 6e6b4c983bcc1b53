"""Whether compiling a network pays for the job at hand."""

from __future__ import annotations

import shutil
import time

import torch

from histobench.roi.features.forward import Forward

#: Seconds of work without compilation from which compiling is worth its own time (a minute or so).
PAYS_FROM = {"cuda": 150.0, "cpu": 150.0}

CPU_SAMPLE = 4


def worth_compiling(forward: Forward, shape: tuple[int, ...], dtype: torch.dtype, images: int) -> bool:
    """Whether the job is long: timed on one batch of black images, after one to warm up."""
    kind = torch.device(forward.device).type
    if kind not in PAYS_FROM or (kind == "cpu" and not has_compiler()):
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
