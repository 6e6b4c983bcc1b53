"""The images of a dataset by content: which bytes each one is, and which cannot be read at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.roi.data.dataset import RoiDataset, RoiImage
from histobench.roi.data.image_ref import ImageRef, locate
from histobench.roi.features.content_hashes import ContentHashes
from histobench.roi.features.job import Failure
from histobench.roi.features.loader import Pool, hash_all


@dataclass(frozen=True)
class Inventory:
    """Per path of the dataset its content hash; per hash one place to read it from; the unreadable paths."""

    keys: Mapping[Path, bytes]
    refs: Mapping[bytes, ImageRef]
    unreadable: Mapping[Path, str]
    hashes: ContentHashes

    def key_of(self, image: RoiImage) -> bytes | None:
        """The content hash of an image, None if it cannot be read."""
        return self.keys.get(image.path)

    def close(self) -> None:
        """Wait until the hashes are remembered."""
        self.hashes.close()


def take_inventory(dataset: RoiDataset, pool: Pool, memory: Path) -> Inventory:
    """Hash every image that has changed since it was last hashed."""
    paths = list(dict.fromkeys(image.path for images in dataset.splits.values() for image in images))
    unreadable: dict[Path, str] = {}
    found: list[Path] = []
    refs: list[ImageRef] = []
    for path in paths:
        try:
            refs.append(locate(path))
            found.append(path)
        except HistobenchError as error:
            unreadable[path] = str(error)
    table = ContentHashes(memory)
    keys: dict[Path, bytes] = {}
    sources: dict[bytes, ImageRef] = {}
    try:
        results = _hashes(refs, pool, table)
    except BaseException:
        table.close()
        raise
    for path, ref, result in zip(found, refs, results, strict=True):
        if isinstance(result, Failure):
            unreadable[path] = result.reason
        else:
            keys[path] = result
            sources.setdefault(result, ref)
    return Inventory(keys, sources, unreadable, table)


def _hashes(refs: Sequence[ImageRef], pool: Pool, table: ContentHashes) -> list[bytes | Failure]:
    states, known = table.known(refs)
    unknown = [index for index, key in enumerate(known) if key is None]
    fresh = hash_all(pool, [refs[index] for index in unknown])
    answers = dict(zip(unknown, fresh, strict=True))
    table.remember((states[index], key) for index, key in answers.items() if isinstance(key, bytes))
    return [answers[index] if key is None else key for index, key in enumerate(known)]
