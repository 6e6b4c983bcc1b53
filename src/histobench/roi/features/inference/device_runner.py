"""Encoders made ready on a device: batch size, compilation, memory, and then the loop."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from histobench.core.errors import DiskFullError, HistobenchError
from histobench.core.progress import Progress
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.cache.row_cache import RowCache
from histobench.roi.features.inference.forward import Forward, pin
from histobench.roi.features.inference.shards import Lane, Shard, compute
from histobench.roi.features.inference.tuning import (
    PROMISED,
    cpu_batch,
    largest_batch,
    least_cosine,
    worth_compiling,
)
from histobench.roi.features.loading.job import Transform, transformed
from histobench.roi.features.loading.loader import Loader, Pool
from histobench.roi.features.loading.loading_pool import ThreadPool
from histobench.roi.options import Settings

log = logging.getLogger(__name__)

#: Under this name an encoder's cache keeps which precision it is computed in, for all jobs alike.
PRECISION = "precision"
#: Images at a time while a low precision is tried.
TRIAL_BATCH = 8


@dataclass
class EncoderState:
    """One encoder of a run, with what has been computed by it and what was decided about it."""

    encoder: BasePatchEncoder
    precision: str
    cache: RowCache
    #: precision, batch, compile and exactness as decided for this job; a run that goes on finds them here.
    record: dict[str, Any]
    #: Where the record is kept; empty in a process that computes a share of someone else's job.
    job: str = ""
    #: The network on the device, see `make_ready`, and the shape of an image for it.
    forward: Forward | None = None
    shape: tuple[int, ...] = ()

    @property
    def arithmetic(self) -> str:
        """The precision that is used: the one asked for, unless it was tried and found too coarse."""
        return str(self.record.get("precision", self.precision))

    def note(self, **values: Any) -> None:
        self.record.update(values)
        if self.job:
            self.cache.decide(self.job, self.record)


def make_ready(
    state: EncoderState, settings: Settings, device: str, images: int = 0, sample: Sequence[ImageRef] = ()
) -> Forward:
    """Put a network on a device, and decide what is not decided yet for a job of `images`."""
    transform = state.encoder.eval_transforms
    state.shape = shape = shape_of(transform, sample)
    dtype = torch.uint8 if isinstance(transform, TransformSpec) else torch.float32
    asked, asked_for = settings.batch_size, state.precision
    batch = state.record.get("batch") or (cpu_batch() if isinstance(asked, str) else asked)
    if state.precision != "fp32" and "precision" not in state.record:
        found = {"precision": _permitted(state, device, sample)}
        # Another machine may have found otherwise at the same time: one cache has one precision.
        state.record["precision"] = state.cache.decide_once(PRECISION, found).get("precision", asked_for)
    forward = Forward(state.encoder, device=device, precision=state.arithmetic, batch=int(batch))
    if not settings.is_exact(state.precision):
        forward.fold()
    if "batch" not in state.record:
        if asked == "auto":
            forward.batch = largest_batch(forward, shape, dtype, images)
        if torch.device(device).type == "cpu":
            forward.batch = min(forward.batch, cpu_batch())
        # A batch larger than the job would be mostly padding.
        forward.batch = min(forward.batch, 1 << max(images - 1, 0).bit_length())
    if "compile" not in state.record:
        compiled = settings.compile == "on" or (
            settings.compile == "auto" and worth_compiling(forward, shape, dtype, images)
        )
        state.note(batch=forward.batch, compile=compiled)
    if state.record["compile"]:
        forward.compile()
    state.forward = forward
    return forward


def _permitted(state: EncoderState, device: str, sample: Sequence[ImageRef]) -> str:
    """The precision asked for, or fp32 where it would change this encoder's features too much."""
    asked, transform = state.precision, state.encoder.eval_transforms
    arrays = [array for ref in sample if (array := transformed(ref, transform)) is not None]
    if not arrays:
        return asked
    forward = Forward(state.encoder, device=device, precision=asked, batch=TRIAL_BATCH)
    forward.fold()
    pixels = torch.from_numpy(np.stack(arrays))
    cosine = least_cosine(forward, pixels, forward.start(pixels, len(pixels)))
    if cosine >= PROMISED[asked]:
        return asked
    log.warning(
        "%s: %s would change its features too much (least cosine to fp32 %.5f on %d images, "
        "the limit is %g); computing in fp32",
        state.encoder.name,
        asked,
        cosine,
        len(arrays),
        PROMISED[asked],
    )
    return "fp32"


class DeviceRunner:
    """Encoders that are ready on one device, by their places in a plan; if `tolerant`, failures are noted."""

    def __init__(
        self, states: Mapping[int, EncoderState], device: str, pool: Pool, *, tolerant: bool = False
    ) -> None:
        self.states = dict(states)
        self.device = device
        self.failures: dict[int, str] = {}
        self._tolerant = tolerant
        self._loader: Loader | None = None
        self._locked = ExitStack()
        self._transforms, pixels = distinct([state.encoder.eval_transforms for state in states.values()])
        self._pixels = dict(zip(states, pixels, strict=True))
        if not all(isinstance(transform, TransformSpec) for transform in self._transforms):
            pool.close()  # transforms of the user's own stay in this process
            pool = ThreadPool(pool.workers)
        self._pool = pool

    def forward(self, place: int) -> Forward:
        forward = self.states[place].forward
        assert forward is not None
        return forward

    @property
    def seconds(self) -> dict[int, float]:
        return {place: self.forward(place).seconds for place in self.states}

    def lacking(self, shards: Sequence[Shard]) -> list[Shard]:
        """Return what is not in the caches, for the encoders that have not failed."""
        found = []
        for shard in shards:
            places = tuple(
                place
                for place in shard.encoders
                if place not in self.failures
                and not all(key in self.states[place].cache for key in shard.keys)
            )
            if places:
                found.append(replace(shard, encoders=places))
        return found

    def run(
        self,
        shards: Sequence[Shard],
        refs: Mapping[bytes, ImageRef],
        *,
        stop_at_bad: bool,
        known_bad: bool = False,
        progress: Progress,
    ) -> dict[bytes, str]:
        """Compute the shards; gives back the bad images and why they are bad."""
        lanes = {}
        for place, state in self.states.items():
            note = None if state.record.get("exactness") is not None else state.note
            lanes[place] = Lane(self.forward(place), state.cache, self._pixels[place], note)
        try:
            bad = compute(
                shards,
                lanes,
                self._loading(),
                refs,
                stop_at_bad=stop_at_bad,
                known_bad=known_bad,
                progress=progress,
            )
        except BaseException as error:
            self._let_go()  # batches that were under way are not given back
            is_expected = isinstance(error, HistobenchError) and not isinstance(error, DiskFullError)
            if not self._tolerant or not is_expected:
                raise
            places = sorted({place for shard in shards for place in shard.encoders})
            if len(places) == 1:
                self.failures[places[0]] = str(error)
                return {}
            bad = {}  # each alone: the others are not to blame
            for place in places:
                mine = [replace(shard, encoders=(place,)) for shard in shards if place in shard.encoders]
                bad |= self.run(
                    self.lacking(mine), refs, stop_at_bad=stop_at_bad, known_bad=known_bad, progress=progress
                )
        for place, state in self.states.items():
            if state.record.get("batch") != self.forward(place).batch:
                state.note(batch=self.forward(place).batch)
        return bad

    def close(self) -> None:
        self._let_go()
        self._pool.close()

    def _let_go(self) -> None:
        self._loader = None
        self._locked.close()

    def _loading(self) -> Loader:
        """The batches of the pool, kept from one run to the next: locking memory takes as long as a shard."""
        batch = max(self.forward(place).batch for place in self.states)
        if self._loader is None or self._loader.layout.batch != batch:
            self._let_go()
            pixels = list(self._pixels.values())
            shapes = [state.shape for state in self.states.values()]
            each = [shapes[pixels.index(number)] for number in range(len(self._transforms))]
            self._loader = Loader(self._pool, self._transforms, each, batch=batch, on_written=self._lock)
        return self._loader

    def _lock(self, ring: Sequence[Sequence[NDArray[Any]]]) -> None:
        self._locked.enter_context(pin(ring, self.device))


def distinct(transforms: Sequence[Transform]) -> tuple[list[Transform], list[int]]:
    """The transforms that give different pixels (mean and deviation aside), and which each encoder uses."""
    chosen: list[Transform] = []
    known: dict[Any, int] = {}
    positions = []
    for item in transforms:
        key: Any = id(item)
        if isinstance(item, TransformSpec):
            key = (item.resize, item.crop, item.interpolation, item.squash)
        if key not in known:
            known[key] = len(chosen)
            chosen.append(item)
        positions.append(known[key])
    return chosen, positions


def seconds_per_image(encoder: BasePatchEncoder, device: str) -> float:
    """Measure the seconds that one image takes, on a small batch after one to warm up."""
    transform = encoder.eval_transforms
    dtype = torch.uint8 if isinstance(transform, TransformSpec) else torch.float32
    pixels = torch.zeros((TRIAL_BATCH, *shape_of(transform)), dtype=dtype)
    forward = Forward(encoder, device=device, precision="fp32", batch=TRIAL_BATCH)
    for _ in range(2):
        forward.seconds = 0.0
        forward.finish(forward.start(pixels, TRIAL_BATCH))
    return forward.seconds / TRIAL_BATCH


def shape_of(transform: Transform, sample: Sequence[ImageRef] = ()) -> tuple[int, ...]:
    """The shape of what a transform gives for an image of the sample, else for one of 256 x 256 pixels."""
    if isinstance(transform, TransformSpec):
        return transform.crop, transform.crop, 3
    found = (array for ref in sample if (array := transformed(ref, transform)) is not None)
    array = next(found, None)
    return tuple((np.asarray(transform(Image.new("RGB", (256, 256)))) if array is None else array).shape)
