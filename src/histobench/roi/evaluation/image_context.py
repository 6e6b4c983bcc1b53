"""What the tasks that run the network on images work with: the context of all tasks, and an encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from histobench.core.devices import resolve_device
from histobench.core.errors import HistobenchError
from histobench.core.folders import local_dir
from histobench.core.threads import spread, stream
from histobench.roi.data.image import open_rgb
from histobench.roi.data.masks import Codes
from histobench.roi.data.roi_dataset import SPLITS, RoiImage, listing
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.evaluation.context import Context, TaskSkippedError
from histobench.roi.evaluation.evaluation_request import EvaluationRequest, ImageRequest
from histobench.roi.features.assemble import labelled, size_of
from histobench.roi.features.cache.content_hashes import content_keys
from histobench.roi.features.cache.row_cache import KEY_BYTES
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.features.fingerprint import describe_encoder, fingerprint
from histobench.roi.features.inference.forward import resolve_precision
from histobench.roi.features.loading.loader import useful_workers
from histobench.roi.features.loading.loading_pool import ThreadPool
from histobench.roi.presets import Preset
from histobench.roi.protocols.head_training import Parts
from histobench.roi.protocols.segmentation import file_array

Arrays = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class ImageContext(Context):
    """In the place of features there are hashes of the images: equal images have equal rows."""

    asked: ImageRequest
    encoder: BasePatchEncoder  # on the CPU, frozen, in eval mode
    precision: str

    @classmethod
    def of(cls, asked: ImageRequest) -> ImageContext:
        """Make the encoder and hash the images, without the unreadable ones where these are skipped."""
        settings, data, encoder = asked.settings, asked.data, asked.recipe.build()
        workers = useful_workers(settings.num_workers, on_cpu=False)
        every = [image for images in data.splits.values() for image in images]
        checked = every if settings.on_bad_image == "skip" else []
        problems = zip(checked, spread(_problem, checked, threads=workers), strict=True)
        bad = {image.path: problem for image, problem in problems if problem}
        splits = {s: [i for i in data.splits.get(s, ()) if i.path not in bad] for s in SPLITS}
        device = resolve_device(settings.devices[0])
        precision = resolve_precision(settings.precision, encoder.precision, device)
        every = [image for images in splits.values() for image in images]
        files = [*(i.path for i in every), *(i.mask for i in every if i.mask is not None)]
        with closing(ThreadPool(workers)) as pool:
            keys = dict(zip(files, content_keys(files, pool, local_dir()), strict=True))
        described = describe_encoder(encoder, precision=precision, numerics="network")
        about = {
            "size": size_of(encoder),
            "identity": encoder.identity,
            "fingerprint": fingerprint([described, str(data.target), [key.hex() for key in keys.values()]]),
            "skipped": [{"image": str(path), "reason": reason} for path, reason in bad.items()],
        }

        def features(images: Sequence[RoiImage]) -> FeatureSet:
            hashes = np.frombuffer(b"".join(keys[image.path] for image in images), np.uint8)
            rows = hashes.reshape(len(images), KEY_BYTES).astype(np.float32)
            return labelled(images, torch.from_numpy(rows), about)

        train, val, test = map(features, splits.values())
        same = ("results_dir", "dataset", "encoder", "preset", "seed", "options")
        given = {name: getattr(asked, name) for name in same} | {"val": val if len(val) else None}
        request = EvaluationRequest((asked.task,), train, test, classes=data.classes, **given)
        asked = replace(asked, data=replace(data, splits=splits))
        return cls(request, data.classes, device, asked, encoder, precision)

    @property
    def preset(self) -> Preset:
        """Learning rates are chosen on images that are not trained on, whatever the recipe."""
        return replace(super().preset, validation="held-out")

    @property
    def info(self) -> dict[str, Any]:
        return {**super().info, "precision": self.precision}

    @cached_property
    def every(self) -> list[RoiImage]:
        """All images: train, val, test."""
        return [image for images in self.asked.data.splits.values() for image in images]

    @property
    def codes(self) -> Codes:
        return self.asked.data.target.codes if self.asked.data.target else ()

    def stored(self, read: Callable[[RoiImage], Arrays]) -> tuple[Arrays, list[int]]:
        """The arrays [n, ...] that `read` makes of images, end to end in temporary files; n of each image."""
        problems, counts, files = list[str](), list[int](), list[IO[bytes]]()

        def tried(image: RoiImage) -> Arrays:
            try:
                return read(image)
            except HistobenchError as error:
                problems.append(str(error))
                return ()

        workers = useful_workers(self.asked.settings.num_workers, on_cpu=False)
        with ExitStack() as stack, closing(stream(tried, self.every, threads=workers)) as found:
            for arrays in filter(None, found):
                files = files or [stack.enter_context(TemporaryFile()) for _ in arrays]
                for file, rows in zip(files, arrays, strict=True):
                    rows.tofile(file)
                counts.append(len(rows))
            if problems:
                hint = "correct these files; `on_bad_image` skip leaves out images that cannot be decoded"
                raise HistobenchError(f"{listing(sorted(problems))}\n  {hint}")
            kinds = [(rows.dtype, (sum(counts), *rows.shape[1:])) for rows in arrays]
            return [file_array(file, *kind) for file, kind in zip(files, kinds, strict=True)], counts

    def parts(self, *, chooses: bool = True) -> Parts:
        """Which rows of `every` are fitted, chosen by, trained on in the end, and tested."""
        if not len(self.request.test):
            raise TaskSkippedError("there are no test images")
        rows, before = np.arange(len(self.every)), len(self.every) - len(self.request.test)
        train, val, test = np.split(rows, [len(self.request.train), before])
        fit, rest = (train, val) if len(val) else self.divided(chooses=chooses)
        return Parts(fit, rest, train, test)


def _problem(image: RoiImage) -> str:
    try:
        open_rgb(image.path)
    except HistobenchError as error:
        return str(error)
    return ""
