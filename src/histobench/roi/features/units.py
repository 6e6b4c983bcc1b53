"""The units of work: a unit is one shard of the features of one or more encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Images per shard, about: what a kill can cost at most, and what is held in memory at a time. Either is
#: a few seconds of work.
SHARD_IMAGES = 1024
CPU_SHARD_IMAGES = 256


@dataclass(frozen=True)
class Unit:
    """Images (by content hash) that the encoders at these positions have not seen."""

    keys: tuple[bytes, ...]
    encoders: tuple[int, ...]


def shard_size(batch: int, *, on_cpu: bool = False) -> int:
    """Whole batches, about `SHARD_IMAGES` images, or fewer where they take longer.

    >>> shard_size(256), shard_size(100), shard_size(5000), shard_size(32, on_cpu=True)
    (1024, 1100, 5000, 256)
    """
    return -(-(CPU_SHARD_IMAGES if on_cpu else SHARD_IMAGES) // batch) * batch


def plan_units(missing: Sequence[Sequence[bytes]], size: int) -> list[Unit]:
    """Cut each encoder's missing images into shards; encoders that miss the same shard share its decoding.

    The cut is such that a run that was killed is cut in the same places when it goes on: what is left of a
    list of whole shards is a list of whole shards. So every image meets the same neighbours, and the
    features come out the same to the last bit.
    """
    sharing: dict[tuple[bytes, ...], list[int]] = {}
    for encoder, keys in enumerate(missing):
        for start in range(0, len(keys), size):
            sharing.setdefault(tuple(keys[start : start + size]), []).append(encoder)
    return [Unit(keys, tuple(encoders)) for keys, encoders in sharing.items()]
