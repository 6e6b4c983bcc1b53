"""Batch normalisation fused into the convolutions before it: the same function with less to move."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

#: The largest difference, relative to the largest feature, that rounding may make.
TOLERANCE = 1e-4


def fused(encoder: nn.Module, images: Tensor) -> nn.Module | None:
    """A copy of a frozen network without its batch normalisations, or None when that changes the features.

    Which convolution feeds which normalisation is seen in a run over `images`; whether the copy computes
    the same is checked on the same images.
    """
    with torch.no_grad():
        pairs = _pairs(encoder, images)
        if not pairs:
            return None
        twin = copy.deepcopy(encoder)
        for convolution, norm in pairs:
            _fold(twin, convolution, norm)
        expected, got = encoder(images), twin(images)
    difference = (got - expected).abs().max()
    return twin if bool(difference <= TOLERANCE * expected.abs().max()) else None


def _pairs(network: nn.Module, images: Tensor) -> list[tuple[str, str]]:
    """Names of (convolution, normalisation) where the one's output is the other's input, each used once."""
    outputs: dict[int, tuple[str, Tensor]] = {}
    found: list[tuple[str, str]] = []
    calls: dict[str, int] = {}
    hooks = []

    def after_convolution(name: str) -> Any:
        def note(module: nn.Module, inputs: Any, output: Tensor) -> None:
            calls[name] = calls.get(name, 0) + 1
            outputs[id(output)] = (name, output)  # kept, so that no other tensor gets its identity

        return note

    def before_norm(name: str) -> Any:
        def note(module: nn.Module, inputs: Any) -> None:
            calls[name] = calls.get(name, 0) + 1
            source = outputs.get(id(inputs[0]))
            if source is not None:
                found.append((source[0], name))

        return note

    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            hooks.append(module.register_forward_hook(after_convolution(name)))
        elif _is_norm(module):
            hooks.append(module.register_forward_pre_hook(before_norm(name)))
    try:
        network(images)
    finally:
        for hook in hooks:
            hook.remove()
    sources = [source for source, _ in found]
    return [
        (source, norm)
        for source, norm in found
        if calls[source] == calls[norm] == 1 and sources.count(source) == 1
    ]


def _is_norm(module: nn.Module) -> bool:
    """Plain batch normalisation, or timm's, which brings its activation along."""
    plain = type(module) is nn.BatchNorm2d
    with_activation = type(module).__name__ == "BatchNormAct2d" and isinstance(module, nn.BatchNorm2d)
    return (plain or with_activation) and getattr(module, "running_mean", None) is not None


def _fold(network: nn.Module, convolution: str, norm: str) -> None:
    conv: Any = network.get_submodule(convolution)
    bn: Any = network.get_submodule(norm)
    scale = (bn.running_var.double() + bn.eps).rsqrt()
    if bn.weight is not None:
        scale = scale * bn.weight.double()
    shift = -bn.running_mean.double() * scale
    if bn.bias is not None:
        shift = shift + bn.bias.double()
    if conv.bias is not None:
        shift = shift + conv.bias.double() * scale
    weight = conv.weight.double() * scale.view(-1, 1, 1, 1)
    conv.weight = nn.Parameter(weight.to(conv.weight.dtype), requires_grad=False)
    conv.bias = nn.Parameter(shift.to(conv.weight.dtype), requires_grad=False)
    parent, _, last = norm.rpartition(".")
    rest = nn.Sequential(bn.drop, bn.act) if hasattr(bn, "act") else nn.Identity()
    setattr(network.get_submodule(parent), last, rest)
