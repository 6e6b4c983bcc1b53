"""The encoder that the registry hands out: features as stored, and zero-shot from stored features."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.base import BasePatchEncoder, PromptEncoder, Prompts
from histobench.roi.encoders.file_hash import sha256_of
from histobench.roi.encoders.transform import TransformSpec

# The network: a small convolutional image tower, a one-block text tower, one shared space.

# From any text to numbers: words, and pieces of words hashed into a fixed table.

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
    """The table rows of a word: the word itself, then its beginnings and its runs of four letters.

    Words that share a stem share rows, so `tumour` and `tumours` are close without having been seen.
    """
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
            layers += [
                nn.Conv2d(width, out, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(),
            ]
            layers += [_Residual(out) for _ in range(blocks)]
            width = out
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (NATIVE_SIZE, NATIVE_SIZE):
            size = (NATIVE_SIZE, NATIVE_SIZE)
            images = F.interpolate(images, size=size, mode="bilinear", antialias=True)
        return self.layers(images).mean(dim=(2, 3))

    def patch_tokens(self, images: Tensor) -> Tensor:
        """The map before the last stride: 7 x 7, whatever the size of the images."""
        images = F.interpolate(images, size=(NATIVE_SIZE, NATIVE_SIZE), mode="bilinear", antialias=True)
        return self.layers[:-3](images)


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
        mask = present[:, None, None, :]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
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

    def project_image(self, features: Tensor) -> Tensor:
        """Un-projected image features [n, 256] in the shared space, L2-normalised [n, 128]."""
        return F.normalize(self.image_projection(features), dim=-1)

    def encode_text(self, ids: Tensor) -> Tensor:
        """Piece ids in the shared space, L2-normalised [n, 128]."""
        return F.normalize(self.text_projection(self.text(ids)), dim=-1)


class TinyVLEncoder(BasePatchEncoder):
    """Like CONCH, `forward` gives the embedding before the projection; zero-shot projects and normalises."""

    name = "tiny-vl"
    embed_dim = EMBED_DIM
    precision = torch.float32

    def __init__(self, transform: TransformSpec, network: TinyVL | None = None) -> None:
        super().__init__()
        self.eval_transforms = transform
        self.network = network or TinyVL()
        self._prompts = PromptEncoder(self._encode)

    @property
    def logit_scale(self) -> Tensor:
        """The factor between cosine similarity and logit."""
        return self.network.logit_scale.detach().exp()

    def forward(self, images: Tensor) -> Tensor:
        """Un-projected features [b, 256] of preprocessed images [b, 3, h, w] of any size."""
        return self.network.image(images)

    @torch.inference_mode()
    def project_image(self, features: Tensor) -> Tensor:
        """Stored features [n, 256] in the space shared with text, L2-normalised [n, 128]."""
        if features.ndim != 2 or features.shape[1] != self.embed_dim:
            raise HistobenchError(
                f"tiny-vl features have {self.embed_dim} columns, these have shape {tuple(features.shape)}; "
                "extract the features with tiny-vl"
            )
        weight = self.network.image_projection.weight
        return self.network.project_image(features.to(device=weight.device, dtype=weight.dtype))

    @torch.inference_mode()
    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Any texts in the space shared with images, L2-normalised [k, 128]."""
        ids = torch.from_numpy(encode_texts(texts)).to(self.network.logit_scale.device)
        return self.network.encode_text(ids)

    def encode_prompts(self, prompts: Prompts, device: str) -> Tensor:
        """One L2-normalised text vector per class; a class may have one prompt or an ensemble of them."""
        self.to(device)
        return self._prompts(prompts, device)

    @torch.inference_mode()
    def run_zero_shot(self, texts: Prompts, image_features: Tensor, device: str) -> Tensor:
        """Class probabilities [n, classes] of stored, un-projected features against the prompts."""
        text = self.encode_prompts(texts, device)
        images = self.project_image(image_features.to(device))
        return (self.logit_scale * images @ text.T).softmax(dim=-1)

    def _encode(self, texts: Sequence[str], device: str) -> Tensor:
        del device  # the network is there already
        return self.encode_text(texts)


def load_tiny_vl(weights: Path, transform: TransformSpec) -> TinyVLEncoder:
    """The encoder with the weights of a safetensors file (stored in half precision, run in single)."""
    from safetensors.torch import load_file

    encoder = TinyVLEncoder(transform)
    if not encoder.network.logit_scale.is_meta:  # on the meta device only the shapes are wanted
        if not weights.is_file():
            raise HistobenchError(f"{weights} is missing; install histobench again")
        encoder.network.load_state_dict({k: v.float() for k, v in load_file(weights).items()})
        encoder.identity = {"weights": f"sha256:{sha256_of(weights)}"}
    return encoder.eval()
