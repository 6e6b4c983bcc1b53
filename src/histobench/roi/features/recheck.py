"""Whether cached features are still what the encoder gives: some images, computed again and compared."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.features.inference.device_runner import EncoderState
from histobench.roi.features.inference.forward import Forward
from histobench.roi.features.inference.tuning import cpu_batch
from histobench.roi.features.loading.job import transformed

#: Two features of one image may be apart by this much: a share of their length, or of the spread between
#: images if that is more. Other batches, devices and compiled code change far less (a tenth of it at most);
#: sixteen bits are only promised to a cosine of 0.999.
LENGTH = {"fp32": 2e-4, "bf16": 0.1, "fp16": 0.1}
SPREAD = {"fp32": 2e-3, "bf16": 0.2, "fp16": 0.2}

#: The chance with which a change of one row in a hundred of a user's own encoder is found.
CHANCE = 0.95
#: Images of an encoder of the zoo: what can change there unseen (a library) changes every row.
OF_THE_ZOO = 8
#: Images of the batch that is compared with single images.
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
        return hashlib.sha256(self.rows.tobytes()).hexdigest()

    def message(self, state: EncoderState) -> str:
        name = state.encoder.name or type(state.encoder).__name__
        if self.by_chance:
            return (
                f"{name} is not deterministic: the features of {self.image} changed by "
                f"{100 * self.apart:.2g}% between two passes; its cached features are used"
            )
        return (
            f"{name}: it now gives other features than those in the cache ({self.image} differs by "
            f"{100 * self.apart:.2g}%; seed {self.seed}): the cached features of {len(state.cache.rows)} "
            "images are discarded and computed again"
        )


def images_to_recheck(rows: int, encoder: BasePatchEncoder) -> int:
    """How many of `rows` cached images are computed again unless the caller says so."""
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


def check_batch(encoder: BasePatchEncoder, refs: Iterable[ImageRef], device: str) -> None:
    """Raise when a user's own encoder gives an image other features alone than among others."""
    if "family" in encoder.identity:
        return
    name = encoder.name or type(encoder).__name__
    found = (transformed(ref, encoder.eval_transforms) for ref in refs)
    arrays = list(islice((array for array in found if array is not None), FIRST_BATCH))
    if len(arrays) < 2:
        return
    if len({array.shape for array in arrays}) > 1:
        raise HistobenchError(
            f"{name}: its eval_transforms gives tensors of several shapes ({arrays[0].shape}, ...): "
            "resize or crop to one size"
        )
    pixels = torch.from_numpy(np.stack(arrays))

    def compute(part: torch.Tensor) -> Rows:
        forward = Forward(encoder, device=device, precision="fp32", batch=len(part))
        return forward.start(part, len(part)).result().numpy()

    together = compute(pixels)
    alone = np.concatenate([compute(pixels[:1]), compute(pixels[1:2])])
    repeats = (_apart(compute(pixels), together, "fp32") <= 1).all()
    if repeats and (_apart(together[:2], alone, "fp32") > 1).any():
        raise HistobenchError(
            f"{name}: its output depends on the batch: an image has other features alone than with "
            f"{len(pixels) - 1} others. Layers in training mode and statistics over the batch do this; "
            "compute every image by itself in forward"
        )


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
