"""Segmentation: patch tokens of train images are read out on test images, beside three references."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
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
from histobench.roi.data.masks import IGNORED, Codes, classes_of, read_mask
from histobench.roi.data.roi_dataset import RoiImage
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.construct import fill_with_seed
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.evaluation.context import TaskResult, TaskSkippedError
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.features.inference.forward import arithmetic
from histobench.roi.features.loading.loader import useful_workers
from histobench.roi.metrics.target_metrics import (
    REFERENCES,
    foreground,
    image_dice,
    mean_of_images,
    target_metrics,
)
from histobench.roi.predictions import TargetPredictions
from histobench.roi.protocols.segmentation import (
    RATES,
    TokenBank,
    TokenStore,
    cut,
    joined,
    patch_shares,
    tally,
    train_heads,
    upsampled,
)
from histobench.roi.task_catalogue import LINEAR, MASK, NEIGHBORS

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

#: Tiles [b, s, s, 3] of bytes to tokens [b, d, h, w] on the device.
Tokens = Callable[[NDArray[np.uint8]], Tensor]
#: Tokens to a value for every class [b, classes, h, w].
Readout = Callable[[Tensor], Tensor]
Counts = NDArray[np.int64]  # [images, 3, classes]: pixels in both, predicted, true


def run_segmentation(context: ImageContext) -> Iterator[TaskResult]:
    """The linear readout and the one by neighbors, each with the same readout of the references."""
    transform = context.encoder.eval_transforms
    if not isinstance(transform, TransformSpec):
        raise TaskSkippedError(
            "its eval_transforms may crop or resize images, and masks would not follow; give a TransformSpec"
        )
    tiles = _Tiles.of(context, transform.crop)
    own = _encoder_tokens(context, context.encoder, transform)
    grid = _grid(context, own, tiles.size)
    parts, choice, warnings = context.parts()
    fit, chosen, test = (
        [context.every[row] for row in rows] for rows in (parts.fit, parts.held_out, parts.test)
    )
    networks: dict[str, Tokens] = {
        "": own,
        "random": _encoder_tokens(context, _random_twin(context), transform),
        "color": lambda pixels: _mean_colors(pixels, grid, context.device),
    }
    of_train = not context.images("val")  # the images to choose by are training images
    read = {
        name: _read_out(context, tiles, tokens, fit, chosen, of_train=of_train)
        for name, tokens in networks.items()
    }
    counts = {name: _counted(tiles, test, networks[name], readouts) for name, (readouts, _) in read.items()}
    shown = {"ceiling": lambda truth: patch_shares(truth, grid, len(tiles.classes))}
    ceiling = _counted(tiles, test, None, shown)["ceiling"]
    for setting in (LINEAR, NEIGHBORS):
        every = np.stack([*(found[setting] for found in counts.values()), ceiling], axis=1)
        listed, sheet = _examples(tiles, test, every[:, 0], own, read[""][0][setting])
        info = {
            "num_train": len(fit),
            "tile_size": tiles.size,
            "token_grid": list(grid),
            "readout": setting,
            **({**choice, **read[""][1]} if setting == LINEAR else {"val_use": "not used"}),
            **({"examples": listed} if listed else {}),
        }
        predictions = _predictions(tiles.classes, test, every, info)
        found = target_metrics(predictions)
        scores = {name: score for name, score in found.items() if "@" not in name}
        per_class = {name: {"dice": found[f"dice@{at}"]} for at, name in enumerate(tiles.classes)}
        yield TaskResult(predictions, scores, per_class, [], setting, warnings=warnings, sheet=sheet)


def _predictions(
    classes: tuple[str, ...], images: Sequence[RoiImage], counts: Counts, info: dict[str, Any]
) -> TargetPredictions:
    """Pixels of images from counts [images, networks and ceiling, 3, classes]."""
    groups = tuple(image.group or "" for image in images)
    names = [
        f"{start}{kind}:{name}"
        for start in ("", *(f"{each}:" for each in REFERENCES))
        for kind in ("intersection", "pixels")
        for name in classes
    ]
    return TargetPredictions(
        kind=MASK,
        columns=classes,
        truth=counts[:, 0, 2].astype(np.float64),
        predicted_columns=tuple(names),
        predicted=counts[:, :, :2].reshape(len(images), -1).astype(np.float64),
        img_names=tuple(image.name for image in images),
        groups=groups if any(groups) else None,
        info=info,
        classes=classes,
    )


def _foreground_dice(counts: Counts, classes: tuple[str, ...]) -> NDArray[np.float64]:
    """The mean Dice of the foreground classes of each image, from pixels [images, 3, classes]."""
    both, predicted, true = counts.astype(np.float64).swapaxes(0, 1)
    return mean_of_images(image_dice(both, predicted, true)[:, foreground(classes)])


def _examples(
    tiles: _Tiles, images: Sequence[RoiImage], counts: Counts, tokens: Tokens, readout: Readout
) -> tuple[list[dict[str, Any]], NDArray[np.uint8] | None]:
    """The worst and best images with their Dice, and a sheet of them: image, truth, prediction, mistakes."""
    dice = _foreground_dice(counts, tiles.classes)
    order = [int(row) for row in np.argsort(dice, kind="stable") if np.isfinite(dice[row])]
    shown = list(dict.fromkeys([*order[:EXAMPLES], *order[-EXAMPLES:]]))
    if not shown:
        return [], None
    sheet = np.concatenate([_example(tiles, images[row], tokens, readout) for row in shown])
    return [{"image": images[row].name, "dice": round(float(dice[row]), 4)} for row in shown], sheet


def _example(tiles: _Tiles, image: RoiImage, tokens: Tokens, readout: Readout) -> NDArray[np.uint8]:
    """Four square panels of one image beside each other [s, 4 s, 3]."""
    pixels = np.asarray(open_rgb(image.path))
    with torch.no_grad():
        maps = [readout(tokens(part).float()) for _, part, _ in tiles.batches([image])]
        classes = upsampled(torch.cat(maps), tiles.size).argmax(dim=1).cpu().numpy().astype(np.uint8)
    y_pred, y_true = (joined(each, *pixels.shape[:2]) for each in (classes, tiles.read(image)[1]))
    ignored, colors = y_true == IGNORED, len(PALETTE) - 1
    panels = [
        pixels,
        PALETTE[np.where(ignored, colors, y_true % colors)],
        PALETTE[y_pred % colors],
        MISTAKES[np.where(ignored, 2, y_true != y_pred)],
    ]
    side = (PANEL, PANEL)
    shown = [Image.fromarray(p.astype(np.uint8)).resize(side, Image.Resampling.NEAREST) for p in panels]
    return np.concatenate([np.asarray(picture) for picture in shown], axis=1)


# Images as tiles of the encoder's input, read ahead by threads.


@dataclass(frozen=True)
class _Tiles:
    size: int
    codes: Codes
    classes: tuple[str, ...]
    workers: int
    batch: int
    device: str

    @classmethod
    def of(cls, context: ImageContext, size: int) -> _Tiles:
        assert context.request.data.target is not None  # or the task would not apply
        codes, settings = context.request.data.target.codes, context.request.settings
        usual = FORWARD.get(context.device.partition(":")[0], 8)
        batch = usual if isinstance(settings.batch_size, str) else settings.batch_size
        workers = max(1, useful_workers(settings.num_workers, on_cpu=context.device == "cpu"))
        return cls(size, codes, classes_of(codes), workers, batch, context.device)

    def read(self, image: RoiImage) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Pixels and true classes of all tiles of an image; what is added at the border is ignored."""
        pixels = np.asarray(open_rgb(image.path))
        assert image.mask is not None
        truth = read_mask(image.mask, self.codes)
        if truth.shape != pixels.shape[:2]:
            raise HistobenchError(
                f"{image.mask}: the mask has {truth.shape[1]} x {truth.shape[0]} pixels, the image "
                f"{pixels.shape[1]} x {pixels.shape[0]}"
            )
        return cut(pixels, self.size, WHITE), cut(truth, self.size, IGNORED)

    def batches(
        self, images: Sequence[RoiImage], order: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8], Tensor]]:
        """The place of its image, pixels and true classes of tiles, batch by batch."""
        places = range(len(images)) if order is None else order.tolist()
        with closing(stream(self.read, [images[at] for at in places], threads=self.workers)) as read:
            tiles = (
                (place, *tile)
                for place, parts in zip(places, read, strict=True)
                for tile in zip(*parts, strict=True)
            )
            while batch := list(islice(tiles, self.batch)):
                at, pixels, truth = map(np.array, zip(*batch, strict=True))
                yield at, pixels, torch.from_numpy(truth).to(self.device)


# What gives tokens: the encoder, the same with random weights, colors.


def _encoder_tokens(context: ImageContext, encoder: BasePatchEncoder, transform: TransformSpec) -> Tokens:
    encoder.to(context.device)

    def tokens(pixels: NDArray[np.uint8]) -> Tensor:
        # Tiles have the size of the crop: they are neither resized nor cropped.
        images = transform.normalise(torch.from_numpy(pixels).to(context.device))
        with arithmetic(context.device, context.precision):
            return encoder.patch_tokens(images)

    return tokens


def _random_twin(context: ImageContext) -> BasePatchEncoder:
    """The same network with seeded random weights."""
    twin = copy.deepcopy(context.encoder)
    for module in twin.modules():
        reset: Any = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    fill_with_seed(twin, context.request.seed)
    return twin


def _mean_colors(pixels: NDArray[np.uint8], grid: tuple[int, int], device: str) -> Tensor:
    images = torch.from_numpy(pixels).to(device).movedim(-1, 1).float() / 255
    return F.adaptive_avg_pool2d(images, grid)


def _grid(context: ImageContext, tokens: Tokens, size: int) -> tuple[int, int]:
    """The grid of tokens over a tile; an encoder without one is skipped."""
    try:
        found = tokens(np.zeros((1, size, size, 3), dtype=np.uint8))
    except Exception as error:  # networks of any kind, which may have no tokens
        raise TaskSkippedError(f"{context.request.encoder}: it gives no patch tokens ({error})") from error
    if found.ndim != 4 or len(found) != 1:
        raise TaskSkippedError(f"its patch_tokens give {tuple(found.shape)}, not [images, d, h, w]")
    return int(found.shape[2]), int(found.shape[3])


# One pass over training images, one over those that are chosen by, one over test images.


def _read_out(
    context: ImageContext,
    tiles: _Tiles,
    tokens: Tokens,
    fit: Sequence[RoiImage],
    chosen: Sequence[RoiImage],
    *,
    of_train: bool,
) -> tuple[dict[str, Readout], dict[str, Any]]:
    """Train both readouts of a network; `chosen` images join the neighbors where they are of train."""
    request, n_classes = context.request, len(tiles.classes)
    seed, device = request.seed, context.device
    with TemporaryDirectory(prefix="histobench-tokens-") as folder:
        store = TokenStore(Path(folder), request.options.token_store * 1e9)
        bank = TokenBank(np.random.default_rng([seed, 1]))
        for _, pixels, truth in tiles.batches(fit):
            found = tokens(pixels)
            store.add(found, truth)
            bank.add(found, truth, n_classes)

        def again(rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
            for _, pixels, truth in tiles.batches(fit, rng.permutation(len(fit))):
                yield tokens(pixels).float(), truth

        batches = store.batches(device) if store.is_whole else again
        heads = train_heads(
            batches,
            store.count,
            store.shape[0],
            n_classes,
            seed=seed,
            device=device,
            least_steps=request.options.head_steps,
        )
    by_rate: dict[str, Readout] = {
        f"{rate}": lambda found, place=place: heads(found)[:, place]  # type: ignore[misc]
        for place, rate in enumerate(RATES)
    }
    counts = _counted(tiles, chosen, tokens, by_rate, bank if of_train else None)
    values = {rate: _foreground_dice(found, tiles.classes) for rate, found in counts.items()}
    known = {rate: each[np.isfinite(each)] for rate, each in values.items()}
    dice = {rate: float(each.mean()) if len(each) else 0.0 for rate, each in known.items()}
    best = max(dice, key=lambda rate: dice[rate])
    info = {
        "learning_rate": float(best),
        "dice_chosen_on": dice,
        "num_train_tiles": store.count,
        "tokens": "kept in a temporary file" if store.is_whole else "computed again in every epoch",
    }
    return {LINEAR: by_rate[best], NEIGHBORS: bank.readout(device)}, info


def _counted(
    tiles: _Tiles,
    images: Sequence[RoiImage],
    tokens: Tokens | None,
    readouts: Mapping[str, Readout],
    bank: TokenBank | None = None,
) -> dict[str, Counts]:
    """Count pixels by readout, tiles added up to images; a `bank` gets the tokens too.

    Without `tokens` readouts see the true classes.
    """
    n_classes = len(tiles.classes)
    counts = {name: np.zeros((len(images), 3, n_classes), dtype=np.int64) for name in readouts}
    with torch.no_grad():
        for place, pixels, truth in tiles.batches(images):
            found = truth if tokens is None else tokens(pixels)
            if bank is not None:
                bank.add(found, truth, n_classes)
            for name, readout in readouts.items():
                values = readout(found if tokens is None else found.float())
                predicted = upsampled(values, tiles.size).argmax(dim=1)
                np.add.at(counts[name], place, tally(truth, predicted, n_classes))
    return counts
