"""The images that a dataset lacks, in one file that workers read pieces of; and the hashes of all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, patiently, read_bytes
from histobench.core.plain_data import parse_json
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset
from histobench.roi.features.cache.content_hashes import KEY_BYTES, Contents, Keys


def write_images(path: Path, shards: Iterable[Sequence[bytes]], refs: Mapping[bytes, ImageRef]) -> list[int]:
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
        with open(path, "rb") as handle:
            handle.seek(begin)
            return handle.read(end - begin)

    lines = patiently(read, announced=True).splitlines()
    try:
        images = [image for line in lines for image in parse_json(line)]
        return [(bytes.fromhex(key), ImageRef(*rest)) for key, *rest in images]
    except (ValueError, TypeError) as error:
        raise HistobenchError(f"{path} is damaged ({error}); start a new run") from error


def write_keys(path: Path, contents: Contents) -> str:
    """Write the content hash of every image in the order of the dataset; gives the digest of the file."""
    data = contents.keys.data.data
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return hashlib.sha256(data).hexdigest()[:32]


def read_keys(path: Path, dataset: RoiDataset, order: str, digest: str) -> Contents:
    """The content hash of every image; a dataset that is no longer the planned one is refused."""
    if order_of(dataset) != order:
        raise HistobenchError(
            f"{dataset.name} has changed since this run was planned (images, labels or groups); run again"
        )
    data = patiently(lambda: read_bytes(path), announced=True)
    count = sum(len(dataset.splits.get(split, ())) for split in SPLITS)
    if len(data) != KEY_BYTES * count or hashlib.sha256(data).hexdigest()[:32] != digest:
        raise HistobenchError(f"{path} is damaged; start a new run")
    return Contents(dataset, Keys(np.frombuffer(data, np.uint8).reshape(count, KEY_BYTES)))


def order_of(dataset: RoiDataset) -> str:
    """A digest of all that a dataset says about its images, in their order."""
    digest = hashlib.sha256(json.dumps([dataset.name, list(dataset.classes)]).encode())
    for split in SPLITS:
        for image in dataset.splits.get(split, ()):
            said = [split, str(image.path), image.label, image.name, image.group, list(image.sites)]
            said += [image.target, image.place] if image.target or image.place else []
            digest.update(json.dumps(said).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
