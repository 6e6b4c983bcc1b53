"""The project's own small image-text encoder, whose weights come with the package."""

from types import ModuleType

from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.families.own import OwnFamily
from histobench.roi.encoders.tiny_vl import tiny_vl_encoder


class TinyVlFamily(OwnFamily):
    def module(self, spec: EncoderSpec) -> ModuleType:
        return tiny_vl_encoder


FAMILY = TinyVlFamily()
