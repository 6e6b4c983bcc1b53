"""Which files make up a checkpoint, and what identifies them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.plain_data import parse_json
from histobench.core.plain_file import HAND_WRITTEN, read_plain_text
from histobench.roi.encoders.file_hash import sha256_of

#: How the name of a sharded checkpoint's table of contents ends.
INDEX = ".index.json"


def checkpoint_sha256(checkpoint: Path) -> str:
    """What identifies the weights: the file's sha256, or that of a sharded checkpoint's index and shards."""
    if not checkpoint.name.endswith(INDEX):
        return sha256_of(checkpoint)
    parts = [checkpoint, *shards_of(checkpoint)]
    listing = "".join(f"{part.name} {sha256_of(part)}\n" for part in parts)
    return hashlib.sha256(listing.encode()).hexdigest()


def shards_of(index: Path) -> list[Path]:
    """The files that the index of a sharded checkpoint names, all of which are there."""
    try:
        weight_map = parse_json(read_plain_text(index, limit=HAND_WRITTEN))["weight_map"]
        names = sorted({Path(part).name for part in weight_map.values()})
    except OSError as error:
        raise HistobenchError(f"cannot read {index}: {error.strerror or error}") from error
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise HistobenchError(
            f"{index} is not the index of a sharded checkpoint: it needs a weight_map (tensor: file)"
        ) from error
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing or not names:
        what = missing[0] if missing else "no file at all"
        raise HistobenchError(f"{index} names {what}, which is not beside it; download every shard")
    return [index.parent / name for name in names]
