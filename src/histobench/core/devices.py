"""Devices, cores and memory that a computation may use."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    backend = {"cuda": torch.cuda, "mps": torch.backends.mps}.get(kind.type)
    if backend is not None and not backend.is_available():
        gpu = "Apple GPU" if kind.type == "mps" else "NVIDIA or AMD GPU"
        advice = "running on the CPU; `histobench doctor` lists the devices of this machine"
        log.warning("%s was requested, but PyTorch finds no %s: %s", asked, gpu, advice)
        return "cpu"
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        raise HistobenchError(f"there is no {asked}: this machine has {torch.cuda.device_count()} GPU(s)")
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
