"""What a loading worker is asked to do: hash images, or decode them into shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.data.image import open_rgb
from histobench.roi.data.image_ref import ImageRef, Stamp, digest, reason_of
from histobench.roi.data.plain_jpeg import decode_into
from histobench.roi.encoders.transform import TransformSpec

#: A transform of the encoder: pixels to pixels (fast), or the encoder's own callable to floats.
Transform = TransformSpec | Callable[[Any], Any]


class Failure(NamedTuple):
    """Why an image cannot be used; `lasting` when the same bytes will always fail."""

    reason: str
    lasting: bool


@dataclass(frozen=True)
class HashJob:
    """Read images and give the hash of their bytes, with the stamp that each file had before."""

    refs: tuple[ImageRef, ...]

    def one(self, index: int) -> HashJob:
        return HashJob((self.refs[index],))


@dataclass(frozen=True)
class DecodeJob:
    """Decode images into rows `start`, `start + 1`, ... of a slot of the ring; `keys` are their hashes."""

    slot: int
    start: int
    refs: tuple[ImageRef, ...]
    keys: tuple[bytes, ...]

    def one(self, index: int) -> DecodeJob:
        return replace(self, start=self.start + index, refs=(self.refs[index],), keys=(self.keys[index],))


Job = HashJob | DecodeJob
Hashed = tuple[Stamp, bytes]
#: Per image: its hash, None for "decoded", or why not.
Outcome = Hashed | None | Failure
#: Arrays of a ring: `ring[slot][transform]` is [batch, ...].
Ring = Sequence[Sequence[NDArray[Any]]]


def perform(job: Job, ring: Ring, transforms: Sequence[Transform]) -> list[Outcome]:
    """Do a job; a bad image is an outcome, never an exception."""
    if isinstance(job, HashJob):
        return [_hashed(ref) for ref in job.refs]
    return [
        _decoded(ref, key, [rows[job.start + index] for rows in ring[job.slot]], transforms)
        for index, (ref, key) in enumerate(zip(job.refs, job.keys, strict=True))
    ]


def _hashed(ref: ImageRef) -> Outcome:
    try:
        return ref.stamp(), digest(ref.read())
    except OSError as error:
        return Failure(reason_of(error, ref), lasting=False)


def _decoded(
    ref: ImageRef, key: bytes, rows: Sequence[NDArray[Any]], transforms: Sequence[Transform]
) -> Outcome:
    try:
        data = ref.read()
    except OSError as error:
        return Failure(reason_of(error, ref), lasting=False)
    if digest(data) != key:
        return Failure("the file changed while it was being used; run again", lasting=False)
    one = transforms[0]  # an image of the size that it gives may go through it as it is
    as_is = len(rows) == 1 and isinstance(one, TransformSpec) and one.resize == one.crop
    if as_is and decode_into(data, rows[0]):
        return None
    try:
        image = open_rgb(data, name=ref.name)
    except HistobenchError as error:
        return Failure(reason_of(error, ref), lasting=True)
    except MemoryError:
        return Failure("not enough memory to decode it", lasting=False)
    for row, transform in zip(rows, transforms, strict=True):
        pixels = apply_transform(transform, image)
        if pixels.shape != row.shape:
            raise HistobenchError(
                f"the encoder's transform gives shape {pixels.shape} for {ref.name} and {row.shape} for an "
                "image of another size; resize or crop to one size in it"
            )
        row[...] = pixels
    return None


def transformed(ref: ImageRef, transform: Transform) -> NDArray[Any] | None:
    """What the encoder sees of one image; None if the image is bad."""
    try:
        image = open_rgb(ref.read(), name=ref.name)
    except (OSError, HistobenchError, MemoryError):
        return None
    return apply_transform(transform, image)


def apply_transform(transform: Transform, image: Any) -> NDArray[Any]:
    if isinstance(transform, TransformSpec):
        return transform.crop_pixels(image)
    try:
        return np.asarray(transform(image))
    except (Exception, SystemExit) as error:
        raise HistobenchError(f"its eval_transforms fails: {type(error).__name__}: {error}") from error
