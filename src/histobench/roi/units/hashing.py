"""The units that hash the images of a large dataset, before it is prepared.

The planner cuts the images into lists, one per unit, so that no one else has to read the whole dataset. A
list is named by its content, and so are the hashes that come of it: a later run finds what did not change.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, files_below, open_plain, patiently, read_bytes, unreadable
from histobench.core.folders import local_dir
from histobench.core.plain_data import parse_json
from histobench.core.progress import Progress
from histobench.roi.data.image_ref import ImageRef, container_named
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset
from histobench.roi.features.cache.content_hashes import hash_images
from histobench.roi.features.cache.hashed_images import ENDING, HashedImages
from histobench.roi.features.loading.loader import useful_workers
from histobench.roi.features.loading.loading_pool import ThreadPool
from histobench.roi.options import Settings
from histobench.work.run_folder import DONE, RunFolder, Unit

#: A dataset with fewer images is hashed where it is prepared.
LARGE = 200_000
#: Images of one unit: about a minute of work, which is what a lost machine costs.
IMAGES_PER_UNIT = 65_536
#: What one worker hashes in a second, about: small files on a shared disk.
IMAGES_PER_SECOND = 1_000
#: Below the results folder, for all runs: lists of images and what is known of them.
FOLDER = "work/hashes"


def hash_units(
    name: str, dataset: RoiDataset, settings: Settings, on_list: Callable[[str, bytes], None]
) -> list[Unit]:
    """The units of a dataset, none where it is not large; `on_list` gets each list and its name."""
    if sum(map(len, dataset.splits.values())) < LARGE:
        return []
    units = []
    for _, data in _lists(_names(dataset)):
        images, count = _digest(data), data.count(b"\0") + 1
        on_list(images, data)
        spec = {
            "list": images,
            "images": count,
            "num_workers": settings.num_workers,
            "no_cache": settings.no_cache,
        }
        units.append(Unit("hash", name, "", spec, seconds=count / IMAGES_PER_SECOND))
    return units


def write_list(results: Path, images: str, data: bytes) -> None:
    """Write a list of images into a results folder."""
    with atomic_path(_list_file(results / FOLDER, images)) as temporary:
        temporary.write_bytes(data)


def hash_unit(folder: RunFolder, unit: Unit, progress: Progress) -> None:
    """Hash the images of a unit, but for those whose hashes are known; one that cannot be read is left out.

    Threads do it: hashing gives the others way, and on a cluster there is a worker for every core.
    """
    spec, place = unit.spec, _folder(folder)
    paths = _read_list(_list_file(place, spec["list"]), spec["list"])
    progress.begin(f"{unit.dataset}: hashing", len(paths))
    before = None if spec["no_cache"] else _latest(place, spec["list"], len(paths))
    memory: AbstractContextManager[str | Path]
    memory = TemporaryDirectory(prefix="histobench-") if spec["no_cache"] else nullcontext(local_dir())
    try:
        with closing(ThreadPool(useful_workers(spec["num_workers"], on_cpu=False))) as pool, memory as known:
            found = hash_images(paths, pool, Path(known), before, progress.advance)
    finally:
        progress.end()
    folder.finish(unit, files=[found.write(place, spec["list"])])


def hashes_of(folder: RunFolder, prepare: Unit, dataset: RoiDataset) -> HashedImages | None:
    """What the units that a dataset waits for have found out, in the order of its `distinct_paths`.

    Nothing is known of images whose unit failed, or of which the dataset says something else by now.
    """
    if not prepare.needs:
        return None
    names = _names(dataset)
    units = [folder.unit(need) for need in prepare.needs]
    hashed = HashedImages.nothing(len(names))
    lists = _lists(names, [unit.spec["images"] for unit in units])
    for unit, (places, data) in zip(units, lists, strict=True):
        output = folder.output(unit.id)
        if output is not None and output["state"] == DONE and _digest(data) == unit.spec["list"]:
            found = _read(Path(output["files"][0]), len(places))
            if found is not None:
                hashed.put(places, found)
    return hashed


def _names(dataset: RoiDataset) -> list[str]:
    """The `distinct_paths` of a dataset as text, which is compared sooner."""
    return list(dict.fromkeys(str(image.path) for images in dataset.splits.values() for image in images))


def _lists(names: Sequence[str], sizes: Sequence[int] | None = None) -> Iterator[tuple[list[int], bytes]]:
    """The images of every unit: their places among all, and the list of them; `sizes` as they were cut.

    Images of one archive are beside each other, and in one unit if they fit into it: a reader of an
    archive has to find the members first.
    """
    here = os.getcwd()
    numbers: dict[str, int] = {"": 0}
    archives = np.fromiter(
        (numbers.setdefault(container_named(name), len(numbers)) for name in names),
        dtype=np.int64,
        count=len(names),
    )
    order = np.argsort(archives, kind="stable")
    cuts = _cuts(archives[order]) if sizes is None else [0, *accumulate(sizes)]
    for begin, end in pairwise(cuts):
        places = order[begin:end].tolist()
        some = (names[place] for place in places)
        # With a zero between them, which no path has in it, names may be anything else.
        full = "\0".join([name if name.startswith("/") else os.path.join(here, name) for name in some])
        yield places, full.encode("utf-8", "surrogatepass")


def _cuts(archives: NDArray[np.int64]) -> list[int]:
    """Where units begin, and the end; `archives` are numbers of archives, 0 for files in none."""
    inside = (archives[1:] == archives[:-1]) & (archives[1:] > 0)
    starts = np.flatnonzero(np.concatenate([[True], ~inside]))  # where an archive, or another file, begins
    cuts, count = [0], len(archives)
    while cuts[-1] < count:
        end = min(cuts[-1] + IMAGES_PER_UNIT, count)
        whole = int(starts[np.searchsorted(starts, end, side="right") - 1]) if end < count else end
        cuts.append(whole if whole > cuts[-1] else end)
    return cuts


def _read_list(path: Path, images: str) -> list[Path]:
    try:
        data = patiently(lambda: read_bytes(path), announced=True)
    except OSError as error:
        raise unreadable(path, error) from error
    if _digest(data) != images:
        raise HistobenchError(f"{path} is damaged; start a new run")
    return [Path(text) for text in data.decode("utf-8", "surrogatepass").split("\0")]


def _latest(place: Path, images: str, count: int) -> HashedImages | None:
    """What an earlier run has found out about the same images."""
    known = [path for path in files_below(place, ENDING, deep=False) if path.name.startswith(images)]
    return _read(max(known, key=lambda path: path.stat().st_mtime_ns), count) if known else None


def _read(path: Path, count: int) -> HashedImages | None:
    try:
        return HashedImages.read(path, count)
    except OSError as error:
        raise unreadable(path, error) from error


def _folder(folder: RunFolder) -> Path:
    return folder.results / FOLDER


def _list_file(place: Path, images: str) -> Path:
    return place / f"{images}.paths"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


# The images that a dataset lacks, in one file that workers read pieces of; and the hashes of all of them.

_UNREADABLE = bytes(32)


def write_images(
    path: Path, shards: Iterable[tuple[bytes, ...]], refs: Mapping[bytes, ImageRef]
) -> list[int]:
    """Write one line per image; gives the byte at which every shard begins, and the end of the file."""
    begins, place = [0], 0
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        for keys in shards:
            for key in keys:
                place += handle.write(json.dumps([key.hex(), *refs[key]]).encode() + b"\n")
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
        return [(bytes.fromhex(key), ImageRef(*rest)) for key, *rest in map(parse_json, lines)]
    except (ValueError, TypeError) as error:
        raise HistobenchError(f"{path} is damaged ({error}); start a new run") from error


def write_keys(path: Path, dataset: RoiDataset, keys: Mapping[Path, bytes]) -> str:
    """Write the content hash of every image in the order of the dataset; gives the digest of the file."""
    images = (image for split in SPLITS for image in dataset.splits.get(split, ()))
    data = b"".join(keys.get(image.path, _UNREADABLE) for image in images)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return _digest(data)


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
    if len(data) != 32 * len(images) or _digest(data) != digest:
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
