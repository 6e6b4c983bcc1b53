"""What a family of encoders must offer; position embeddings and CLIP tokens, which several share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.layouts import LAYOUTS
from histobench.roi.encoders.spec import EncoderSpec

Tokens = Tensor | dict[str, Tensor]
Tokenizer = Callable[[Sequence[str]], Tokens]


class Family:
    """Builds the networks of one family from an `EncoderSpec` and runs them."""

    def build(self, spec: EncoderSpec, *, depth: int | None = None) -> nn.Module:
        """The network with its initial weights; `depth` shortens it for tests."""
        raise NotImplementedError

    def encode_image(self, spec: EncoderSpec, network: nn.Module, images: Tensor) -> Tensor:
        """The documented features [b, dim] of a batch."""
        raise NotImplementedError

    def from_upstream(
        self, spec: EncoderSpec, network: nn.Module, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The published tensors under the network's names."""
        return LAYOUTS[spec.source.layout](state) if spec.source.layout else state

    def project_image(self, spec: EncoderSpec, network: nn.Module, features: Tensor) -> Tensor:
        """Stored features in the space shared with text, L2-normalised."""
        return nn.functional.normalize(features, dim=-1)

    def encode_text(self, spec: EncoderSpec, network: nn.Module, tokens: Any) -> Tensor:
        """Texts in the space shared with images, L2-normalised."""
        raise NotImplementedError

    def load_tokenizer(self, spec: EncoderSpec, files: Mapping[str, Path]) -> Tokenizer:
        """From texts to the network's tokens."""
        raise NotImplementedError

    def logit_scale(self, network: nn.Module) -> Tensor:
        """The factor between cosine similarity and logit."""
        scale: Tensor = network.logit_scale  # type: ignore[assignment]
        return scale.detach().float().exp()


def family_of(spec: EncoderSpec) -> Family:
    """The driver of the encoder's family; only its own libraries are imported."""
    module = importlib.import_module(f"histobench.roi.encoders.families.{spec.family}")
    family: Family = module.FAMILY
    return family


def pool_tokens(tokens: Tensor, pooling: str, *, prefix: int) -> Tensor:
    """One vector per image from tokens [b, prefix + patches, d]; the class token is the first of the prefix.

    Register tokens belong to the prefix and never enter the mean over the patches.
    """
    if pooling == "cls":
        return tokens[:, 0]
    patches = tokens[:, prefix:].mean(dim=1)
    if pooling == "mean":
        return patches
    if pooling == "cls+mean":
        return torch.cat([tokens[:, 0], patches], dim=-1)
    raise ValueError(f"pooling {pooling!r} does not apply to tokens")


# Position tables: the learned grid of one image size, resampled to another as the authors' code does.

DINO_OFFSET = 0.1


def method_of_origin(names: Iterable[str]) -> str:
    """How the code that wrote a file resamples positions, told by the names of its tensors."""
    names = list(names)
    if any("embeddings." in name for name in names):
        return "plain"
    return "dino" if any(name.endswith("mask_token") for name in names) else "timm"


def resample_positions(table: Tensor, patches: int, method: str) -> Tensor:
    """A table [1, prefix + g*g, d] as [1, prefix + patches, d]; the prefix (class token) is kept as it is."""
    prefix = table.shape[1] - int((table.shape[1]) ** 0.5) ** 2
    old, new = int((table.shape[1] - prefix) ** 0.5), int(patches**0.5)
    if old == new:
        return table
    grid = table[:, prefix:].float().reshape(1, old, old, -1).permute(0, 3, 1, 2)
    if method == "dino":
        factor = (new + DINO_OFFSET) / old
        grid = interpolate(grid, scale_factor=(factor, factor), mode="bicubic")
    else:
        antialias = method == "timm"
        grid = interpolate(grid, size=(new, new), mode="bicubic", align_corners=False, antialias=antialias)
    flat = grid.permute(0, 2, 3, 1).reshape(1, new * new, -1).to(table.dtype)
    return torch.cat([table[:, :prefix], flat], dim=1)


# The tokenizers of CLIP-like text towers.


def clip_tokenizer(spec: EncoderSpec) -> Callable[[Sequence[str]], Tensor]:
    """OpenAI's byte-pair tokenizer, whose vocabulary comes with open_clip: token ids [n, context]."""
    try:
        from open_clip.tokenizer import SimpleTokenizer
    except ModuleNotFoundError as error:
        raise HistobenchError(
            f"zero-shot with {spec.name} needs open_clip_torch; run: pip install 'histobench[text]'"
        ) from error
    context = spec.text.context if spec.text else 77
    tokenizer = SimpleTokenizer(context_length=context)

    def tokenize(texts: Sequence[str]) -> Tensor:
        ids: Tensor = tokenizer(list(texts))
        return ids

    return tokenize


def wordpiece_tokenizer(file: Path, context: int) -> Callable[[Sequence[str]], Tensor]:
    """A BERT tokenizer from its `tokenizer.json` or `vocab.txt`: token ids [n, context], padded with 0."""
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    if file.suffix == ".txt":
        tokenizer = BertWordPieceTokenizer(str(file), lowercase=True)
    else:
        tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(context)
    tokenizer.enable_padding(length=context, pad_id=0)

    def tokenize(texts: Sequence[str]) -> Tensor:
        # open_clip joins runs of white space before it tokenizes.
        encoded = tokenizer.encode_batch([" ".join(text.split()) for text in texts])
        return torch.tensor([entry.ids for entry in encoded])

    return tokenize
