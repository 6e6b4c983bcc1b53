"""Segmentation: patch tokens of training images are read out on test images, beside three references.

Images as tiles, references and results are those of Fine-tune, too, where it predicts masks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from histobench.core.errors import HistobenchError
from histobench.core.threads import stream
from histobench.roi.data.image import open_rgb
from histobench.roi.data.masks import IGNORED, classes_of, read_mask
from histobench.roi.data.roi_dataset import RoiImage
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.construct import fill_with_seed
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.evaluation.context import TaskResult, TaskSkippedError
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.features.inference.forward import arithmetic
from histobench.roi.features.loading.loader import useful_workers
from histobench.roi.metrics.target_metrics import REFERENCES, target_metrics
from histobench.roi.predictions import TargetPredictions
from histobench.roi.protocols.head_training import Encode, Ints, Parts, Trainer, on_device
from histobench.roi.protocols.segmentation import (
    BANK,
    Counts,
    Drawn,
    Masks,
    cut,
    file_array,
    foreground_dice,
    joined,
    kept,
    on_gpu,
    patch_shares,
    survey,
    upsampled,
)
from histobench.roi.task_catalogue import LINEAR, MASK, NEIGHBORS

#: The learning rates of the heads that are trained together, epochs at least, tiles per step.
RATES = (1e-2, 1e-3, 1e-4)
EPOCHS, BATCH = 20, 32
#: Tiles per forward pass where the plan leaves it open.
FORWARD = {"cuda": 64}
WHITE = 255
#: Images of each end that the sheet of examples shows, the side of a panel, colors of classes; last: ignored.
EXAMPLES, PANEL = 3, 160
PALETTE = np.array(
    [
        *([235, 235, 240], [230, 159, 0], [86, 60, 160], [0, 158, 115], [213, 94, 0], [86, 180, 233]),
        *([204, 121, 167], [240, 228, 66], [255, 255, 255]),
    ]
)
#: Colors of right, wrong and ignored pixels.
MISTAKES = np.array([[225, 225, 225], [200, 30, 40], [255, 255, 255]])

#: From rows of tiles to a value for every class [b, classes, h, w].
Readout = Callable[[Tensor], Tensor]


def run_segmentation(context: ImageContext) -> Iterator[TaskResult]:
    """The linear readout and the one by neighbors, each with the same readout of the references."""
    parts, choice, warnings = context.parts()
    grid = token_grid(context)
    tiles = Tiles.of(context)
    tile_parts = tiles.parts(parts)
    references = tiles.references(random_twin(context), grid, context.precision)
    networks = {"": tiles.frozen(context.encoder, context.precision), **references}
    found = {name: _read_out(tiles, encode, tile_parts, grid) for name, encode in networks.items()}
    ceiling = tiles.ceiling(grid, tile_parts.test)
    _, readout, learned = found[""]
    for place, setting in enumerate((LINEAR, NEIGHBORS)):
        counts = [pixels[place] for pixels, *_ in found.values()]
        info = {
            "num_train": len(parts.fit),
            "token_grid": list(grid),
            "readout": setting,
            **({**choice, **learned} if setting == LINEAR else {"val_use": "not used"}),
        }
        yield tiles.result(
            setting,
            counts[:1],
            [*counts[1:], ceiling],
            lambda rows, place=place: readout(rows)[:, place],  # type: ignore[misc]
            info,
            warnings,
        )


def _read_out(
    tiles: Tiles, encode: Encode, parts: Parts, grid: tuple[int, int]
) -> tuple[Counts, Readout, dict[str, Any]]:
    """Pixels of test images by both readouts of a network, these readouts, and how they were trained."""
    context = tiles.context
    request = context.request
    stored = tiles.kept(encode, parts.fit)
    # The images to choose by are neighbors, too, unless they are validation images.
    near = parts.fit if context.images("val") else parts.train
    share = min(1.0, BANK / (len(near) * math.prod(grid)))
    drawn = Drawn(share, np.random.default_rng([request.seed, 1]))
    moments = survey(stored, parts.fit, tiles.masks, tiles.batch, drawn)
    if len(rest := np.setdiff1d(near, parts.fit)):
        survey(encode, rest, tiles.masks, tiles.batch, drawn)
    steps = math.ceil(len(parts.fit) / BATCH)
    epochs = max(EPOCHS, math.ceil(request.options.head_steps / steps))
    trainer = Trainer(stored, tiles.masks, *moments, epochs, BATCH, tiles.batch)
    heads = trainer.train(parts.fit, RATES, request.seed)
    trainer.encode = encode
    dice = 1 - np.array(tiles.masks.costs(trainer.predict(heads, parts.held_out), parts.held_out))
    best, neighbors = int(dice.argmax()), drawn.readout(context.device)

    @torch.no_grad()
    def both(rows: Tensor) -> Tensor:
        tokens = encode(rows)
        return torch.stack([heads(tokens)[:, best], neighbors(tokens)], dim=1)

    batches = ((rows, both(rows)) for rows in torch.from_numpy(parts.test).split(tiles.batch))
    info = {
        "learning_rate": RATES[best],
        "dice_chosen_on": {f"{rate:g}": float(each) for rate, each in zip(RATES, dice, strict=True)},
        "num_train_tiles": len(parts.fit),
        "tokens": "computed again in every epoch" if stored is encode else "kept in a temporary file",
    }
    return tiles.masks.predicted(batches), both, info


# Images as tiles, what gives tokens, and the results.


@dataclass(frozen=True)
class Tiles:
    """All images cut into tiles of the encoder's input size, in temporary files."""

    context: ImageContext
    pixels: NDArray[np.uint8]  # [n, s, s, 3]
    masks: Masks
    counted: NDArray[np.bool_]  # [n], whether any pixel of the tile counts
    shapes: Sequence[tuple[int, int]]  # height and width of each image
    batch: int  # tiles per forward pass

    @classmethod
    def of(cls, context: ImageContext) -> Tiles:
        """Cut all images and masks; what is added at borders is ignored."""
        transform, settings = context.encoder.eval_transforms, context.request.settings
        assert isinstance(transform, TransformSpec)  # see `token_grid`
        assert context.request.data.target is not None  # or the task would not predict masks
        size, codes = transform.crop, context.request.data.target.codes

        def read(image: RoiImage) -> tuple[NDArray[np.uint8], NDArray[np.uint8], tuple[int, int]]:
            pixels = np.asarray(open_rgb(image.path))
            assert image.mask is not None
            truth = read_mask(image.mask, codes)
            height, width = pixels.shape[:2]
            if truth.shape != (height, width):
                raise HistobenchError(
                    f"{image.mask}: the mask has {truth.shape[1]} x {truth.shape[0]} pixels, the image "
                    f"{width} x {height}"
                )
            return cut(pixels, size, WHITE), cut(truth, size, IGNORED), (height, width)

        counted, image, shapes = [], [], []
        workers = max(1, useful_workers(settings.num_workers, on_cpu=context.device == "cpu"))
        with (
            closing(stream(read, context.every, threads=workers)) as images,
            TemporaryFile() as pixels_file,
            TemporaryFile() as truth_file,
        ):
            for number, (pixels, truth, shape) in enumerate(images):
                pixels.tofile(pixels_file)
                truth.tofile(truth_file)
                counted.append((truth != IGNORED).any(axis=(1, 2)))
                image += [number] * len(truth)
                shapes.append(shape)
            every = (len(image), size, size)
            usual = FORWARD.get(context.device.partition(":")[0], 8)
            true_classes = on_gpu(file_array(truth_file, np.uint8, every), context.device)
            return cls(
                context,
                file_array(pixels_file, np.uint8, (*every, 3)),
                Masks(true_classes, np.array(image), classes_of(codes)),
                np.concatenate(counted),
                shapes,
                usual if isinstance(settings.batch_size, str) else settings.batch_size,
            )

    def rows(self, images: Ints, *, counted: bool = False) -> Ints:
        """The tiles of these images, or those of them in which a pixel counts."""
        wanted = np.isin(self.masks.image, images)
        return np.flatnonzero(wanted & self.counted if counted else wanted)

    def parts(self, images: Parts) -> Parts:
        """The tiles of parts of the images; without padding and ignored tiles where these are trained on."""
        fit, train = (self.rows(rows, counted=True) for rows in (images.fit, images.train))
        return Parts(fit, self.rows(images.held_out), train, self.rows(images.test))

    def encode(self, encoder: BasePatchEncoder, precision: str) -> Encode:
        """The patch tokens of an encoder."""
        # Tiles have the size of the crop: they are neither resized nor cropped.
        return on_device(encoder, self.pixels, device=self.context.device, precision=precision, tokens=True)

    def frozen(self, encoder: BasePatchEncoder, precision: str) -> Encode:
        """The same without gradients, in exactly that precision."""
        encode = self.encode(encoder, precision)

        def frozen(rows: Tensor) -> Tensor:
            with arithmetic(self.context.device, precision):
                return encode(rows)

        return frozen

    def references(self, twin: BasePatchEncoder, grid: tuple[int, int], precision: str) -> dict[str, Encode]:
        """What gives tokens without having learned: the network with random weights, and mean colors."""

        def colors(rows: Tensor) -> Tensor:
            images = torch.from_numpy(self.pixels[rows.numpy()]).to(self.context.device).movedim(-1, 1)
            return F.adaptive_avg_pool2d(images.float() / 255, grid)

        return {"random": self.frozen(twin, precision), "color": colors}

    def kept(self, encode: Encode, rows: Ints) -> Encode:
        """The same with the tokens of these tiles in a temporary file, where `token_store` is enough."""
        most = self.context.request.options.token_store * 1e9
        return kept(encode, rows, most, self.batch, self.context.device)

    def ceiling(self, grid: tuple[int, int], test: Ints) -> Counts:
        """Pixels of test images where the true classes pass the grid of tokens."""
        parts = torch.from_numpy(test).split(self.batch)
        classes = self.masks.n_classes
        shares = ((part, patch_shares(self.masks.of(part), grid, classes)[:, None]) for part in parts)
        return self.masks.predicted(shares)[0]

    def result(
        self,
        setting: str,
        trained: Sequence[Counts],
        references: Sequence[Counts],
        readout: Readout,
        info: dict[str, Any],
        warnings: tuple[str, ...] = (),
    ) -> TaskResult:
        """Pixels [images, 3, classes] of each training and of references as the result of a task.

        `readout` is that of the last training; the worst and the best images are drawn by it.
        """
        images, classes = self.context.images("test"), self.masks.classes
        listed, sheet = self._examples(trained[-1], readout)
        starts = ["", *REFERENCES, *(f"training {k}" for k in range(2, len(trained) + 1))]
        every = np.stack([trained[0], *references, *trained[1:]], axis=1)
        groups = tuple(image.group or "" for image in images)
        predictions = TargetPredictions(
            kind=MASK,
            columns=classes,
            truth=every[:, 0, 2].astype(np.float64),
            predicted_columns=tuple(
                f"{start and start + ':'}{kind}:{name}"
                for start in starts
                for kind in ("intersection", "pixels")
                for name in classes
            ),
            predicted=every[:, :, :2].reshape(len(images), -1).astype(np.float64),
            img_names=tuple(image.name for image in images),
            groups=groups if any(groups) else None,
            info={"tile_size": self.pixels.shape[1], **info, **({"examples": listed} if listed else {})},
            classes=classes,
        )
        found = target_metrics(predictions)
        scores = {name: score for name, score in found.items() if "@" not in name}
        per_class = {name: {"dice": found[f"dice@{at}"]} for at, name in enumerate(classes)}
        return TaskResult(predictions, scores, per_class, [], setting, warnings=warnings, sheet=sheet)

    def _examples(
        self, counts: Counts, readout: Readout
    ) -> tuple[list[dict[str, Any]], NDArray[np.uint8] | None]:
        """The worst and best test images with their Dice, and a sheet: image, truth, prediction, mistakes."""
        images, first = self.context.images("test"), len(self.shapes) - len(counts)
        dice = foreground_dice(counts, self.masks.classes)
        order = [int(row) for row in np.argsort(dice, kind="stable") if np.isfinite(dice[row])]
        shown = list(dict.fromkeys([*order[:EXAMPLES], *order[-EXAMPLES:]]))
        if not shown:
            return [], None
        sheet = np.concatenate([self._example(first + row, readout) for row in shown])
        return [{"image": images[row].name, "dice": round(float(dice[row]), 4)} for row in shown], sheet

    def _example(self, image: int, readout: Readout) -> NDArray[np.uint8]:
        """Four square panels of one image beside each other [s, 4 s, 3]."""
        rows = torch.from_numpy(self.rows(np.array([image])))
        with torch.no_grad():
            values = torch.cat([readout(part).float() for part in rows.split(self.batch)])
            classes = upsampled(values, self.pixels.shape[1]).argmax(dim=1).byte()
        shape, colors = self.shapes[image], len(PALETTE) - 1
        truth = self.masks.of(rows).cpu().numpy()
        pixels, y_true, y_pred = (
            joined(each, *shape) for each in (self.pixels[rows.numpy()], truth, classes.cpu().numpy())
        )
        ignored = y_true == IGNORED
        panels = [
            pixels,
            PALETTE[np.where(ignored, colors, y_true % colors)],
            PALETTE[y_pred % colors],
            MISTAKES[np.where(ignored, 2, y_true != y_pred)],
        ]
        side = (PANEL, PANEL)
        pictures = [
            Image.fromarray(p.astype(np.uint8)).resize(side, Image.Resampling.NEAREST) for p in panels
        ]
        return np.concatenate([np.asarray(picture) for picture in pictures], axis=1)


def random_twin(context: ImageContext) -> BasePatchEncoder:
    """The same network with seeded random weights."""
    twin = copy.deepcopy(context.encoder)
    for module in twin.modules():
        reset: Any = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    fill_with_seed(twin, context.request.seed)
    return twin


def token_grid(context: ImageContext) -> tuple[int, int]:
    """The grid of the tokens of a tile; an encoder whose tokens cannot be placed is skipped."""
    transform, device = context.encoder.eval_transforms, context.device
    if not isinstance(transform, TransformSpec):
        raise TaskSkippedError(
            "its eval_transforms may crop or resize images, and masks would not follow; give a TransformSpec"
        )
    try:
        with torch.no_grad():
            image = torch.zeros(1, 3, transform.crop, transform.crop, device=device)
            found = context.encoder.to(device).patch_tokens(image)
    except Exception as error:  # networks of any kind, which may have no tokens
        raise TaskSkippedError(f"{context.request.encoder}: it gives no patch tokens ({error})") from error
    if found.ndim != 4 or len(found) != 1:
        raise TaskSkippedError(f"its patch_tokens give {tuple(found.shape)}, not [images, d, h, w]")
    return int(found.shape[2]), int(found.shape[3])
