"""The images that a dataset lacks, in one file that workers read pieces of; and the hashes of all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, open_plain, patiently, read_bytes, unreadable
from histobench.core.plain_data import parse_json
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset

_UNREADABLE = bytes(32)


def write_images(
    path: Path, shards: Iterable[tuple[bytes, ...]], refs: Mapping[bytes, ImageRef]
) -> list[int]:
    """Write one line per shard; gives the byte at which every one begins, and the end of the file."""
    begins, place = [0], 0
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        for keys in shards:
            place += handle.write(json.dumps([[key.hex(), *refs[key]] for key in keys]).encode() + b"\n")
            begins.append(place)
    return begins


def read_images(path: Path, begin: int, end: int) -> list[tuple[bytes, ImageRef]]:
    """The images between two such places."""

    def read() -> bytes:
        with open_plain(path) as handle:
            handle.seek(begin)
            return handle.read(end - begin)

    try:
        lines = patiently(read, announced=True).splitlines()
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        images = [image for line in lines for image in parse_json(line)]
        return [(bytes.fromhex(key), ImageRef(*rest)) for key, *rest in images]
    except (ValueError, TypeError) as error:
        raise HistobenchError(f"{path} is damaged ({error}); start a new run") from error


def write_keys(path: Path, dataset: RoiDataset, keys: Mapping[Path, bytes]) -> str:
    """Write the content hash of every image in the order of the dataset; gives the digest of the file."""
    images = (image for split in SPLITS for image in dataset.splits.get(split, ()))
    data = b"".join(keys.get(image.path, _UNREADABLE) for image in images)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return hashlib.sha256(data).hexdigest()[:32]


def read_keys(path: Path, dataset: RoiDataset, order: str, digest: str) -> dict[Path, bytes]:
    """The content hash of every readable image; a dataset that is no longer the planned one is refused."""
    if order_of(dataset) != order:
        raise HistobenchError(
            f"{dataset.name} has changed since this run was planned (images, labels or groups); run again"
        )
    try:
        data = patiently(lambda: read_bytes(path), announced=True)
    except OSError as error:
        raise unreadable(path, error) from error
    images = [image for split in SPLITS for image in dataset.splits.get(split, ())]
    if len(data) != 32 * len(images) or hashlib.sha256(data).hexdigest()[:32] != digest:
        raise HistobenchError(f"{path} is damaged; start a new run")
    found = {image.path: data[32 * row : 32 * row + 32] for row, image in enumerate(images)}
    return {place: key for place, key in found.items() if key != _UNREADABLE}


def order_of(dataset: RoiDataset) -> str:
    """A digest of all that a dataset says about its images, in their order."""
    digest = hashlib.sha256(json.dumps([dataset.name, list(dataset.classes)]).encode())
    for split in SPLITS:
        for image in dataset.splits.get(split, ()):
            said = [split, str(image.path), image.label, image.name, image.group, list(image.sites)]
            said += [image.target, image.place] if image.target or image.place else []
            digest.update(json.dumps(said).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
