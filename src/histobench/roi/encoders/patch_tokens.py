"""The patch tokens of a network's last layer as a map: what it knows about each place of an image."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from histobench.core.errors import HistobenchError

#: Where networks of several towers have the one for images.
_TOWERS = ("visual", "vision_model", "trunk", "image")


def network_tokens(network: Any, images: Tensor) -> Tensor:
    """Tokens [b, d, h, w] before pooling and projection, of a network of timm, transformers or open_clip."""
    if hasattr(network, "patch_tokens"):
        return network.patch_tokens(images)
    if hasattr(network, "forward_features"):
        return _timm(network, images)
    if hasattr(network, "class_embedding") and hasattr(network, "conv1"):
        return _open_clip(network, images)
    for name in _TOWERS:
        if isinstance(tower := getattr(network, name, None), nn.Module):
            return network_tokens(tower, images)
    if hasattr(network, "config"):
        return _transformers(network, images)
    raise HistobenchError(f"{type(network).__name__} has no patch tokens; define `patch_tokens(images)`")


def as_grid(tokens: Tensor, images: Tensor, *, prefix: int, patch: int | None = None) -> Tensor:
    """Tokens [b, prefix + h * w, d] of square images as [b, d, h, w]."""
    count, size = tokens.shape[1] - prefix, images.shape[-1]
    side = size // patch if patch else math.isqrt(max(count, 0))
    if side * side != count or not side or size % side:
        raise HistobenchError(
            f"{tokens.shape[1]} tokens for {size} x {size} pixels are not {prefix} prefix tokens and a "
            f"{'square grid' if patch is None else f'grid of {side} x {side} patches'}"
        )
    return tokens[:, prefix:].transpose(1, 2).unflatten(2, (side, side))


def _timm(network: Any, images: Tensor) -> Tensor:
    tokens: Tensor = network.forward_features(images)
    if tokens.ndim == 4:  # networks with stages; some have their channels last
        return tokens.permute(0, 3, 1, 2) if getattr(network, "output_fmt", "") == "NHWC" else tokens
    patch = getattr(getattr(network, "patch_embed", None), "patch_size", None)
    prefix = int(getattr(network, "num_prefix_tokens", 0))
    return as_grid(tokens, images, prefix=prefix, patch=patch[0] if isinstance(patch, tuple) else patch)


def _open_clip(tower: Any, images: Tensor) -> Tensor:
    found: list[Tensor] = []
    with tower.transformer.register_forward_hook(lambda module, inputs, output: found.append(output)):
        tower(images)
    tokens = found[0]
    if tower.attn_pool is None:  # else the norm is that of the pooled vector
        tokens = tower.ln_post(tokens)
    return as_grid(tokens, images, prefix=1, patch=tower.conv1.stride[0])


def _transformers(network: Any, images: Tensor) -> Tensor:
    tokens: Tensor = network(pixel_values=images).last_hidden_state
    if tokens.ndim == 4:
        return tokens
    patch = getattr(network.config, "patch_size", None)
    staged = hasattr(network.config, "depths")  # patches are merged from stage to stage
    known = None if staged or not isinstance(patch, int) else patch
    return as_grid(tokens, images, prefix=prefix_of(network), patch=known)


def prefix_of(tower: Any) -> int:
    """How many tokens of a transformers network come before its patches."""
    names = {name.rpartition(".")[2] for name, _ in tower.named_parameters()}
    single = bool(names & {"cls_token", "class_embedding"}) + ("distillation_token" in names)
    return int(single) + int(getattr(tower.config, "num_register_tokens", 0) or 0)
