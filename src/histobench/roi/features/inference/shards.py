"""The loop of extraction: images in shards, through every encoder that misses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from histobench.core.errors import HistobenchError
from histobench.core.progress import Progress
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.features.cache.row_cache import RowCache, ShardWriter
from histobench.roi.features.inference.forward import Forward, Pending
from histobench.roi.features.inference.tuning import exactness_of
from histobench.roi.features.loading.job import Failure
from histobench.roi.features.loading.loader import Batch, Loader, LoadRequest

#: Images per shard, about: what a kill can cost at most, and what is held in memory at a time. Either is
#: a few seconds of work.
SHARD_IMAGES = 1024
CPU_SHARD_IMAGES = 256


@dataclass(frozen=True)
class Shard:
    """Images (by content hash) that the encoders at these positions have not seen."""

    keys: Sequence[bytes]
    encoders: tuple[int, ...]


def shard_size(batch: int, *, on_cpu: bool = False) -> int:
    """Whole batches, about `SHARD_IMAGES` images, or fewer where they take longer.

    >>> shard_size(256), shard_size(100), shard_size(5000), shard_size(32, on_cpu=True)
    (1024, 1100, 5000, 256)
    """
    return -(-(CPU_SHARD_IMAGES if on_cpu else SHARD_IMAGES) // batch) * batch


def plan_shards(missing: Iterable[Sequence[bytes]], size: int) -> list[Shard]:
    """Cut missing images into shards; encoders that miss the same shard share its decoding.

    What is left of a killed run is cut in the same places: features come out the same to the last bit."""
    sharing: dict[Any, list[int]] = {}
    for encoder, keys in enumerate(missing):
        for start in range(0, len(keys), size):
            part = keys[start : start + size]
            sharing.setdefault(tuple(part) if isinstance(part, list) else part, []).append(encoder)
    return [Shard(keys, tuple(encoders)) for keys, encoders in sharing.items()]


#: Batches the device has been given and not finished: it never waits for the host.
IN_FLIGHT = 2


@dataclass
class Lane:
    """One encoder in the loop: its network, its cache, and which of the loader's arrays it reads."""

    forward: Forward
    cache: RowCache
    pixels: int
    #: Told how far its first features are from the plain path's; None once that is known.
    on_exactness: Callable[..., None] | None


@dataclass
class _Work:
    shard: Shard
    left: int
    decode_only: bool | None = None
    rows: list[list[np.ndarray]] = field(default_factory=list)
    failures: dict[bytes, Failure] = field(default_factory=dict)


def compute(
    shards: Sequence[Shard],
    lanes: Mapping[int, Lane],
    loader: Loader,
    refs: Mapping[bytes, ImageRef],
    *,
    stop_at_bad: bool,
    known_bad: bool = False,
    progress: Progress,
) -> dict[bytes, str]:
    """Fill the caches with the shards' rows; gives back the images that could not be used, and why.

    With `stop_at_bad`, once one is bad, shards not begun are only decoded: soon every bad image is known."""
    bad: dict[bytes, str] = {}
    writer = ShardWriter()
    begun: dict[int, _Work] = {}
    flying: deque[tuple[_Work, Batch, list[Pending]]] = deque()
    batches = loader.batches(_requests(shards, refs, loader.layout.batch))
    try:
        for batch in batches:
            writer.check()  # a full disk is known at once, and not after another shard
            work: _Work = batch.request.tag
            begun[id(work)] = work
            if work.decode_only is None:
                work.decode_only = stop_at_bad and (known_bad or bool(bad))
            pending = [] if work.decode_only else _start(work, batch, lanes)
            bad.update({batch.request.keys[row]: item.reason for row, item in batch.failures.items()})
            flying.append((work, batch, pending))
            # What is finished lands at once: its memory is needed for loading.
            while flying and (len(flying) > IN_FLIGHT or all(item.is_ready for item in flying[0][2])):
                _land(*flying.popleft(), lanes, loader, writer, progress)
        while flying:
            _land(*flying.popleft(), lanes, loader, writer, progress)
    except BaseException:
        # The rows of shards that are not complete are whole batches from the first on, so that the run is
        # cut in the same places when it goes on.
        for work in begun.values():
            if 0 < work.left < len(work.shard.keys) and not work.decode_only:
                _write(work, work.shard.keys[: len(work.shard.keys) - work.left], lanes, writer)
        raise
    finally:
        batches.close()
        writer.close()
    return bad


def _requests(shards: Sequence[Shard], refs: Mapping[bytes, ImageRef], batch: int) -> Iterator[LoadRequest]:
    for shard in shards:
        work = _Work(shard, left=len(shard.keys), rows=[[] for _ in shard.encoders])
        for start in range(0, len(shard.keys), batch):
            keys = tuple(shard.keys[start : start + batch])
            yield LoadRequest(tuple(refs[key] for key in keys), keys, work)


def _start(work: _Work, batch: Batch, lanes: Mapping[int, Lane]) -> list[Pending]:
    started = []
    for encoder in work.shard.encoders:
        lane = lanes[encoder]
        pixels = torch.from_numpy(batch.pixels[lane.pixels])
        pending = lane.forward.start(pixels, batch.count)
        if lane.on_exactness and (found := exactness_of(lane.forward, pixels[: batch.count], pending)):
            lane.on_exactness(exactness=found)
            lane.on_exactness = None
        started.append(pending)
    return started


def _land(
    work: _Work,
    batch: Batch,
    pending: list[Pending],
    lanes: Mapping[int, Lane],
    loader: Loader,
    writer: ShardWriter,
    progress: Progress,
) -> None:
    """Take the features of a finished batch; with the last one of a shard its rows are complete."""
    keys = batch.request.keys
    good = [row for row in range(batch.count) if row not in batch.failures]
    for position, (encoder, item) in enumerate(zip(work.shard.encoders, pending, strict=False)):
        forward = lanes[encoder].forward
        features = forward.finish(item).numpy()[good]
        if len(bad := np.flatnonzero(~np.isfinite(features).all(axis=1))):
            name = batch.request.refs[good[bad[0]]].name
            advice = "use `precision` fp32" if forward.precision != "fp32" else "are the weights damaged?"
            raise HistobenchError(f"{forward.name} gives NaN or infinite features for {name}; {advice}")
        work.rows[position].append(features)
    work.failures.update({keys[row]: failure for row, failure in batch.failures.items()})
    loader.release(batch)
    work.left -= batch.count
    progress.advance(batch.count)
    if work.left == 0 and not work.decode_only:
        _write(work, work.shard.keys, lanes, writer)
        work.rows = []


def _write(work: _Work, keys: Sequence[bytes], lanes: Mapping[int, Lane], writer: ShardWriter) -> None:
    done = [key for key in keys if key not in work.failures]
    lasting = {key: item.reason for key, item in work.failures.items() if item.lasting}
    for encoder, rows in zip(work.shard.encoders, work.rows, strict=True):
        writer.put(lanes[encoder].cache, done, np.concatenate(rows)[: len(done)], lasting)
