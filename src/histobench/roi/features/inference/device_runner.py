"""Encoders made ready on a device: batch size, compilation, memory, and then the loop."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from histobench.core.progress import Progress
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.cache.row_cache import RowCache
from histobench.roi.features.inference.forward import Forward, pin
from histobench.roi.features.inference.shards import Lane, Shard, compute
from histobench.roi.features.inference.tuning import (
    PROMISED,
    Exactness,
    cpu_batch,
    largest_batch,
    least_cosine,
    worth_compiling,
)
from histobench.roi.features.loading.job import Transform, transformed
from histobench.roi.features.loading.loader import Loader, Pool
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

    @property
    def arithmetic(self) -> str:
        """The precision that is used: the one asked for, unless it was tried and found too coarse."""
        return str(self.record.get("precision", self.precision))

    def note(self, **values: Any) -> None:
        """Add to the job's record, on disk."""
        self.record.update(values)
        if self.job:
            self.cache.decide(self.job, self.record)


class DeviceRunner:
    """Several encoders on one device; `sample` is some of the images, to try a low precision on."""

    def __init__(
        self,
        states: Sequence[EncoderState],
        settings: Settings,
        device: str,
        images: Sequence[int],
        sample: Sequence[ImageRef] = (),
    ) -> None:
        self.states = states
        self.device = device
        self._sample = sample
        self._loading: tuple[Pool, Loader] | None = None
        self._locked = ExitStack()
        self.transforms, self._pixels = distinct([state.encoder.eval_transforms for state in states])
        self.shapes = [shape_of(transform, sample) for transform in self.transforms]
        self.forwards = [
            self._ready(state, pixels, settings, count)
            for state, pixels, count in zip(states, self._pixels, images, strict=True)
        ]

    @property
    def batch(self) -> int:
        """Images per batch of the loader."""
        return max(forward.batch for forward in self.forwards)

    def run(
        self,
        shards: Sequence[Shard],
        refs: Mapping[bytes, ImageRef],
        pool: Pool,
        *,
        stop_at_bad: bool,
        known_bad: bool = False,
        progress: Progress,
    ) -> dict[bytes, str]:
        """Compute the shards; gives back the bad images and why they are bad."""
        loader = self._loader(pool)
        lanes = []
        for state, forward, pixels in zip(self.states, self.forwards, self._pixels, strict=True):
            exactness = Exactness(state.record.get("exactness"))
            exactness.on_measured = lambda record, state=state: state.note(exactness=record)
            lanes.append(Lane(forward, state.cache, pixels, exactness))
        try:
            bad = compute(
                shards,
                lanes,
                loader,
                refs,
                stop_at_bad=stop_at_bad,
                known_bad=known_bad,
                progress=progress,
            )
        except BaseException:
            self.close()  # batches that were under way are not given back
            raise
        for state, forward in zip(self.states, self.forwards, strict=True):
            if state.record.get("batch") != forward.batch:
                state.note(batch=forward.batch)
        return bad

    def close(self) -> None:
        """Let go of the memory that is locked for the device."""
        self._loading = None
        self._locked.close()

    def _loader(self, pool: Pool) -> Loader:
        """The batches of a pool, kept from one run to the next: locking memory takes as long as a shard."""
        known = self._loading
        if known is None or known[0] is not pool or known[1].layout.batch != self.batch:
            self.close()
            loader = Loader(pool, self.transforms, self.shapes, batch=self.batch, on_written=self._lock)
            self._loading = known = (pool, loader)
        return known[1]

    def _lock(self, ring: Sequence[Sequence[NDArray[Any]]]) -> None:
        self._locked.enter_context(pin(ring, self.device))

    def _ready(self, state: EncoderState, pixels: int, settings: Settings, images: int) -> Forward:
        shape = self.shapes[pixels]
        dtype = torch.uint8 if isinstance(self.transforms[pixels], TransformSpec) else torch.float32
        asked, asked_for = settings.batch_size, state.precision
        batch = state.record.get("batch") or (cpu_batch() if isinstance(asked, str) else asked)
        if state.precision != "fp32" and "precision" not in state.record:
            found = {"precision": self._permitted(state, self.transforms[pixels])}
            # Another machine may have found otherwise at the same time: one cache has one precision.
            state.record["precision"] = state.cache.decide_once(PRECISION, found).get("precision", asked_for)
        forward = Forward(state.encoder, device=self.device, precision=state.arithmetic, batch=int(batch))
        if not settings.is_exact(state.precision):
            forward.fold()
        if "batch" not in state.record:
            if asked == "auto":
                forward.batch = largest_batch(forward, shape, dtype)
            if torch.device(self.device).type == "cpu":
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
        return forward

    def _permitted(self, state: EncoderState, transform: Transform) -> str:
        """The precision asked for, or fp32 where it would change this encoder's features too much."""
        asked = state.precision
        arrays = [array for ref in self._sample if (array := transformed(ref, transform)) is not None]
        if not arrays:
            return asked
        forward = Forward(state.encoder, device=self.device, precision=asked, batch=TRIAL_BATCH)
        forward.fold()
        cosine = least_cosine(forward, torch.from_numpy(np.stack(arrays)))
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


def distinct(transforms: Sequence[Transform]) -> tuple[list[Transform], list[int]]:
    """The transforms that give different pixels, and which of them each encoder uses.

    Mean and standard deviation are applied on the device, so they do not count.
    """
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
    for ref in sample:
        array = transformed(ref, transform)
        if array is not None:
            return tuple(array.shape)
    return tuple(np.asarray(transform(Image.new("RGB", (256, 256)))).shape)
