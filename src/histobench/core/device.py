"""Which device a computation runs on."""

from __future__ import annotations

import logging

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
    if kind.type == "cuda" and not torch.cuda.is_available():
        log.warning("%s was asked for, but PyTorch sees no GPU here: running on the CPU", asked)
        return "cpu"
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        raise HistobenchError(f"there is no {asked}: this machine has {torch.cuda.device_count()} GPU(s)")
    if kind.type == "mps" and not torch.backends.mps.is_available():
        log.warning("%s was asked for, but is not available here: running on the CPU", asked)
        return "cpu"
    return str(kind)


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
