"""Whether cached features are still what the encoder gives: a few images, computed again and compared.

The identity of an encoder covers everything that can be known of it. What a user's own code reads from
elsewhere cannot, so that no cached set is used without this look.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from histobench.roi.data.image_ref import ImageRef
from histobench.roi.features.inference.device_runner import Track
from histobench.roi.features.inference.forward import Forward
from histobench.roi.features.loading.job import transformed

#: Two features of one image may be apart by this much: a share of their length, or of the spread between
#: images if that is more. Other batches, devices and compiled code change far less (a tenth of it at most);
#: sixteen bits are only promised to a cosine of 0.999.
LENGTH = {"fp32": 2e-4, "bf16": 0.1, "fp16": 0.1}
SPREAD = {"fp32": 2e-3, "bf16": 0.2, "fp16": 0.2}

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

    @property
    def digest(self) -> str:
        """A hash of the features as they are now."""
        return hashlib.sha256(self.rows.tobytes()).hexdigest()

    def told(self, track: Track) -> str:
        """One line for the user: what differs, and what follows."""
        name = track.encoder.name or type(track.encoder).__name__
        if self.by_chance:
            return (
                f"{name} gives other features each time it sees {self.image} (by {self.apart:.2g} of their "
                "length): nothing it computes can be repeated; its cached features are used"
            )
        return (
            f"{name}: the cached features are not what it gives now ({self.image} differs by "
            f"{self.apart:.2g} of its length): the cached set of {len(track.cache.rows)} images is discarded "
            "and computed again"
        )


def sample(keys: Sequence[bytes], count: int) -> list[bytes]:
    """Some of the keys, evenly from first to last.

    >>> sample([b"a", b"b", b"c", b"d", b"e"], 3)
    [b'a', b'c', b'e']
    """
    if len(keys) <= count:
        return list(keys)
    return [keys[round(place)] for place in np.linspace(0, len(keys) - 1, count)]


def compare_again(
    track: Track, keys: Sequence[bytes], refs: Mapping[bytes, ImageRef], device: str
) -> Difference | None:
    """Compute the cached images `keys` again; what is different, None if nothing is."""
    fresh, used = _compute(track, keys, refs, device)
    if not used:
        return None
    cached = np.empty_like(fresh)
    track.cache.gather(used, cached)
    apart = _apart(cached, fresh, track.arithmetic)
    worst = int(apart.argmax())
    if apart[worst] <= 1:
        return None
    again, _ = _compute(track, used, refs, device)
    by_chance = again.shape == fresh.shape and bool((_apart(again, fresh, track.arithmetic) > 1).any())
    length = max(float(np.linalg.norm(cached[worst])), 1e-12)
    distance = float(np.linalg.norm(cached[worst] - fresh[worst])) / length
    return Difference(refs[used[worst]].name, distance, by_chance, fresh)


def _compute(
    track: Track, keys: Sequence[bytes], refs: Mapping[bytes, ImageRef], device: str
) -> tuple[Rows, list[bytes]]:
    """Features of the images that can be read, and which these are."""
    transform = track.encoder.eval_transforms
    pixels = {key: transformed(refs[key], transform) for key in keys}
    good = {key: array for key, array in pixels.items() if array is not None}
    if not good:
        return np.empty((0, track.encoder.embed_dim), np.float32), []
    forward = Forward(track.encoder, device=device, precision=track.arithmetic, batch=len(good))
    batch = torch.from_numpy(np.stack(list(good.values())))
    return forward.start(batch, len(batch)).result().numpy(), list(good)


def _apart(one: Rows, other: Rows, precision: str) -> NDArray[np.float64]:
    """Per image the distance as a multiple of what is allowed; features that are not numbers are apart."""
    first, second = one.astype(np.float64), other.astype(np.float64)
    length = np.linalg.norm(first, axis=1)
    spread = float(np.linalg.norm(first - first.mean(axis=0), axis=1).mean())
    allowed = np.maximum(LENGTH[precision] * length, SPREAD[precision] * spread) + 1e-12
    distance = np.linalg.norm(first - second, axis=1)
    return np.where(np.isfinite(distance), distance / allowed, np.inf)
