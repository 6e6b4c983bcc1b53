"""Networks written in this project, one file each under `networks/`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.families.family import Family, Tokenizer
from histobench.roi.encoders.spec import EncoderSpec


class OwnFamily(Family):
    """`arch` names the file; it has `build`, and the network has `encode_image` (and the text methods)."""

    def build(self, spec: EncoderSpec, *, depth: int | None = None) -> nn.Module:
        network: nn.Module = _module(spec).build(depth=depth, **spec.kwargs)
        return network

    def encode_image(self, spec: EncoderSpec, network: Any, images: Tensor) -> Tensor:
        features: Tensor = network.encode_image(images, output=spec.output or "default")
        return features

    def from_upstream(self, spec: EncoderSpec, state: dict[str, Tensor]) -> dict[str, Tensor]:
        rename = getattr(_module(spec), "from_upstream", None)
        return rename(state) if rename else state

    def project_image(self, spec: EncoderSpec, network: Any, features: Tensor) -> Tensor:
        projected: Tensor = network.project_image(features)
        return projected

    def encode_text(self, spec: EncoderSpec, network: Any, tokens: Any) -> Tensor:
        features: Tensor = network.encode_text(tokens)
        return features

    def load_tokenizer(self, spec: EncoderSpec, files: Mapping[str, Path]) -> Tokenizer:
        tokenizer: Tokenizer = _module(spec).load_tokenizer(files)
        return tokenizer


def _module(spec: EncoderSpec) -> ModuleType:
    try:
        return importlib.import_module(f"histobench.roi.encoders.networks.{spec.arch}")
    except ModuleNotFoundError as error:
        if error.name and error.name.endswith(f".networks.{spec.arch}"):
            raise HistobenchError(f"zoo: {spec.name}: there is no network {spec.arch!r}") from error
        raise HistobenchError(
            f"{spec.name} needs the package {error.name}; run: pip install 'histobench[text]'"
        ) from error


FAMILY = OwnFamily()
