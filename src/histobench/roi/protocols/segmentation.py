"""Segmentation by patch tokens of a frozen network: a linear readout, and one without training.

Everything works on square tiles of the encoder's input size: tokens [b, d, h, w] in, the class of every pixel
out. What does not count (padding, the class "ignore") is `IGNORED` in the true classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from histobench.roi.data.masks import IGNORED

#: The learning rates of the heads that are trained together.
RATES = (1e-2, 1e-3, 1e-4)
EPOCHS, BATCH, WEIGHT_DECAY = 20, 32, 1e-4
#: Of the readout without training: neighbors, temperature, tokens that are kept and asked for at a time.
NEIGHBORS, TEMPERATURE, BANK, QUERIES = 30, 0.02, 100_000, 2048

#: Tokens and true classes of tiles, batch by batch; the argument shuffles them.
Batches = Callable[[np.random.Generator], Iterator[tuple[Tensor, Tensor]]]


# Geometry: an image of any size as tiles without overlap.


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
    """The tiles of `cut` as the image [h, w] that they come from."""
    size = tiles.shape[1]
    columns = math.ceil(width / size)
    whole = tiles.reshape(-1, columns, size, size).swapaxes(1, 2).reshape(-1, columns * size)
    return whole[:height, :width]


def upsampled(values: Tensor, size: int) -> Tensor:
    """Maps [b, c, h, w] over a tile at the size of its mask."""
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


# Tokens of the training tiles, kept in a temporary file or computed again.


@dataclass
class TokenStore:
    """Tokens in half precision and true classes of tiles, in files that grow up to `most` bytes."""

    folder: Path
    most: float
    count: int = 0
    shape: tuple[int, ...] = ()
    size: int = 0
    is_whole: bool = True

    def add(self, tokens: Tensor, truth: Tensor) -> None:
        """Append tiles; where they become too many, nothing is kept."""
        self.count, self.shape, self.size = self.count + len(tokens), tuple(tokens.shape[1:]), truth.shape[-1]
        if self.is_whole and self.count * 2 * math.prod(self.shape) > self.most:
            self.is_whole = False
            for name in ("tokens", "truth"):
                (self.folder / name).unlink(missing_ok=True)
        if self.is_whole:
            for name, values in (("tokens", tokens.half()), ("truth", truth.to(torch.uint8))):
                with (self.folder / name).open("ab") as file:
                    values.cpu().contiguous().numpy().tofile(file)

    def batches(self, device: str) -> Batches:
        """The stored tiles in random order; a GPU with twice the room for them gets all at once."""
        tokens = self._open("tokens", np.float16, self.shape)
        truth = self._open("truth", np.uint8, (self.size, self.size))
        size = tokens.nbytes + truth.nbytes
        if device.startswith("cuda") and size < torch.cuda.mem_get_info(device)[0] / 2:
            tokens, truth = tokens.to(device), truth.to(device)

        def batches(rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
            order = torch.from_numpy(rng.permutation(self.count)).to(tokens.device)
            for rows in order.split(BATCH):
                yield tokens[rows].to(device).float(), truth[rows].to(device)

        return batches

    def _open(self, name: str, dtype: type, shape: tuple[int, ...]) -> Tensor:
        mapped = np.memmap(self.folder / name, dtype=dtype, mode="r+", shape=(self.count, *shape))
        return torch.from_numpy(mapped)


# The linear readout: batch norm and a 1x1 convolution, three learning rates together.


class LinearHeads(nn.Module):
    """One linear map of normalized tokens per learning rate."""

    def __init__(self, dim: int, n_classes: int, seed: int) -> None:
        super().__init__()
        # The maps after it have their own scale and shift.
        self.norm = nn.BatchNorm2d(dim, affine=False, momentum=None)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.maps = nn.ModuleList(nn.Conv2d(dim, n_classes, 1) for _ in RATES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [b, rates, classes, h, w] of tokens [b, d, h, w]."""
        normed = self.norm(tokens.float())
        return torch.stack([each(normed) for each in self.maps], dim=1)


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


def train_heads(
    batches: Batches, n_tiles: int, dim: int, n_classes: int, *, seed: int, device: str, least_steps: int
) -> LinearHeads:
    """Heads for all learning rates, trained on the same batches; the rates fall to zero along a cosine."""
    heads = LinearHeads(dim, n_classes, seed).to(device)
    groups = [{"params": each.parameters(), "lr": rate} for each, rate in zip(heads.maps, RATES, strict=True)]
    optimizer = torch.optim.AdamW(groups, weight_decay=WEIGHT_DECAY)
    per_epoch = math.ceil(n_tiles / BATCH)
    epochs = max(EPOCHS, math.ceil(least_steps / per_epoch))
    steps = epochs * per_epoch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rng = np.random.default_rng([seed, n_tiles])
    heads.train()
    for _ in range(epochs):
        for tokens, truth in batches(rng):
            if not bool((truth != IGNORED).any()):
                continue
            logits = heads(tokens)
            size = truth.shape[-1]
            large = upsampled(logits.flatten(1, 2), size).unflatten(1, logits.shape[1:3])
            loss = head_loss(large, truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return heads.eval().requires_grad_(False)


# The readout without training: the classes of the nearest training tokens.


@dataclass
class TokenBank:
    """Training tokens with the classes of their patches; of many a random part, thinned as they come."""

    rng: np.random.Generator
    most: int = BANK
    share: float = 1.0
    tokens: list[Tensor] = field(default_factory=list)
    shares: list[Tensor] = field(default_factory=list)

    def add(self, tokens: Tensor, truth: Tensor, n_classes: int) -> None:
        """Keep a part of the tokens [b, d, h, w] of tiles."""
        grid = (tokens.shape[2], tokens.shape[3])
        rows = tokens.permute(0, 2, 3, 1).flatten(0, 2)
        classes = patch_shares(truth, grid, n_classes).permute(0, 2, 3, 1).flatten(0, 2)
        labeled = classes.sum(dim=1).cpu().numpy() > 0
        self._append(rows, classes, labeled & (self.rng.random(len(rows)) < self.share))
        if sum(map(len, self.tokens)) > 2 * self.most:
            self._thin(0.5)

    def _append(self, rows: Tensor, classes: Tensor, kept: NDArray[np.bool_]) -> None:
        some = torch.from_numpy(kept).to(rows.device)
        self.tokens.append(F.normalize(rows[some].float(), dim=1).half().cpu())
        self.shares.append(classes[some].cpu())

    def _thin(self, share: float) -> None:
        rows, classes = torch.cat(self.tokens), torch.cat(self.shares)
        self.share *= share
        self.tokens, self.shares = [], []
        self._append(rows, classes, self.rng.random(len(rows)) < share)

    def readout(self, device: str) -> Callable[[Tensor], Tensor]:
        """From tokens [b, d, h, w] to the share of every class among their neighbors [b, c, h, w]."""
        if sum(map(len, self.tokens)) > self.most:
            self._thin(self.most / sum(map(len, self.tokens)))
        dtype = torch.float16 if device.startswith("cuda") else torch.float32
        bank = torch.cat(self.tokens).to(device, dtype)
        classes = torch.cat(self.shares).to(device)

        def readout(tokens: Tensor) -> Tensor:
            b, _, h, w = tokens.shape
            rows = F.normalize(tokens.float().permute(0, 2, 3, 1).flatten(0, 2), dim=1).to(dtype)
            found = []
            for part in rows.split(QUERIES):
                near, places = (part @ bank.T).float().topk(min(NEIGHBORS, len(bank)), dim=1)
                weights = (near / TEMPERATURE).softmax(dim=1)
                found.append(torch.einsum("nk,nkc->nc", weights, classes[places]))
            return torch.cat(found).view(b, h, w, -1).permute(0, 3, 1, 2)

        return readout
