"""Networks written in this project, one file each under `networks/`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.families.family import Family, Tokenizer


class OwnFamily(Family):
    """`arch` names the file; it has `build` (and `load_tokenizer`, whose network has the text methods)."""

    def module(self, spec: EncoderSpec) -> Any:
        return importlib.import_module(f"histobench.roi.encoders.networks.{spec.arch}")

    def build(self, spec: EncoderSpec, *, depth: int | None = None) -> nn.Module:
        build = self.module(spec).build
        return build(depth=depth, **_size_for(build, spec), **spec.kwargs)

    def encode_image(self, spec: EncoderSpec, network: Any, images: Tensor) -> Tensor:
        return network(images, output=spec.output or "default")

    def from_upstream(
        self, spec: EncoderSpec, network: nn.Module, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        rename = getattr(self.module(spec), "from_upstream", None)
        return rename(state, **_size_for(rename, spec)) if rename else state

    def project_image(self, spec: EncoderSpec, network: Any, features: Tensor) -> Tensor:
        return network.project_image(features)

    def encode_text(self, spec: EncoderSpec, network: Any, tokens: Any) -> Tensor:
        return network.encode_text(tokens)

    def load_tokenizer(self, spec: EncoderSpec, files: Mapping[str, Path]) -> Tokenizer:
        return self.module(spec).load_tokenizer(files)


def _size_for(function: Callable[..., Any], spec: EncoderSpec) -> dict[str, int]:
    """The image size, for the networks that are built for one (their position tables have its shape)."""
    return {"image_size": spec.size} if "image_size" in inspect.signature(function).parameters else {}


FAMILY = OwnFamily()
