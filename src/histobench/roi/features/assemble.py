"""Cached rows to a feature file, with memory that does not grow with the number of images."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.core.text import check_plain_name
from histobench.roi.data.image_table import groups_of
from histobench.roi.data.roi_dataset import RoiImage
from histobench.roi.data.sites import TilePlaces, site_table
from histobench.roi.data.targets import Target, TargetColumns
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.own_name import label_of
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.cache.row_cache import RowCache, remove_leftovers
from histobench.roi.features.feature_file import FeatureSet, save

#: Feature sets above this many bytes are put together on disk.
IN_MEMORY = 64 * 2**20


def file_name(dataset: str, model: str, size: int | str, split: str) -> str:
    """The documented name of a feature file.

    >>> file_name("CRC-100K", "conch_v1", 448, "train")
    'Dataset_[CRC-100K]_Model_[conch_v1]_Size_[448]_train.pt'
    """
    parts = (("dataset", dataset), ("model", model), ("size", size))
    safe = (
        check_plain_name(str(part).replace("/", "_").replace("\\", "_"), what=what) for what, part in parts
    )
    return "Dataset_[{}]_Model_[{}]_Size_[{}]_{}.pt".format(*safe, split)


def size_of(encoder: BasePatchEncoder) -> int | str:
    transform = encoder.eval_transforms
    if isinstance(transform, TransformSpec):
        return transform.crop
    size: Any = getattr(encoder, "input_size", None)
    if size is None:
        from histobench.roi.features.inference.device_runner import shape_of

        size = shape_of(transform)[-1]
    return int(size)


def model_name(encoder: BasePatchEncoder) -> str:
    """The encoder's name as it stands in file names: `my_file.py:Mine` becomes `Mine`."""
    return label_of(encoder.name or type(encoder).__name__)


def assemble(
    cache: RowCache,
    images: Sequence[RoiImage],
    keys: Sequence[bytes],
    *,
    dim: int,
    metadata: Mapping[str, Any],
    path: Path,
    target: TargetColumns | None = None,
) -> None:
    remove_leftovers(path.parent, path.name)
    with _array((len(keys), dim), beside=path) as embeddings:
        cache.gather(keys, embeddings)
        save(labelled(images, torch.from_numpy(embeddings), metadata, target), path)


def labelled(
    images: Sequence[RoiImage],
    embeddings: Tensor,
    metadata: Mapping[str, Any],
    target: TargetColumns | None = None,
) -> FeatureSet:
    return FeatureSet(
        embeddings=embeddings,
        labels=torch.tensor([image.label for image in images], dtype=torch.int64),
        img_names=tuple(image.name for image in images),
        # The patient or slide; "" for an image without one, which counts as a group of its own.
        groups=tuple(image.group or "" for image in images) if any(groups_of(images)) else None,
        metadata=dict(metadata),
        sites=site_table([image.sites for image in images]),
        target=Target.of(target, [image.target for image in images]),
        places=TilePlaces.of([image.place for image in images]),
    )


@contextmanager
def _array(shape: tuple[int, int], *, beside: Path) -> Iterator[NDArray[np.float32]]:
    """An array in memory if it is small, else in a nameless file that a kill cannot leave behind."""
    nbytes = shape[0] * shape[1] * 4
    if nbytes <= IN_MEMORY:
        yield np.empty(shape, dtype=np.float32)
        return
    beside.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=beside.parent) as handle:
        # Reserve the room first: a full disk is an error here, and a crash inside a memory map.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle.fileno(), 0, nbytes)
        else:
            handle.truncate(nbytes)
        yield np.memmap(handle, dtype=np.float32, mode="r+", shape=shape)
