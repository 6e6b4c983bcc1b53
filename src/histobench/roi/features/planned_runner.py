"""Encoders of a plan made ready in a process that has not planned it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from histobench.core.devices import resolve_device
from histobench.core.errors import DiskFullError, HistobenchError
from histobench.roi.encoders.own_encoder import check_same
from histobench.roi.features.cache.row_cache import RowCache
from histobench.roi.features.inference.device_runner import DeviceRunner, EncoderState, make_ready
from histobench.roi.features.loading.loader import open_pool
from histobench.roi.features.shard_plan import PlannedEncoder
from histobench.roi.options import Settings


def planned_runner(
    encoders: Mapping[int, PlannedEncoder], *, root: Path, settings: Settings, workers: int, threads: int
) -> DeviceRunner:
    """Make encoders of a plan ready in this process, with the decisions that were made there.

    One that cannot be made is among the failures of the runner.
    """
    torch.set_num_threads(threads)
    device = resolve_device(settings.device)
    states, failures = {}, {}
    for place, planned in encoders.items():
        description = planned.description
        try:
            encoder = planned.build()
            check_same(encoder, description["identity"])
            record = {"exactness": {}, **planned.record}
            state = EncoderState(encoder, description["precision"], RowCache(root, description), record)
            make_ready(state, settings, device)
            states[place] = state
        except DiskFullError:
            raise
        except HistobenchError as error:
            failures[place] = str(error)
    runner = DeviceRunner(states, device, open_pool(workers), tolerant=True)
    runner.failures = failures
    return runner
