"""The network of tiny-vl: a small convolutional image tower, a one-block text tower, one shared space."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

#: Rows of the embedding table; row 0 is padding, row 1 the start mark that every text begins with.
TABLE = 4096
PADDING, START = 0, 1
_RESERVED = 2
MAX_WORDS = 40
MAX_PIECES = 14
_WORD = re.compile(r"[^\W_]+")


def encode_texts(texts: Sequence[str]) -> NDArray[np.int64]:
    """Piece ids [texts, words, pieces], padded with 0; words past the fortieth are left out.

    >>> encode_texts(["Tumour epithelium", ""]).shape[:2]
    (2, 3)
    """
    words = [[word.casefold() for word in _WORD.findall(text)[: MAX_WORDS - 1]] for text in texts]
    longest = 1 + max((len(line) for line in words), default=0)
    ids = np.full((len(texts), longest, MAX_PIECES), PADDING, np.int64)
    ids[:, 0, 0] = START
    for row, line in enumerate(words):
        for column, word in enumerate(line, start=1):
            pieces = pieces_of(word)
            ids[row, column, : len(pieces)] = pieces
    return ids


@lru_cache(maxsize=20_000)
def pieces_of(word: str) -> tuple[int, ...]:
    """The table rows of a word: the word itself, then its beginnings and its runs of four letters."""
    marked = f"<{word[:24]}>"
    parts = [marked, *(marked[start : start + 4] for start in range(max(1, len(marked) - 3)))]
    return tuple(_row(part) for part in dict.fromkeys(parts))[:MAX_PIECES]


def _row(part: str) -> int:
    # crc32 is the same in every process and on every machine; Python's own hash is not.
    return _RESERVED + zlib.crc32(part.encode("utf-8", "surrogatepass")) % (TABLE - _RESERVED)


EMBED_DIM = 256
SHARED_DIM = 128
#: The side in px that the image tower works at.
NATIVE_SIZE = 112


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.norm(self.conv(x)))


class ImageTower(nn.Module):
    """Images of any size to one vector each; other sizes are resampled to the native one first."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for out, blocks in ((16, 0), (32, 0), (64, 1), (128, 1), (EMBED_DIM, 0)):
            layers += [nn.Conv2d(width, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out)]
            layers += [nn.ReLU(), *(_Residual(out) for _ in range(blocks))]
            width = out
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (NATIVE_SIZE, NATIVE_SIZE):
            images = _native(images)
        return self.layers(images).mean(dim=(2, 3))

    def patch_tokens(self, images: Tensor) -> Tensor:
        """The map before the last stride: 7 x 7, whatever the size of the images."""
        return self.layers[:-3](_native(images))


def _native(images: Tensor) -> Tensor:
    return F.interpolate(images, size=(NATIVE_SIZE, NATIVE_SIZE), mode="bilinear", antialias=True)


class TinyTextTower(nn.Module):
    """Piece ids to one vector per text: mean of pieces per word, positions, one attention block, mean."""

    def __init__(self, width: int = 96, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.pieces = nn.Embedding(TABLE, width, padding_idx=PADDING)
        self.position = nn.Parameter(torch.zeros(MAX_WORDS, width))
        self.norm1 = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.norm3 = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != PADDING  # [texts, words, pieces]
        words = self.pieces(ids).sum(dim=2) / real.sum(dim=2, keepdim=True).clamp(min=1)
        present = real.any(dim=2)
        x = words + self.position[: ids.shape[1]]
        x = x + self._attend(self.norm1(x), present)
        x = x + self.narrow(F.gelu(self.wide(self.norm2(x))))
        weight = present.to(x.dtype).unsqueeze(-1)
        return (self.norm3(x) * weight).sum(dim=1) / weight.sum(dim=1)

    def _attend(self, x: Tensor, present: Tensor) -> Tensor:
        count, length, width = x.shape
        query, key, value = (
            self.mix(x).view(count, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=present[:, None, None, :])
        return self.join(mixed.transpose(1, 2).reshape(count, length, width))


class TinyVL(nn.Module):
    """Both towers and their projections into the shared space."""

    def __init__(self) -> None:
        super().__init__()
        self.image = ImageTower()
        self.text = TinyTextTower()
        self.image_projection = nn.Linear(EMBED_DIM, SHARED_DIM, bias=False)
        self.text_projection = nn.Linear(96, SHARED_DIM, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, images: Tensor, *, output: str = "default") -> Tensor:
        """Like CONCH's, the features [b, 256] are those before the projection."""
        return self.image(images)

    def project_image(self, features: Tensor) -> Tensor:
        """Un-projected image features [n, 256] in the shared space, L2-normalised [n, 128]."""
        return F.normalize(self.image_projection(features), dim=-1)

    def encode_text(self, ids: Tensor) -> Tensor:
        """Piece ids in the shared space, L2-normalised [n, 128]."""
        return F.normalize(self.text_projection(self.text(ids)), dim=-1)


def build(*, depth: int | None = None) -> TinyVL:
    return TinyVL()


def load_tokenizer(files: Mapping[str, Path]) -> Callable[[Sequence[str]], Tensor]:
    return lambda texts: torch.from_numpy(encode_texts(texts))
