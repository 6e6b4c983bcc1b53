"""Renamings from the tensor names of a published file to those of the network that reads it."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count

from torch import Tensor

State = dict[str, Tensor]


def efficientnet_pytorch(state: State) -> State:
    """The `efficientnet_pytorch` package's names to timm's.

    That package numbers all blocks through; a block without expansion has no `_expand_conv` and `_bn0`,
    and timm counts its two norms from 1 and calls its last convolution `conv_pw`.
    """
    stem = {
        "_conv_stem": "conv_stem",
        "_bn0": "bn1",
        "_conv_head": "conv_head",
        "_bn1": "bn2",
        "_fc": "classifier",
    }
    expanded = {name.split(".")[1] for name in state if "._expand_conv." in name}
    stage_of = _stages(state)
    with_expansion = {
        "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
        "_project_conv": "conv_pwl", "_bn2": "bn3",
    }  # fmt: skip
    without = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    renamed: State = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[0] == "_blocks" and len(parts) == 4:
            table = with_expansion if parts[1] in expanded else without
            new = f"blocks.{stage_of[parts[1]]}.{table.get(parts[2], parts[2])}.{parts[3]}"
        else:
            new = ".".join([stem.get(parts[0], parts[0]), *parts[1:]])
        renamed[new] = tensor
    return renamed


def _stages(state: State) -> dict[str, str]:
    """Block number to timm's `stage.block`.

    A block continues a stage when it keeps the number of channels and its expanded width does not change
    (a new stage changes one of them).
    """
    blocks = sorted({int(name.split(".")[1]) for name in state if name.startswith("_blocks.")})
    places: dict[str, str] = {}
    stage, position = -1, count()
    previous: tuple[int, ...] | None = None
    for block in blocks:
        out = state[f"_blocks.{block}._project_conv.weight"].shape[0]
        into = state.get(f"_blocks.{block}._expand_conv.weight")
        if into is None or previous is None or into.shape[1] != out or (out,) != previous:
            stage, position = stage + 1, count()
        previous = (out,)
        places[str(block)] = f"{stage}.{next(position)}"
    return places


def dinov2(state: State) -> State:
    """Names of the `dinov2` training code to timm's.

    Training files cut the blocks into chunks (`blocks.1.13.` is block 13), keep a mask token that only the
    training needs, and with registers give the class token a position of its own, which timm adds to it.
    """
    renamed: State = {}
    for name, tensor in state.items():
        name = re.sub(r"blocks\.\d+\.(\d+)\.", r"blocks.\1.", name)
        name = name.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2.")
        if name.rsplit(".", 1)[-1] == "mask_token":
            continue
        renamed[name.replace("register_tokens", "reg_token")] = tensor
    prefix = next((name.removesuffix("reg_token") for name in renamed if name.endswith("reg_token")), None)
    if prefix is not None and f"{prefix}pos_embed" in renamed:
        position = renamed[f"{prefix}pos_embed"]
        if _has_class_position(position):
            renamed[f"{prefix}cls_token"] = renamed[f"{prefix}cls_token"] + position[:, :1]
            renamed[f"{prefix}pos_embed"] = position[:, 1:]
    return renamed


def _has_class_position(position: Tensor) -> bool:
    patches = position.shape[1]
    return int(patches**0.5) ** 2 != patches and round((patches - 1) ** 0.5) ** 2 == patches - 1


LAYOUTS: dict[str, Callable[[State], State]] = {
    "dinov2": dinov2,
    "efficientnet_pytorch": efficientnet_pytorch,
}
