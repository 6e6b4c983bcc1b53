"""Reads the rows of a feature file without torch, whose import takes longer than reading."""

from __future__ import annotations

import collections
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.files import regular

_TYPES = {"FloatStorage": "<f4", "LongStorage": "<i8"}


def read_rows(path: Path) -> tuple[Sequence[str], NDArray[np.float32]]:
    """Return the names of the images and their features; files of other tools are read with torch."""
    try:
        with zipfile.ZipFile(regular(path)) as archive:  # which compares the checksum of every part
            listing = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(listing) as handle:
                content = _Unpickler(handle, archive, listing.removesuffix("data.pkl")).load()
        return content["img_names"], content["embeddings"]
    except (OSError, StopIteration, pickle.UnpicklingError, zipfile.BadZipFile, LookupError, TypeError):
        from histobench.roi.features.feature_file import load

        features = load(path)
        return features.img_names, features.embeddings.numpy()


class _Unpickler(pickle.Unpickler):
    """Knows plain values and contiguous tensors; refuses everything else."""

    def __init__(self, handle: Any, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(handle)
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    def persistent_load(self, pid: Any) -> NDArray[Any]:
        _, kind, key, _, count = pid
        return np.frombuffer(self._archive.read(f"{self._folder}data/{key}"), dtype=kind, count=count)


def _tensor(storage: NDArray[Any], offset: int, shape: Sequence[int], stride: Sequence[int], *_: Any) -> Any:
    count = int(np.prod(shape))
    array = storage[offset : offset + count].reshape(shape)
    if tuple(step // array.itemsize for step in array.strides) != tuple(stride) and count > 1:
        raise pickle.UnpicklingError("the tensor is not contiguous")
    return array
