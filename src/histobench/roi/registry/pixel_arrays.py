"""Arrays of pixels and of labels as datasets publish them (HDF5, NumPy), checked, in the form we read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.atomic import atomic_path
from histobench.core.errors import HistobenchError
from histobench.core.plain_file import check_plain
from histobench.roi.registry.unpack import GROWTH_FREE, MOST_GROWTH, is_current

if TYPE_CHECKING:
    import h5py

_BLOCK = 256


def class_names(labels: Any, classes: Sequence[str], *, images: int, where: str) -> list[str]:
    """The class of every image from an array of numbers, of whatever shape, with one number per image."""
    import numpy as np

    numbers = np.asarray(labels).reshape(-1)
    if len(numbers) != images:
        raise HistobenchError(f"{where}: {len(numbers):,} labels for {images:,} images")
    if numbers.dtype.kind not in "uib":
        raise HistobenchError(f"{where}: labels are whole numbers, not {numbers.dtype}")
    least, most = (int(numbers.min()), int(numbers.max())) if images else (0, 0)
    if least < 0 or most >= len(classes):
        raise HistobenchError(f"{where}: labels from {least} to {most}, but there are {len(classes)} classes")
    return [classes[int(number)] for number in numbers]


def hdf5_labels(file: Path, key: str, classes: Sequence[str], *, images: int) -> list[str]:
    """The class of every image from an HDF5 dataset."""
    with _hdf5(file) as box:
        found = _dataset(box, key, file)
        if found.size != images:  # before it is read: it may say that it is endless
            raise HistobenchError(f"{file.name}: {found.size:,} labels for {images:,} images")
        return class_names(found[...], classes, images=images, where=file.name)


def hdf5_images(file: Path, key: str, folder: Path) -> tuple[str, int]:
    """The path below which rows are found, and how many there are.

    It is that of the HDF5 file, or of a copy as NumPy file where the pixels are in chunks or no bytes.
    """
    import numpy as np

    with _hdf5(file) as box:
        found = _dataset(box, key, file)
        _check_shape(found.shape, file.name)
        if found.id.get_offset() is not None and found.dtype == np.uint8:
            return f"{file.relative_to(folder).as_posix()}/{key}", found.shape[0]
        target = folder / "images" / f"{file.stem}_{key}.npy"
        if not is_current(target, file):
            write_npy(target, found)
        return target.relative_to(folder).as_posix(), found.shape[0]


def _hdf5(file: Path) -> h5py.File:
    try:
        import h5py
    except ImportError:
        raise HistobenchError(
            f"{file.name} is HDF5; install h5py: pip install 'histobench[datasets]'"
        ) from None
    return h5py.File(check_plain(file), "r")


def _dataset(box: h5py.File, key: str, file: Path) -> h5py.Dataset:
    """The dataset, if its values are in this file and are numbers: others can be anywhere on the disk."""
    import h5py

    link = box.get(key, getlink=True)
    found = None if link is None or isinstance(link, h5py.ExternalLink) else box[key]
    if not isinstance(found, h5py.Dataset):
        raise HistobenchError(f"{file.name} has no dataset {key!r} of its own")
    if found.is_virtual or found.external:
        raise HistobenchError(f"{file.name}: the values of {key!r} are in another file; refused")
    if found.dtype.kind not in "uifb":
        raise HistobenchError(f"{file.name}: {key!r} holds {found.dtype}, no numbers")
    if found.nbytes > MOST_GROWTH * file.stat().st_size + GROWTH_FREE:
        raise HistobenchError(
            f"{file.name} unpacks to more than {MOST_GROWTH} times its size; refused as a bomb"
        )
    return found


def _check_shape(shape: tuple[int, ...], where: str) -> None:
    if len(shape) != 4 or shape[3] != 3 or not all(shape):
        raise HistobenchError(f"{where}: pixels have the shape {shape}; images are [n, height, width, 3]")


def images_in(file: Path) -> int:
    """How many images a NumPy file holds that `write_npy` wrote."""
    import numpy as np

    return int(np.load(file, mmap_mode="r").shape[0])


def write_npy(target: Path, source: Any) -> None:
    """Copy an array [n, h, w, 3] as uint8, a block at a time; `target` appears when it is whole.

    It is written, not mapped: a disk that fills up under a mapped file ends the process.
    """
    import numpy as np

    _check_shape(source.shape, target.stem)
    header = {"descr": "|u1", "fortran_order": False, "shape": tuple(map(int, source.shape))}
    with atomic_path(target) as staging, staging.open("wb") as handle:
        np.lib.format.write_array_header_1_0(handle, header)
        for start in range(0, source.shape[0], _BLOCK):
            block = np.asarray(source[start : start + _BLOCK])
            if block.dtype != np.uint8:
                block = _as_bytes(block, target.stem)
            handle.write(np.ascontiguousarray(block).data)


def _as_bytes(block: Any, where: str) -> Any:
    """Whole numbers from 0 to 255, however they are stored; shares of 1 would all become black."""
    import numpy as np

    if block.dtype.kind not in "uifb" or not np.isfinite(block).all():
        raise HistobenchError(f"{where}: the pixels are no numbers")
    if block.min() < 0 or block.max() > 255 or (np.rint(block) != block).any():
        raise HistobenchError(f"{where}: the pixels are not whole numbers between 0 and 255")
    return block.astype(np.uint8)
