"""Segmentation: patch tokens of train images are read out on test images, beside three references."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
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
from histobench.roi.data.image import open_rgb
from histobench.roi.data.masks import IGNORED, Codes, classes_of, read_mask
from histobench.roi.data.roi_dataset import RoiImage
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.construct import fill_with_seed
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.evaluation.context import TaskResult, TaskSkippedError
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.features.inference.device_runner import shape_of
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
from histobench.roi.protocols.linear_probe import held_out
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

#: Tiles [b, s, s, 3] of bytes to tokens [b, d, h, w] on the device.
Tokens = Callable[[NDArray[np.uint8]], Tensor]
#: Tokens to a value for every class [b, classes, h, w].
Readout = Callable[[Tensor], Tensor]


def run_segmentation(context: ImageContext) -> Iterator[TaskResult]:
    """The linear readout and the one by neighbors, each with the same readout of the references."""
    target = context.request.data.target
    assert target is not None  # or the task would not apply
    tiles = _Tiles.of(context, target.codes)
    own = _encoder_tokens(context, context.encoder)
    grid = _grid(context, own, tiles.size)
    networks: dict[str, Tokens] = {"": own, "random": _encoder_tokens(context, _random_twin(context))}
    networks["color"] = lambda pixels: _mean_colors(pixels, grid, context.device)
    parts = _parts(context)
    found = {name: _Found.of(context, tiles, tokens, parts) for name, tokens in networks.items()}
    ceiling, true = _ceiling(tiles, parts.test, grid)
    for setting in (LINEAR, NEIGHBORS):
        counts = [each.counts[setting] for each in found.values()]
        info = {
            "num_train": len(parts.fit),
            "val_use": "not used",
            "tile_size": tiles.size,
            "token_grid": list(grid),
            "readout": setting,
            **(found[""].info if setting == LINEAR else {}),  # with what the rate was chosen on
        }
        result = _result(context, tiles, [*counts, ceiling], true, setting, info, parts.warnings)
        yield _with_examples(result, tiles, parts.test, own, found[""].readouts[setting])


def _result(
    context: ImageContext,
    tiles: _Tiles,
    counts: Sequence[NDArray[np.int64]],
    true: NDArray[np.int64],
    setting: str,
    info: dict[str, Any],
    warnings: tuple[str, ...],
) -> TaskResult:
    images, classes = context.images("test"), tiles.classes
    groups = tuple(image.group or "" for image in images)
    names = [
        f"{start}{kind}:{name}"
        for start in ("", *(f"{each}:" for each in REFERENCES))
        for kind in ("intersection", "pixels")
        for name in classes
    ]
    predictions = TargetPredictions(
        kind=MASK,
        columns=classes,
        truth=true.astype(np.float64),
        predicted_columns=tuple(names),
        predicted=np.stack(counts, axis=1).reshape(len(images), -1).astype(np.float64),
        img_names=tuple(image.name for image in images),
        groups=groups if any(groups) else None,
        info=info,
        classes=classes,
    )
    found = target_metrics(predictions)
    scores = {name: score for name, score in found.items() if "@" not in name}
    per_class = {name: {"dice": found[f"dice@{place}"]} for place, name in enumerate(classes)}
    return TaskResult(predictions, scores, per_class, [], setting, warnings=warnings)


def _with_examples(
    result: TaskResult, tiles: _Tiles, images: Sequence[RoiImage], tokens: Tokens, readout: Readout
) -> TaskResult:
    """The result with a sheet of its worst and best images: image, truth, prediction, mistakes."""
    said = result.predictions
    assert isinstance(said, TargetPredictions)
    both, pixels = said.predicted.reshape(len(images), -1, 2, len(tiles.classes))[:, 0].swapaxes(0, 1)
    dice = mean_of_images(image_dice(both, pixels, said.truth)[:, foreground(tiles.classes)])
    order = [int(row) for row in np.argsort(dice, kind="stable") if np.isfinite(dice[row])]
    shown = list(dict.fromkeys([*order[:EXAMPLES], *order[-EXAMPLES:]]))
    if not shown:
        return result
    sheet = np.concatenate([_example(tiles, images[row], tokens, readout) for row in shown])
    listed = [{"image": images[row].name, "dice": round(float(dice[row]), 4)} for row in shown]
    info = {**said.info, "examples": listed}
    return replace(result, predictions=replace(said, info=info), sheet=sheet)


def _example(tiles: _Tiles, image: RoiImage, tokens: Tokens, readout: Readout) -> NDArray[np.uint8]:
    """Four square panels of one image beside each other [s, 4 s, 3]."""
    pixels = np.asarray(open_rgb(image.path))
    height, width = pixels.shape[:2]
    predicted = []
    with torch.no_grad():
        for _, part, _ in tiles.batches([image]):
            found = upsampled(readout(tokens(part).float()), tiles.size).argmax(dim=1)
            predicted.append(found.cpu().numpy().astype(np.uint8))
    said = joined(np.concatenate(predicted), height, width)
    truth = joined(tiles.read(image)[1], height, width)
    wrong = np.where(truth == said, 0, 1)
    panels = [
        pixels,
        PALETTE[np.where(truth == IGNORED, len(PALETTE) - 1, truth % (len(PALETTE) - 1))],
        PALETTE[said % (len(PALETTE) - 1)],
        np.array([[225, 225, 225], [200, 30, 40], [255, 255, 255]])[np.where(truth == IGNORED, 2, wrong)],
    ]
    side = (PANEL, PANEL)
    shown = [Image.fromarray(p.astype(np.uint8)).resize(side, Image.Resampling.NEAREST) for p in panels]
    return np.concatenate([np.asarray(picture) for picture in shown], axis=1)


# Who is trained on, chosen by and tested on.


@dataclass(frozen=True)
class _Parts:
    fit: Sequence[RoiImage]
    chosen: Sequence[RoiImage]  # never test images
    test: Sequence[RoiImage]
    chosen_on: str
    of_train: bool = False  # whether `chosen` was held out of the training images
    warnings: tuple[str, ...] = ()


def _parts(context: ImageContext) -> _Parts:
    """The given validation images, or a fifth of the training patients."""
    train, val, test = (list(context.images(split)) for split in ("train", "val", "test"))
    if val:
        return _Parts(train, val, test, "the validation images")
    if len(train) < 2:
        raise TaskSkippedError("there is one training image; two are needed, or a validation set")
    groups = [image.group or "" for image in train]
    labels = np.zeros(len(train), dtype=np.int64)
    by_group = context.request.options.choose_by == "group" and len(set(groups)) > 1
    fit, rest = held_out(labels, groups if by_group else None, seed=context.request.seed)
    warning = "" if by_group else "no patients are known: single images were held out to choose on"
    return _Parts(
        [train[row] for row in fit],
        [train[row] for row in rest],
        test,
        f"a fifth of the training {'patients' if by_group else 'images'}",
        True,
        (warning,) if warning else (),
    )


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
    def of(cls, context: ImageContext, codes: Codes) -> _Tiles:
        transform, settings = context.encoder.eval_transforms, context.request.settings
        size = transform.crop if isinstance(transform, TransformSpec) else shape_of(transform)[-1]
        asked = settings.batch_size
        usual = FORWARD.get(context.device.partition(":")[0], 8)
        batch = usual if isinstance(asked, str) else asked
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
        kept: list[tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint8]]] = []
        for place, (pixels, truth) in zip(places, self._ahead([images[at] for at in places]), strict=True):
            kept.append((np.full(len(pixels), place), pixels, truth))
            while sum(len(each[0]) for each in kept) >= self.batch:
                whole = [np.concatenate(parts) for parts in zip(*kept, strict=True)]
                yield self._moved(whole, slice(0, self.batch))
                kept = [tuple(part[self.batch :] for part in whole)]  # type: ignore[list-item]
        left = [np.concatenate(parts) for parts in zip(*kept, strict=True)]
        if left and len(left[0]):
            yield self._moved(left, slice(None))

    def _moved(
        self, parts: Sequence[NDArray[Any]], rows: slice
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8], Tensor]:
        place, pixels, truth = (part[rows] for part in parts)
        return place, pixels, torch.from_numpy(truth).to(self.device)

    def _ahead(self, images: Sequence[RoiImage]) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
        waiting: deque[Future[tuple[NDArray[np.uint8], NDArray[np.uint8]]]] = deque()
        with ThreadPoolExecutor(self.workers) as pool:
            for image in images:
                waiting.append(pool.submit(self.read, image))
                if len(waiting) > 2 * self.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


# What gives tokens: the encoder, the same with random weights, colors.


def _encoder_tokens(context: ImageContext, encoder: BasePatchEncoder) -> Tokens:
    device, transform = context.device, encoder.eval_transforms
    encoder.to(device)

    def tokens(pixels: NDArray[np.uint8]) -> Tensor:
        if isinstance(transform, TransformSpec):  # tiles have its size: they are neither resized nor cropped
            images = transform.normalise(torch.from_numpy(pixels).to(device))
        else:
            each = [torch.as_tensor(transform(Image.fromarray(tile))) for tile in pixels]
            images = torch.stack(each).to(device)
        with arithmetic(device, context.precision):
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
    transform = context.encoder.eval_transforms
    if not isinstance(transform, TransformSpec) and not _keeps_geometry(transform, size):
        raise TaskSkippedError(
            f"its eval_transforms crops or resizes a tile of {size} x {size} pixels, and its mask would not "
            "follow; give a TransformSpec"
        )
    try:
        found = tokens(np.zeros((1, size, size, 3), dtype=np.uint8))
    except Exception as error:  # networks of any kind, which may have no tokens
        raise TaskSkippedError(f"{context.request.encoder}: it gives no patch tokens ({error})") from error
    if found.ndim != 4 or len(found) != 1:
        raise TaskSkippedError(f"its patch_tokens give {tuple(found.shape)}, not [images, d, h, w]")
    return int(found.shape[2]), int(found.shape[3])


def _keeps_geometry(transform: Callable[[Any], Any], size: int) -> bool:
    """Whether a transform leaves every pixel of a tile where it is: a ramp stays a ramp."""
    ramp = np.linspace(0, 255, size).astype(np.uint8)
    for tile in (np.repeat(ramp[:, None], size, 1), np.repeat(ramp[None], size, 0)):
        seen = np.asarray(transform(Image.fromarray(np.repeat(tile[..., None], 3, 2))))[0].astype(np.float64)
        if seen.shape != tile.shape or np.corrcoef(seen.ravel(), tile.ravel())[0, 1] < 0.99999:
            return False
        slope, start = np.polyfit(tile.ravel(), seen.ravel(), 1)
        if np.abs(slope * tile + start - seen).max() > 3 * abs(slope):
            return False
    return True


# One pass over training images, one over those that are chosen by, one over test images.


@dataclass
class _Found:
    """Pixels [images, 2, classes] (in both, predicted) of the test images by readout."""

    counts: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    readouts: dict[str, Readout] = field(default_factory=dict)

    @classmethod
    def of(cls, context: ImageContext, tiles: _Tiles, tokens: Tokens, parts: _Parts) -> _Found:
        request, n_classes = context.request, len(tiles.classes)
        seed, device = request.seed, context.device
        with TemporaryDirectory(prefix="histobench-tokens-") as folder:
            store = TokenStore(Path(folder), request.options.token_store * 1e9)
            bank = TokenBank(np.random.default_rng([seed, 1]))
            for _, pixels, truth in tiles.batches(parts.fit):
                found = tokens(pixels)
                store.add(found, truth)
                bank.add(found, truth, n_classes)

            def again(rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
                order = rng.permutation(len(parts.fit))
                for _, pixels, truth in tiles.batches(parts.fit, order):
                    yield tokens(pixels).float(), truth

            batches = store.batches(device) if store.is_whole else again
            heads = train_heads(batches, store.count, store.shape[0], n_classes, seed=seed, device=device)
        readouts: dict[str, Readout] = {
            f"{place}": lambda found, place=place: heads(found)[:, place]  # type: ignore[misc]
            for place in range(len(RATES))
        }
        chosen = _counted(tiles, parts.chosen, tokens, readouts, bank if parts.of_train else None)
        fore = foreground(tiles.classes)
        values = [mean_of_images(image_dice(*_parts_of(each))[:, fore]) for each in chosen.values()]
        dice = [float(each[np.isfinite(each)].mean()) if np.isfinite(each).any() else 0.0 for each in values]
        best = int(np.argmax(dice))
        final = {LINEAR: readouts[str(best)], NEIGHBORS: bank.readout(device)}
        counts = _counted(tiles, parts.test, tokens, final, None)
        info = {
            "val_use": f"the learning rate was chosen on {parts.chosen_on}",
            "learning_rate": RATES[best],
            "dice_chosen_on": dict(zip(map(str, RATES), dice, strict=True)),
            "num_train_tiles": store.count,
            "tokens": "kept in a temporary file" if store.is_whole else "computed again in every epoch",
        }
        return cls({name: each[:, :2] for name, each in counts.items()}, info, final)


def _parts_of(counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
    return tuple(counts[:, place].astype(np.float64) for place in range(3))


def _counted(
    tiles: _Tiles,
    images: Sequence[RoiImage],
    tokens: Tokens,
    readouts: Mapping[str, Readout],
    bank: TokenBank | None,
) -> dict[str, NDArray[np.int64]]:
    """Pixels [images, 3, classes] by readout, tiles added up to images; a `bank` gets the tokens too."""
    n_classes = len(tiles.classes)
    counts = {name: np.zeros((len(images), 3, n_classes), dtype=np.int64) for name in readouts}
    with torch.no_grad():
        for place, pixels, truth in tiles.batches(images):
            found = tokens(pixels)
            if bank is not None:
                bank.add(found, truth, n_classes)
            for name, readout in readouts.items():
                predicted = upsampled(readout(found.float()), tiles.size).argmax(dim=1)
                np.add.at(counts[name], place, tally(truth, predicted, n_classes))
    return counts


def _ceiling(
    tiles: _Tiles, images: Sequence[RoiImage], grid: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pixels of the true mask through the grid [images, 2, classes], and true pixels [images, classes]."""
    n_classes = len(tiles.classes)
    counts = np.zeros((len(images), 3, n_classes), dtype=np.int64)
    for place, _, truth in tiles.batches(images):
        predicted = upsampled(patch_shares(truth, grid, n_classes), tiles.size).argmax(dim=1)
        np.add.at(counts, place, tally(truth, predicted, n_classes))
    return counts[:, :2], counts[:, 2]
