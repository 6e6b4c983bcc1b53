"""What the tasks that run the network on images share: images, encoder, what is held out, results."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from histobench.core.devices import resolve_device
from histobench.core.errors import HistobenchError
from histobench.core.folders import local_dir
from histobench.core.threads import spread
from histobench.core.version import __version__
from histobench.roi.data.image import open_rgb
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage, listing
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.own_name import UNCHECKED, is_unchecked
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.evaluation.context import TaskSkippedError, choosing
from histobench.roi.evaluation.evaluation_request import ImageRequest
from histobench.roi.features.cache.content_hashes import content_keys
from histobench.roi.features.fingerprint import describe_encoder, fingerprint, versions
from histobench.roi.features.inference.forward import resolve_precision
from histobench.roi.features.loading.loader import useful_workers
from histobench.roi.features.loading.loading_pool import ThreadPool
from histobench.roi.options import Settings
from histobench.roi.predictions import Predictions
from histobench.roi.protocols.head_training import Parts
from histobench.roi.protocols.linear_probe import held_out
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.results.changed_data import DATA, told_of_data

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageContext:
    """The request, the encoder (on the CPU, frozen, in eval mode), the device, and the precision there."""

    request: ImageRequest
    encoder: BasePatchEncoder
    device: str
    precision: str
    #: The hash of every image and mask that is read.
    keys: Mapping[Path, bytes]

    @classmethod
    def of(cls, request: ImageRequest) -> ImageContext:
        """Make the encoder and hash the images, without the unreadable ones where these are skipped."""
        if request.settings.on_bad_image == "skip":
            request = replace(request, data=readable(request.data, request.settings))
        device = resolve_device(request.settings.devices[0])
        encoder = request.recipe.build()
        precision = resolve_precision(request.settings.precision, encoder.precision, device)
        files = [
            path
            for images in request.data.splits.values()
            for path in (*(i.path for i in images), *(i.mask for i in images if i.mask is not None))
        ]
        with closing(ThreadPool(useful_workers(request.settings.num_workers, on_cpu=False))) as pool:
            keys = content_keys(files, pool, local_dir())
        return cls(request, encoder, device, precision, dict(zip(files, keys, strict=True)))

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.request.data.classes)

    def images(self, split: str) -> Sequence[RoiImage]:
        """The images of train, val or test with labels and groups; none where there is no such split."""
        return self.request.data.splits.get(split, ())

    @cached_property
    def every(self) -> list[RoiImage]:
        """All images: train, val, test."""
        return [image for split in ("train", "val", "test") for image in self.images(split)]

    def parts(self, *, chooses: bool = True) -> tuple[Parts, dict[str, Any], tuple[str, ...]]:
        """Which rows of `every` are trained on, chosen by and tested; the same in words, and warnings.

        Learning rates are chosen on the validation images, else on a fifth of the training patients.
        """
        train, val = self.images("train"), self.images("val")
        if not train or not self.images("test"):
            raise TaskSkippedError("training and test images are needed")
        rows = np.arange(len(self.every), dtype=np.int64)
        in_train, in_val, in_test = np.split(rows, [len(train), len(train) + len(val)])
        if val:
            info = {"val_use": "used to choose learning rates"}
            return Parts(in_train, in_val, in_train, in_test), info, ()
        labels = [image.label for image in train]
        groups = tuple(image.group or "" for image in train)
        by = choosing(labels, groups, self.request.options.choose_by, self.classes)
        fit, rest = held_out(np.array(labels, dtype=np.int64), by.groups, seed=self.request.seed)
        if chooses and not len(rest):
            raise TaskSkippedError(
                "learning rates are chosen on held-out images, but every class has one training image; give "
                "a validation set"
            )
        whole = ", whole groups," if by.groups is not None else ""
        val_use = f"a fifth of the training set{whole} was held out to choose learning rates"
        info = {"chosen_by": by.chosen_by, "val_use": val_use}
        return Parts(fit, rest, in_train, in_test), info, (by.warning,) if by.warning else ()

    @property
    def size(self) -> str:
        """The images as the encoder sees them, for the results."""
        transform = self.encoder.eval_transforms
        return str(transform.crop) if isinstance(transform, TransformSpec) else ""

    @cached_property
    def fingerprint(self) -> str:
        """The name of this encoder on these images."""
        described = describe_encoder(self.encoder, precision=self.precision, numerics="network")
        return fingerprint([described, [key.hex() for key in self.keys.values()]])

    @cached_property
    def digest(self) -> str:
        """The name of all that the results depend on."""
        request = self.request
        images = [
            [split, image.name, image.label, image.group, image.sites]
            for split, images in request.data.splits.items()
            for image in images
        ]
        options = {name: str(value) for name, value in asdict(request.options).items()}
        content = [
            *(request.task, request.preset, request.seed, __version__, self.fingerprint),
            *(options, request.data.classes, str(request.data.target), images),
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """What is odd about the data or the encoder and holds for the task's numbers."""
        found = [UNCHECKED] if is_unchecked(self.encoder.identity) else []
        splits = self.request.data.splits
        seen = {self.keys[i.path] for name, images in splits.items() if name != "test" for i in images}
        shared = sum(self.keys[image.path] in seen for image in self.images("test"))
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
        named = {
            name: ([i.name for i in images], [i.label for i in images]) for name, images in splits.items()
        }
        return {
            DATA: told_of_data(named, self.classes, named_here=True),
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
        groups = tuple(image.group or "" for image in images)
        return Predictions(
            probabilities=outcome.probabilities,
            labels=np.array([image.label for image in images], dtype=np.int64),
            predicted=outcome.predicted,
            classes=self.classes,
            img_names=tuple(image.name for image in images),
            groups=groups if any(groups) else None,
            info={key: value for key, value in outcome.info.items() if key != "warnings"},
            sites={column: tuple(own.get(column, "") for own in sites) for column in columns},
        )


def readable(data: RoiDataset, settings: Settings) -> RoiDataset:
    """Leave out images that cannot be decoded; unless they are skipped, raise an error that lists them."""
    workers = useful_workers(settings.num_workers, on_cpu=False)

    def problem(image: RoiImage) -> str:
        try:
            open_rgb(image.path)
        except HistobenchError as error:
            return str(error)
        return ""

    reasons = {
        image.path: reason
        for images in data.splits.values()
        for image, reason in zip(images, spread(problem, images, threads=workers), strict=True)
        if reason
    }
    if reasons and settings.on_bad_image == "stop":
        raise HistobenchError(f"{listing(reasons.values())}\n  `on_bad_image` skip leaves such images out")
    if reasons:
        log.warning("%s: left out: %s", data.name, listing(reasons.values()))
    splits = {name: [i for i in images if i.path not in reasons] for name, images in data.splits.items()}
    return replace(data, splits=splits)
