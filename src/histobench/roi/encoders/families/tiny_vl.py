"""The project's own small image-text encoder, whose weights come with the package."""

from __future__ import annotations

from torch import Tensor, nn

from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.families.family import Family
from histobench.roi.encoders.tiny_vl import WEIGHTS
from histobench.roi.encoders.tiny_vl.tiny_vl_encoder import load_tiny_vl


class TinyVlFamily(Family):
    """The network is already an encoder; the entry only gives it its transform."""

    def build(self, spec: EncoderSpec, *, depth: int | None = None) -> nn.Module:
        return load_tiny_vl(WEIGHTS, spec.transform)

    def encode_image(self, spec: EncoderSpec, network: nn.Module, images: Tensor) -> Tensor:
        return network(images)


FAMILY = TinyVlFamily()
