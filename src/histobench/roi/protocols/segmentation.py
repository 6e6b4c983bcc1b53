"""Segmentation by patch tokens: the geometry of tiles, what linear heads are trained for, and neighbors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from histobench.roi.data.masks import IGNORED
from histobench.roi.metrics.target_metrics import foreground, image_dice, mean_of_images
from histobench.roi.protocols.head_training import Encode, Ints

#: Of the readout without training: neighbors, temperature, tokens that are drawn and asked for at a time.
NEIGHBORS, TEMPERATURE, BANK, QUERIES = 30, 0.02, 100_000, 2048

Counts = NDArray[np.int64]  # [..., images, 3, classes]: pixels in both, predicted, true


def cut(pixels: NDArray[np.uint8], size: int, fill: int) -> NDArray[np.uint8]:
    """An array [h, w, ...] as tiles [rows * columns, size, size, ...], row by row; the border is filled up.

    >>> cut(np.ones((3, 5), np.uint8), 4, 9).shape
    (2, 4, 4)
    """
    height, width = pixels.shape[:2]
    rows, columns = math.ceil(height / size), math.ceil(width / size)
    border = [(0, rows * size - height), (0, columns * size - width)] + [(0, 0)] * (pixels.ndim - 2)
    padded = np.pad(pixels, border, constant_values=fill)
    tiles = padded.reshape(rows, size, columns, size, *pixels.shape[2:]).swapaxes(1, 2)
    return np.ascontiguousarray(tiles.reshape(-1, size, size, *pixels.shape[2:]))


def joined(tiles: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    size, inside = tiles.shape[1], tiles.shape[3:]
    columns = math.ceil(width / size)
    whole = tiles.reshape(-1, columns, size, size, *inside).swapaxes(1, 2)
    return whole.reshape(-1, columns * size, *inside)[:height, :width]


def upsampled(values: Tensor, size: int) -> Tensor:
    return F.interpolate(values, size=(size, size), mode="bilinear", align_corners=False)


def patch_shares(truth: Tensor, grid: tuple[int, int], n_classes: int) -> Tensor:
    """The share of every class in each patch [b, c, h, w]; all zero where nothing counts."""
    one_hot = F.one_hot(truth.long().clamp(max=n_classes), n_classes + 1)[..., :n_classes]
    area = F.adaptive_avg_pool2d(one_hot.permute(0, 3, 1, 2).float(), grid)
    return area / area.sum(dim=1, keepdim=True).clamp(min=1e-9)


def tally(truth: Tensor, predicted: Tensor, n_classes: int) -> NDArray[np.int64]:
    """Pixels [b, 3, classes] of tiles [b, s, s]: in both, predicted, true; ignored ones do not count."""
    counted = truth != IGNORED
    tile = torch.arange(len(truth), device=truth.device).view(-1, 1, 1).expand_as(truth)
    cells = (tile[counted] * n_classes + truth[counted].long()) * n_classes + predicted[counted].long()
    found = torch.bincount(cells, minlength=len(truth) * n_classes**2).view(-1, n_classes, n_classes)
    parts = [found.diagonal(dim1=1, dim2=2), found.sum(dim=1), found.sum(dim=2)]
    return torch.stack(parts, dim=1).cpu().numpy()


@dataclass(frozen=True)
class Masks:
    """The class of every pixel of tiles; predicted are pixels of whole images [heads, images, 3, classes]."""

    truth: Tensor  # [n, s, s]
    image: Ints  # [n], the image of each tile, in rising order
    classes: tuple[str, ...]

    def of(self, rows: Tensor) -> Tensor:
        return self.truth[rows.to(self.truth.device)]

    def loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        large = upsampled(logits.flatten(1, 2), self.truth.shape[-1]).unflatten(1, logits.shape[1:3])
        return head_loss(large, self.of(rows).to(logits.device))

    def predicted(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Counts:
        """Pixels of each image, from rows of tiles and values [b, heads, classes, h, w]."""
        tiles, images, size = [], [], self.truth.shape[-1]
        for rows, values in batches:
            truth = self.of(rows).to(values.device)
            # One after the other: values at the size of the mask take most of the memory.
            classes = (upsampled(each, size).argmax(dim=1) for each in values.unbind(dim=1))
            tiles.append(np.stack([tally(truth, each, len(self.classes)) for each in classes]))
            images.append(self.image[rows.numpy()])
        starts = np.unique(np.concatenate(images), return_index=True)[1]
        return np.add.reduceat(np.concatenate(tiles, axis=1), starts, axis=1)

    def costs(self, predicted: Counts, rows: Ints) -> list[float]:
        dice = [foreground_dice(each, self.classes) for each in predicted]
        return [1.0 - float(np.nanmean(each)) if np.isfinite(each).any() else 1.0 for each in dice]


def foreground_dice(counts: Counts, classes: Sequence[str]) -> NDArray[np.float64]:
    both, predicted, true = counts.astype(np.float64).swapaxes(0, 1)
    return mean_of_images(image_dice(both, predicted, true)[:, foreground(classes)])


def head_loss(logits: Tensor, truth: Tensor) -> Tensor:
    """Cross-entropy plus soft Dice loss of logits [b, heads, classes, s, s], summed over heads."""
    n_classes = logits.shape[2]
    counted = truth != IGNORED
    classes = truth.long().where(counted, 0)
    logs = logits.log_softmax(dim=2)
    index = classes[:, None, None].expand(-1, logits.shape[1], 1, -1, -1)
    true_logs = logs.gather(2, index).squeeze(2) * counted[:, None]
    entropy = -true_logs.sum(dim=(0, 2, 3)) / counted.sum()
    one_hot = (truth.flatten()[:, None] == torch.arange(n_classes, device=truth.device)).float()
    both = true_logs.exp().transpose(0, 1).flatten(1) @ one_hot
    true = one_hot.sum(dim=0)
    said = (logs.exp() * counted[:, None, None]).sum(dim=(0, 3, 4))
    dice = 2 * both / (said + true)
    return (entropy + 1 - dice[:, true > 0].mean(dim=1)).sum()


def file_array(file: IO[bytes], dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """What was written to a temporary file, as an array; its space is free again when the array is gone."""
    file.flush()
    return np.memmap(file, dtype=dtype, mode="r+", shape=shape)


def on_gpu(values: NDArray[np.generic], device: str) -> Tensor:
    """The array as a tensor: on a GPU with twice the room for it, else where it is."""
    there = device.startswith("cuda") and values.nbytes < torch.cuda.mem_get_info(device)[0] / 2
    return torch.from_numpy(values).to(device) if there else torch.from_numpy(values)


@torch.no_grad()
def survey(
    encode: Encode, rows: Ints, masks: Masks, batch: int, drawn: Drawn | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [d] of the tokens whose patches count; of these some are `drawn`."""
    count, total, squares = 0, torch.zeros(1), torch.zeros(1)
    for part in torch.from_numpy(rows).split(batch):
        tokens = encode(part)
        shares = patch_shares(masks.of(part).to(tokens.device), (*tokens.shape[2:],), len(masks.classes))
        shares = shares.permute(0, 2, 3, 1).flatten(0, 2)
        counted = shares.sum(dim=1) > 0
        some = tokens.permute(0, 2, 3, 1).flatten(0, 2)[counted].double()
        count += len(some)
        total, squares = total.to(some) + some.sum(dim=0), squares.to(some) + some.square().sum(dim=0)
        if drawn is not None:
            drawn.add(some.float(), shares[counted])
    mean = total / count
    return mean.float(), (squares / count - mean**2).clamp_min(0).sqrt().float()


@dataclass
class Drawn:
    """A random `share` of training tokens, with the shares of classes in their patches."""

    share: float
    rng: np.random.Generator
    tokens: list[Tensor] = field(default_factory=list)
    shares: list[Tensor] = field(default_factory=list)

    def add(self, tokens: Tensor, shares: Tensor) -> None:
        some = torch.from_numpy(self.rng.random(len(tokens)) < self.share).to(tokens.device)
        self.tokens.append(F.normalize(tokens[some], dim=1).half().cpu())
        self.shares.append(shares[some].cpu())

    def readout(self, device: str) -> Callable[[Tensor], Tensor]:
        """From tokens [b, d, h, w] to the share of every class among their neighbors [b, c, h, w]."""
        dtype = torch.float16 if device.startswith("cuda") else torch.float32
        bank = torch.cat(self.tokens).to(device, dtype)
        classes = torch.cat(self.shares).to(device)

        def readout(tokens: Tensor) -> Tensor:
            b, _, h, w = tokens.shape
            rows = F.normalize(tokens.float().permute(0, 2, 3, 1).flatten(0, 2), dim=1).to(dtype)
            found = []
            for part in rows.split(QUERIES):
                near, places = (part @ bank.T).float().topk(min(NEIGHBORS, len(bank)), dim=1)
                found.append(torch.einsum("nk,nkc->nc", (near / TEMPERATURE).softmax(dim=1), classes[places]))
            return torch.cat(found).view(b, h, w, -1).permute(0, 3, 1, 2)

        return readout
