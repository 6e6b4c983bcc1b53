"""Several devices on one machine: each has a process that computes a share of the shards into the cache."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from histobench.core.devices import resolve_device
from histobench.core.errors import DiskFullError, HistobenchError
from histobench.core.progress import Progress, Silent
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.encoders.own_encoder import check_same
from histobench.roi.features.cache.row_cache import RowCache
from histobench.roi.features.inference.device_runner import DeviceRunner, EncoderState, make_ready
from histobench.roi.features.inference.shards import Shard
from histobench.roi.features.loading.loader import open_pool
from histobench.roi.features.shard_plan import PlannedEncoder
from histobench.roi.options import Settings


@dataclass(frozen=True)
class Share:
    encoders: Mapping[int, PlannedEncoder]
    shards: tuple[Shard, ...]
    refs: Mapping[bytes, ImageRef]
    root: Path
    settings: Settings
    workers: int
    threads: int


class DeviceProcess:
    """A process for one device, which runs this module: its share goes in by a pipe, counts come back."""

    def __init__(self, share: Share, progress: Progress) -> None:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "histobench.roi.features.multi_device"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,  # the first process decides what Ctrl-C means
        )
        assert self._process.stdin is not None
        self._reader = threading.Thread(target=self._count, args=(progress,), daemon=True)
        self._reader.start()
        with suppress(BrokenPipeError):  # it has died already
            pickle.dump(share, self._process.stdin)
            self._process.stdin.flush()

    def wait(self) -> None:
        self._reader.join()
        self._process.wait()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _count(self, progress: Progress) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            progress.advance(int(line))


class _Counts(Silent):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def advance(self, count: int) -> None:
        os.write(self._descriptor, b"%d\n" % count)


def planned_runner(
    encoders: Mapping[int, PlannedEncoder], *, root: Path, settings: Settings, workers: int, threads: int
) -> DeviceRunner:
    """Make encoders of a plan ready in this process; one that cannot be made is among the failures."""
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
        except (HistobenchError, OSError) as error:
            failures[place] = str(error)
    runner = DeviceRunner(states, device, open_pool(workers), tolerant=True)
    runner.failures = failures
    return runner


def main() -> None:
    counts = _Counts(os.dup(1))
    os.dup2(2, 1)  # what libraries print must not mix with the counts
    share: Share = pickle.load(sys.stdin.buffer)  # from the parent, through its own pipe
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        made = {name: getattr(share, name) for name in ("root", "settings", "workers", "threads")}
        with closing(planned_runner(share.encoders, **made)) as runner:
            runner.run(runner.lacking(share.shards), share.refs, stop_at_bad=False, progress=counts)
    except (HistobenchError, OSError) as error:
        sys.exit(f"{share.settings.device}: {error}; continuing on the first device")


def _die_with_parent() -> None:
    while os.read(0, 1 << 16):  # ends when the parent closes the pipe, or is killed
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
