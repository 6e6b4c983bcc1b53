"""Whether cached features are still what the encoder gives: some images, computed again and compared.

The identity of an encoder covers everything that can be seen of it. What a user's own code reads unseen (in
another process, from a clock or a server) cannot be part of it, so no cached set is used without this look.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.data.image import open_rgb
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.own_encoder import note_first_batch
from histobench.roi.features.inference.device_runner import EncoderState
from histobench.roi.features.inference.forward import Forward
from histobench.roi.features.inference.tuning import cpu_batch
from histobench.roi.features.loading.job import apply_transform, transformed

#: Two features of one image may be apart by this much: a share of their length, or of the spread between
#: images if that is more. Other batches, devices and compiled code change far less (a tenth of it at most);
#: sixteen bits are only promised to a cosine of 0.999.
LENGTH = {"fp32": 2e-4, "bf16": 0.1, "fp16": 0.1}
SPREAD = {"fp32": 2e-3, "bf16": 0.2, "fp16": 0.2}

#: The chance with which a change of one row in a hundred of a user's own encoder is found.
CHANCE = 0.95
#: Images of an encoder of the zoo: what can change there unseen (a library) changes every row.
OF_THE_ZOO = 8
#: Images on which it is seen what a user's own encoder uses.
FIRST_BATCH = 8

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Difference:
    """An image whose features are not the cached ones; `apart` is their distance per length."""

    image: str
    apart: float
    #: The encoder does not give the same features twice, so that nothing follows.
    by_chance: bool
    #: The features as they are now, of all images that were looked at.
    rows: Rows
    #: With this the images were drawn.
    seed: int = 0

    @property
    def digest(self) -> str:
        """A hash of the features as they are now."""
        return hashlib.sha256(self.rows.tobytes()).hexdigest()

    def told(self, state: EncoderState) -> str:
        """One line for the user: what differs, and what follows."""
        name = state.encoder.name or type(state.encoder).__name__
        if self.by_chance:
            return (
                f"{name} gives other features each time it sees {self.image} (by {self.apart:.2g} of their "
                "length): nothing it computes can be repeated; its cached features are used"
            )
        return (
            f"{name}: the cached features are not what it gives now ({self.image} differs by "
            f"{self.apart:.2g} of its length; seed {self.seed}): the cached set of {len(state.cache.rows)} "
            "images is discarded and computed again"
        )


def images_to_recheck(rows: int, encoder: BasePatchEncoder) -> int:
    """How many of `rows` cached images are computed again unless the caller says so.

    Of a user's own encoder as many as find a change of 1 % of the rows with a chance of `CHANCE`.
    """
    return min(rows, OF_THE_ZOO) if "family" in encoder.identity else images_for(rows)


def images_for(rows: int) -> int:
    """The least number of images, drawn from `rows`, among which is one of the changed 1 % with `CHANCE`.

    >>> images_for(100_000), images_for(1000), images_for(180), images_for(20)
    (298, 258, 140, 19)
    """
    changed = -(-rows // 100)
    missed, drawn = 1.0, 0
    while drawn < rows and missed > 1 - CHANCE:
        missed *= (rows - changed - drawn) / (rows - drawn)
        drawn += 1
    return drawn


def sample(keys: Sequence[bytes], count: int, seed: int) -> list[bytes]:
    """Some of the keys, drawn at random, in their order.

    >>> sample([b"a", b"b", b"c", b"d", b"e"], 3, seed=1)
    [b'a', b'b', b'e']
    """
    if len(keys) <= count:
        return list(keys)
    return [keys[place] for place in sorted(random.Random(seed).sample(range(len(keys)), count))]


def see_first_batch(encoder: BasePatchEncoder, refs: Sequence[ImageRef], device: str) -> None:
    """Compute a few images to see what a user's own encoder reads meanwhile, for its identity."""
    images = []
    for ref in refs:  # read before the recording: the images are no part of the encoder
        try:
            images.append(open_rgb(ref.read(), name=ref.name))
        except (OSError, HistobenchError, MemoryError):
            continue
        if len(images) == FIRST_BATCH:
            break

    def compute() -> None:
        if images:
            pixels = np.stack([apply_transform(encoder.eval_transforms, image) for image in images])
            forward = Forward(encoder, device=device, precision="fp32", batch=len(pixels))
            forward.start(torch.from_numpy(pixels), len(pixels)).result()

    note_first_batch(encoder, compute)


def compare_again(
    state: EncoderState, keys: Sequence[bytes], refs: Mapping[bytes, ImageRef], device: str, seed: int
) -> Difference | None:
    """Compute the cached images `keys` again; what is different, None if nothing is."""
    fresh, seen = _compute(state, keys, refs, device)
    if not seen:
        return None
    cached = np.empty_like(fresh)
    state.cache.gather(seen, cached)
    apart = _apart(cached, fresh, state.arithmetic)
    worst = int(apart.argmax())
    if apart[worst] <= 1:
        return None
    some = [worst, *(row for row in range(min(len(seen), OF_THE_ZOO)) if row != worst)]
    again, twice = _compute(state, [seen[row] for row in some], refs, device)
    by_chance = len(twice) == len(some) and bool((_apart(again, fresh[some], state.arithmetic) > 1).any())
    length = max(float(np.linalg.norm(cached[worst])), 1e-12)
    distance = float(np.linalg.norm(cached[worst] - fresh[worst])) / length
    return Difference(refs[seen[worst]].name, distance, by_chance, fresh, seed)


def _compute(
    state: EncoderState, keys: Sequence[bytes], refs: Mapping[bytes, ImageRef], device: str
) -> tuple[Rows, list[bytes]]:
    """Features of the images that can be read, and which these are."""
    transform = state.encoder.eval_transforms
    size = min(len(keys), int(state.record.get("batch") or cpu_batch()))
    forward = Forward(state.encoder, device=device, precision=state.arithmetic, batch=size)
    rows: list[Rows] = [np.empty((0, state.encoder.embed_dim), np.float32)]
    good: list[bytes] = []
    for start in range(0, len(keys), size):
        pixels = {key: transformed(refs[key], transform) for key in keys[start : start + size]}
        arrays = {key: array for key, array in pixels.items() if array is not None}
        if arrays:
            batch = torch.from_numpy(np.stack(list(arrays.values())))
            rows.append(forward.start(batch, len(batch)).result().numpy())
            good += arrays
    return np.concatenate(rows), good


def _apart(one: Rows, other: Rows, precision: str) -> NDArray[np.float64]:
    """Per image the distance as a multiple of what is allowed; features that are not numbers are apart."""
    first, second = one.astype(np.float64), other.astype(np.float64)
    length = np.linalg.norm(first, axis=1)
    spread = float(np.linalg.norm(first - first.mean(axis=0), axis=1).mean())
    allowed = np.maximum(LENGTH[precision] * length, SPREAD[precision] * spread) + 1e-12
    distance = np.linalg.norm(first - second, axis=1)
    return np.where(np.isfinite(distance), distance / allowed, np.inf)
