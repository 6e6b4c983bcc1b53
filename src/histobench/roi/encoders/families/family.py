"""What a family driver provides, and which driver serves which family."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
