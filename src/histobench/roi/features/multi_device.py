"""Several devices on one machine: each has a process that computes its share of the shards.

A shard does not depend on where it is computed: the processes meet only in the
cache. This module is both sides: `DeviceProcess` starts one, `python -m` with its name is one.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from histobench.core.devices import resolve_device
from histobench.core.errors import DiskFullError, HistobenchError
from histobench.core.progress import Progress
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
    """What one process is to compute, and with which decisions already made."""

    encoders: Mapping[int, PlannedEncoder]
    shards: tuple[Shard, ...]
    refs: Mapping[bytes, ImageRef]
    root: Path
    settings: Settings
    workers: int
    threads: int
    known_bad: bool


class DeviceProcess:
    """A process for one device; `wait` gives the bad images it met, and then `failures` the encoders."""

    def __init__(self, share: Share, progress: Progress) -> None:
        self.device = share.settings.device
        self._progress = progress
        self.failures: dict[int, str] = {}
        self._bad: dict[bytes, str] = {}
        self._error: str | None = None
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "histobench.roi.features.multi_device"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._process.stdin is not None
        try:
            pickle.dump(share, self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died already, which `wait` reports

    def wait(self) -> dict[bytes, str]:
        """Wait for the end; what it has finished is in the cache."""
        self._reader.join()
        code = self._process.wait()
        if self._error is not None:
            raise HistobenchError(f"on {self.device}: {self._error}")
        if code != 0:
            raise HistobenchError(
                f"the process on {self.device} died (exit code {code}); what it finished is kept, run again"
            )
        return self._bad

    def stop(self) -> None:
        """End it, if it is still there."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # something a library printed
            if "advance" in message:
                self._progress.advance(int(message["advance"]))
            elif "bad" in message:
                self._bad = {bytes.fromhex(key): str(why) for key, why in message["bad"].items()}
                self.failures = {int(place): f"on {self.device}: {why}" for place, why in message["failures"]}
            elif "error" in message:
                self._error = str(message["error"])


class _Reports:
    """Progress as lines of JSON to the parent."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def begin(self, what: str, total: int) -> None:
        """Nothing: the parent has announced the whole."""

    def advance(self, count: int) -> None:
        """Tell the parent."""
        self.send({"advance": count})

    def end(self) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def send(self, message: dict[str, Any]) -> None:
        self._stream.write(json.dumps(message).encode() + b"\n")
        self._stream.flush()


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
        except (HistobenchError, OSError) as error:
            failures[place] = str(error)
    runner = DeviceRunner(states, device, open_pool(workers), tolerant=True)
    runner.failures = failures
    return runner


def share_shards(shards: Sequence[Shard], devices: int) -> list[list[Shard]]:
    """Deal the shards out like cards."""
    return [list(shards[start::devices]) for start in range(devices)]


def main() -> int:
    """Read a share from standard input, compute it, report on standard output."""
    reports = _Reports(sys.stdout.buffer)
    sys.stdout = sys.stderr  # what libraries print must not mix with the reports
    share: Share = pickle.load(sys.stdin.buffer)  # from the parent, through its own pipe
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        with closing(
            planned_runner(
                share.encoders,
                root=share.root,
                settings=share.settings,
                workers=share.workers,
                threads=share.threads,
            )
        ) as runner:
            bad = runner.run(
                runner.lacking(share.shards),
                share.refs,
                stop_at_bad=share.settings.on_bad_image == "stop",
                known_bad=share.known_bad,
                progress=reports,
            )
    except (HistobenchError, OSError) as error:
        reports.send({"error": str(error)})
        return 2
    reports.send(
        {"bad": {key.hex(): why for key, why in bad.items()}, "failures": list(runner.failures.items())}
    )
    return 0


def _die_with_parent() -> None:
    while os.read(0, 1 << 16):  # ends when the parent closes the pipe, or is killed
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
