"""Networks that timm builds: vision transformers, ResNet, EfficientNet."""

from __future__ import annotations

from functools import partial
from typing import Any

import timm
from timm.layers import SwiGLUPacked
from torch import Tensor, nn

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.families.family import Family, method_of_origin, pool_tokens, resample_positions

#: Layers that an entry may name; YAML holds no Python.
LAYERS: dict[str, Any] = {
    "SwiGLUPacked": SwiGLUPacked,
    "SiLU": nn.SiLU,
    "GELU": nn.GELU,
    "LayerNorm-1e-12": partial(nn.LayerNorm, eps=1e-12),
}
RESNET_STAGES = {"layer3": 3, "layer4": 4}


class TimmFamily(Family):
    """`arch` is timm's model name, `kwargs` go to `timm.create_model`."""

    def build(self, spec: EncoderSpec, *, depth: int | None = None) -> nn.Module:
        kwargs = {
            key: LAYERS.get(value, value) if isinstance(value, str) else value
            for key, value in spec.kwargs.items()
        }
        if spec.source.positions:
            # The position table is resampled once, when the weights are loaded, not by timm at every call.
            kwargs |= {"img_size": spec.size, "dynamic_img_size": False}
        if depth is not None and spec.arch.startswith("vit_"):
            kwargs["depth"] = depth
        elif depth is not None and spec.arch.startswith("resnet"):
            kwargs["layers"] = [depth] * 4
        try:
            return timm.create_model(spec.arch, pretrained=False, **{"num_classes": 0, **kwargs})
        except (RuntimeError, TypeError, ValueError) as error:
            raise HistobenchError(f"{spec.name}: timm cannot build {spec.arch!r}: {error}") from error

    def from_upstream(self, spec: EncoderSpec, network: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
        method = spec.source.positions
        if method == "origin":
            method = method_of_origin(state)
        state = super().from_upstream(spec, network, state)
        if method:
            patches = network.patch_embed.num_patches
            for name in [name for name in state if name.endswith("pos_embed")]:
                state[name] = resample_positions(state[name], patches, method)
        return state

    def encode_image(self, spec: EncoderSpec, network: Any, images: Tensor) -> Tensor:
        if spec.pooling == "pooled":
            return network(images)
        if spec.pooling in RESNET_STAGES:
            (stage,) = network.forward_intermediates(
                images, indices=[RESNET_STAGES[spec.pooling]], stop_early=True, intermediates_only=True
            )
            return stage.mean(dim=(2, 3))
        prefix = getattr(network, "num_prefix_tokens", 0)
        return pool_tokens(network.forward_features(images), spec.pooling, prefix=prefix)


FAMILY = TimmFamily()
