"""Segmentation: patch tokens of training images are read out on test images, beside three references."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageColor
from torch import Tensor
from torch.nn import functional as F

from histobench.core.errors import HistobenchError
from histobench.roi.data.image import open_rgb
from histobench.roi.data.masks import IGNORED, Codes, classes_of, read_mask
from histobench.roi.data.roi_dataset import RoiImage
from histobench.roi.data.targets import IGNORE
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.construct import fill_with_seed
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.evaluation.context import TaskResult, TaskSkippedError
from histobench.roi.evaluation.image_context import Arrays, ImageContext
from histobench.roi.features.inference.forward import arithmetic
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
    on_gpu,
    patch_shares,
    survey,
    upsampled,
)
from histobench.roi.task_catalogue import LINEAR, MASK, NEIGHBORS

#: The learning rates of the heads that are trained together, epochs at least, tiles per step.
RATES = (1e-2, 1e-3, 1e-4)
EPOCHS, BATCH = 20, 32
#: Images of each end that the sheet of examples shows, the side of a panel, colors of classes; last: ignored.
EXAMPLES, PANEL = 3, 160
_COLORS = "#ebebf0 #e69f00 #563ca0 #009e73 #d55e00 #56b4e9 #cc79a7 #f0e442 #ffffff"
PALETTE = np.array([ImageColor.getrgb(color) for color in _COLORS.split()])
#: Colors of right, wrong and ignored pixels.
MISTAKES = np.array([ImageColor.getrgb(color) for color in ("#e1e1e1", "#c81e28", "#ffffff")])

Pixels = NDArray[np.uint8]
#: From rows of tiles to a value for every class [b, classes, h, w], or several [b, heads, classes, h, w].
Readout = Callable[[Tensor], Tensor]


def run_segmentation(context: ImageContext) -> Iterator[TaskResult]:
    """The linear readout and the one by neighbors, each with the same readout of the references."""
    parts, grid = context.parts(), token_grid(context)
    tiles = Tiles.of(context)
    tile_parts = tiles.parts(parts)
    references = tiles.references(random_twin(context), grid, context.precision)
    networks = [tiles.frozen(context.encoder, context.precision), *references]
    found = [_read_out(tiles, encode, tile_parts, grid) for encode in networks]
    ceiling = tiles.ceiling(grid, tile_parts.test)
    _, readout, learned = found[0]
    about = {LINEAR: learned, NEIGHBORS: {"val_use": "not used"}}
    for place, setting in enumerate(about):
        counts = [*(pixels[place] for pixels, *_ in found), ceiling]
        info = {"num_train": len(parts.fit), "token_grid": list(grid), "readout": setting, **about[setting]}
        yield tiles.result(setting, counts, readout, info, place)


def _read_out(
    tiles: Tiles, encode: Encode, parts: Parts, grid: tuple[int, int]
) -> tuple[Counts, Readout, dict[str, Any]]:
    """Pixels of test images by both readouts of a network, these readouts, and how they were trained."""
    context, request = tiles.context, tiles.context.request
    stored = tiles.kept(encode, parts.fit)
    # The images to choose by are neighbors, too, unless they are validation images.
    near = parts.train if request.val is None else parts.fit
    share = min(1.0, BANK / (len(near) * math.prod(grid)))
    drawn = Drawn(share, np.random.default_rng([request.seed, 1]))
    moments = survey(stored, parts.fit, tiles.masks, tiles.batch, drawn)
    if len(rest := np.setdiff1d(near, parts.fit)):
        survey(encode, rest, tiles.masks, tiles.batch, drawn)
    epochs = max(EPOCHS, math.ceil(request.options.head_steps / math.ceil(len(parts.fit) / BATCH)))
    trainer = Trainer(stored, tiles.masks, *moments, epochs, BATCH, tiles.batch, context.encoder.name)
    dice = {rate: 1 - cost for rate, cost in trainer.costs(parts, RATES, request.seed).items()}
    head, neighbors = int(np.argmax([*dice.values()])), drawn.readout(context.device)

    @torch.no_grad()
    def both(rows: Tensor) -> Tensor:
        tokens = encode(rows)
        return torch.stack([trainer.heads(tokens)[:, head], neighbors(tokens)], dim=1)

    batches = ((rows, both(rows)) for rows in torch.from_numpy(parts.test).split(tiles.batch))
    info = {
        "learning_rate": RATES[head],
        "dice_chosen_on": {f"{rate:g}": each for rate, each in dice.items()},
        "num_train_tiles": len(parts.fit),
        "tokens": "computed again in every epoch" if stored is encode else "kept in a temporary file",
    }
    return tiles.masks.predicted(batches), both, info


@dataclass(frozen=True)
class Tiles:
    """All images cut into tiles of the encoder's input size, in temporary files."""

    context: ImageContext
    pixels: Pixels  # [n, s, s, 3]
    masks: Masks
    has: NDArray[np.bool_]  # [n, classes], which classes are in a tile
    batch: int  # tiles per forward pass

    @classmethod
    def of(cls, context: ImageContext) -> Tiles:
        """Cut all images and masks; what is added at borders is ignored."""
        transform, batch = context.encoder.eval_transforms, context.asked.settings.batch_size
        assert isinstance(transform, TransformSpec)  # see `token_grid`

        classes = classes_of(context.codes)

        def read(image: RoiImage) -> Arrays:
            pixels, truth = _read(image, context.codes)
            tiles = cut(truth, transform.crop, fill=IGNORED)
            has = [(tiles == label).any(axis=(1, 2)) for label in range(len(classes))]
            return cut(pixels, transform.crop, fill=255), tiles, np.stack(has, axis=1)

        (pixels, truth, has), counts = context.stored(read)
        masks = Masks(on_gpu(truth, context.device), np.repeat(np.arange(len(counts)), counts), classes)
        automatic = 64 if context.device.startswith("cuda") else 8
        return cls(context, pixels, masks, has, batch if isinstance(batch, int) else automatic)

    def parts(self, images: Parts) -> Parts:
        """The tiles of parts of the images; without padding and ignored tiles where these are trained on."""
        every = (images.fit, images.held_out, images.train, images.test)
        fit, held_out, train, test = (np.flatnonzero(np.isin(self.masks.image, part)) for part in every)
        counts = np.asarray(self.has.any(axis=1))
        if not counts[fit].any():
            raise HistobenchError(f"every pixel of the training masks is of the class {IGNORE}")
        return Parts(fit[counts[fit]], held_out, train[counts[train]], test)

    def encode(self, encoder: BasePatchEncoder, precision: str) -> Encode:
        """The patch tokens of an encoder; tiles, of its size, are neither resized nor cropped."""
        return on_device(encoder, self.pixels, device=self.context.device, precision=precision, tokens=True)

    def frozen(self, encoder: BasePatchEncoder, precision: str) -> Encode:
        """The same without gradients, in exactly that precision."""
        return arithmetic(self.context.device, precision)(self.encode(encoder, precision))

    def references(self, twin: BasePatchEncoder, grid: tuple[int, int], precision: str) -> list[Encode]:
        """What gives tokens without having learned: the network with random weights, and mean colors."""

        def colors(rows: Tensor) -> Tensor:
            images = torch.from_numpy(self.pixels[rows.numpy()]).to(self.context.device).movedim(-1, 1)
            return F.adaptive_avg_pool2d(images.float() / 255, grid)

        return [self.frozen(twin, precision), colors]

    def kept(self, encode: Encode, rows: Ints) -> Encode:
        """The same with half-precision tokens of these tiles in a file, where `token_store` is enough."""
        shape, device = encode(torch.from_numpy(rows[:1])).shape[1:], self.context.device
        if len(rows) * 2 * math.prod(shape) > self.context.request.options.token_store * 1e9:
            return encode
        with TemporaryFile() as file:
            for part in torch.from_numpy(rows).split(self.batch):
                encode(part).half().cpu().contiguous().numpy().tofile(file)
            tokens = on_gpu(file_array(file, np.float16, (len(rows), *shape)), device)
        place = torch.full((len(self.pixels),), -1)
        place[torch.from_numpy(rows)] = torch.arange(len(rows))

        def stored(wanted: Tensor) -> Tensor:
            places = place[wanted]
            known = bool((places >= 0).all())
            return tokens[places.to(tokens.device)].to(device).float() if known else encode(wanted)

        return stored

    def ceiling(self, grid: tuple[int, int], test: Ints) -> Counts:
        """Pixels of test images where the true classes pass the grid of tokens."""
        parts, classes = torch.from_numpy(test).split(self.batch), len(self.masks.classes)
        shares = ((part, patch_shares(self.masks.of(part), grid, classes)[:, None]) for part in parts)
        return self.masks.predicted(shares)[0]

    def result(
        self, setting: str, counts: Sequence[Counts], readout: Readout, info: dict[str, Any], head: int = 0
    ) -> TaskResult:
        """Pixels [images, 3, classes] of the first training, the references, and more trainings as a result.

        `readout` is that of the last training; the worst and the best images are drawn by one `head` of it.
        """
        test, classes, others = self.context.request.test, self.masks.classes, len(counts) - len(REFERENCES)
        listed, sheet = self._examples(counts[-1 if others > 1 else 0], lambda rows: readout(rows)[:, head])
        starts = ["", *(f"{name}:" for name in REFERENCES), *(f"training {k}:" for k in range(2, others + 1))]
        every = np.stack(counts, axis=1)
        predictions = TargetPredictions(
            kind=MASK,
            columns=classes,
            truth=every[:, 0, 2].astype(np.float64),
            predicted_columns=tuple(map("".join, product(starts, ("intersection:", "pixels:"), classes))),
            predicted=every[:, :, :2].reshape(len(test), -1).astype(np.float64),
            img_names=test.img_names,
            groups=test.groups,
            info={"tile_size": self.pixels.shape[1], **info, **({"examples": listed} if listed else {})},
            classes=classes,
        )
        found = target_metrics(predictions)
        scores = {name: score for name, score in found.items() if "@" not in name}
        per_class = {name: {"dice": found[f"dice@{at}"]} for at, name in enumerate(classes)}
        known = np.asarray(self.has[self.masks.image < len(self.context.request.train)].any(axis=0))
        new = [name for at, name in enumerate(classes) if not known[at] and every[:, 0, 2, at].any()]
        unknown = [f"test masks have {', '.join(new)}, but no training mask does"] if new else []
        warnings = (*self.context.choice_warnings, *unknown)
        return TaskResult(predictions, scores, per_class, [], setting, warnings=warnings, sheet=sheet)

    def _examples(self, counts: Counts, readout: Readout) -> tuple[list[dict[str, Any]], Pixels | None]:
        """The worst and best test images with their Dice, and a sheet: image, truth, prediction, mistakes."""
        names, first = self.context.request.test.img_names, len(self.context.every) - len(counts)
        dice = foreground_dice(counts, self.masks.classes)
        order = [int(row) for row in np.argsort(dice, kind="stable") if np.isfinite(dice[row])]
        shown = dict.fromkeys([*order[:EXAMPLES], *order[-EXAMPLES:]])
        if not shown:
            return [], None
        sheet = np.concatenate([self._example(first + row, readout) for row in shown])
        return [{"image": names[row], "dice": round(float(dice[row]), 4)} for row in shown], sheet

    def _example(self, image: int, readout: Readout) -> Pixels:
        """Four square panels of one image beside each other [s, 4 s, 3]."""
        rows = torch.from_numpy(np.flatnonzero(self.masks.image == image))
        with torch.no_grad():
            values = torch.cat([readout(part).float() for part in rows.split(self.batch)])
            classes = upsampled(values, self.pixels.shape[1]).argmax(dim=1).byte()
        pixels, y_true = _read(self.context.every[image], self.context.codes)
        y_pred = joined(classes.cpu().numpy(), *y_true.shape)
        ignored, colors = y_true == IGNORED, len(PALETTE) - 1
        panels = [
            pixels,
            PALETTE[np.where(ignored, colors, y_true % colors)],
            PALETTE[y_pred % colors],
            MISTAKES[np.where(ignored, 2, y_true != y_pred)],
        ]
        sheet = Image.fromarray(np.concatenate(panels, axis=1).astype(np.uint8))
        return np.asarray(sheet.resize((len(panels) * PANEL, PANEL), Image.Resampling.NEAREST))


def _read(image: RoiImage, codes: Codes) -> tuple[Pixels, Pixels]:
    assert image.mask is not None  # or the task would not predict masks
    pixels, truth = np.asarray(open_rgb(image.path)), read_mask(image.mask, codes)
    if truth.shape != pixels.shape[:2]:
        mask, own = (f"{shape[1]} x {shape[0]}" for shape in (truth.shape, pixels.shape))
        raise HistobenchError(f"{image.mask}: the mask has {mask} pixels, the image {own}")
    return pixels, truth


def random_twin(context: ImageContext) -> BasePatchEncoder:
    """The same network with seeded random weights."""
    twin = copy.deepcopy(context.encoder)
    for module in twin.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
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
