"""What a task that runs the network on images works with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from histobench.core.devices import resolve_device
from histobench.core.folders import local_dir
from histobench.core.version import __version__
from histobench.roi.data.roi_dataset import RoiImage
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.own_name import UNCHECKED, is_unchecked
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.evaluation.evaluation_request import ImageRequest
from histobench.roi.features.cache.content_hashes import content_keys
from histobench.roi.features.fingerprint import describe_encoder, fingerprint, versions
from histobench.roi.features.inference.forward import resolve_precision
from histobench.roi.features.loading.loader import useful_workers
from histobench.roi.features.loading.loading_pool import ThreadPool
from histobench.roi.predictions import Predictions
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.results.changed_data import DATA, told_of_data


@dataclass(frozen=True)
class ImageContext:
    """The request, the encoder (on the CPU, frozen, in eval mode), the device, and the precision there."""

    request: ImageRequest
    encoder: BasePatchEncoder
    device: str
    precision: str
    #: The hash of every file that is read, in the order of `_files`.
    keys: tuple[bytes, ...]

    @classmethod
    def of(cls, request: ImageRequest) -> ImageContext:
        """Make the encoder and hash the images."""
        device = resolve_device(request.settings.devices[0])
        encoder = request.recipe.build()
        precision = resolve_precision(request.settings.precision, encoder.precision, device)
        files = [path for split in request.data.splits.values() for path in _files(split)]
        with closing(ThreadPool(useful_workers(request.settings.num_workers, on_cpu=False))) as pool:
            keys = content_keys(files, pool, local_dir())
        return cls(request, encoder, device, precision, tuple(keys))

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.request.data.classes)

    def images(self, split: str) -> Sequence[RoiImage]:
        """The images of train, val or test with labels and groups; none where there is no such split."""
        return self.request.data.splits.get(split, ())

    @property
    def size(self) -> str:
        """The images as the encoder sees them, for the results."""
        transform = self.encoder.eval_transforms
        return str(transform.crop) if isinstance(transform, TransformSpec) else ""

    @cached_property
    def fingerprint(self) -> str:
        """The name of this encoder on these images."""
        described = describe_encoder(self.encoder, precision=self.precision, numerics="network")
        return fingerprint([described, [key.hex() for key in self.keys]])

    @cached_property
    def digest(self) -> str:
        """The name of all that the results depend on."""
        request = self.request
        images = [
            [split, image.name, image.label, image.group, image.sites]
            for split, images in request.data.splits.items()
            for image in images
        ]
        content = [
            *(request.task, request.preset, request.seed, __version__, self.fingerprint),
            *({name: str(value) for name, value in asdict(request.options).items()}, request.data.classes),
            str(request.data.target),
            images,
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """What is odd about the data or the encoder and holds for the task's numbers."""
        found = [UNCHECKED] if is_unchecked(self.encoder.identity) else []
        keys, start = dict[str, tuple[bytes, ...]](), 0
        for split, images in self.request.data.splits.items():
            keys[split] = self.keys[start : start + len(images)]
            start += len(_files(images))
        test = keys.pop("test", ())
        seen = {key for of_split in keys.values() for key in of_split}
        shared = sum(key in seen for key in test)
        if shared:
            found.append(
                f"{shared} of {len(self.images('test'))} test images are also used for training or "
                "validation: the results may be too good; `histobench data check` lists them"
            )
        return tuple(found)

    @property
    def info(self) -> dict[str, Any]:
        """What is said about the data in every results file."""
        splits = self.request.data.splits
        return {
            DATA: told_of_data(
                {
                    name: ([image.name for image in images], [image.label for image in images])
                    for name, images in splits.items()
                },
                self.classes,
                named_here=True,
            ),
            "num_train": len(self.images("train")),
            **({"num_val": len(self.images("val"))} if self.images("val") else {}),
            "device": self.device,
            "precision": self.precision,
            "versions": versions(),
        }

    def predictions(self, outcome: Outcome) -> Predictions:
        """Class probabilities of the test images with their names, labels and groups."""
        images = self.images("test")
        columns = dict.fromkeys(column for image in images for column, _ in image.sites)
        sites = [dict(image.sites) for image in images]
        return Predictions(
            probabilities=outcome.probabilities,
            labels=np.array([image.label for image in images], dtype=np.int64),
            predicted=outcome.predicted,
            classes=self.classes,
            img_names=tuple(image.name for image in images),
            groups=tuple(image.group or "" for image in images) if any(i.group for i in images) else None,
            info={key: value for key, value in outcome.info.items() if key != "warnings"},
            sites={column: tuple(own.get(column, "") for own in sites) for column in columns},
        )


def _files(images: Sequence[RoiImage]) -> list[Any]:
    """All files of a split: its images, then their masks."""
    return [*(image.path for image in images), *(image.mask for image in images if image.mask is not None)]
