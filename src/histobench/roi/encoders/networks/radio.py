"""C-RADIOv2: a plain ViT/16 distilled from several teachers, with one class token per teacher (NVIDIA 2025).

image -> patches (a linear map without bias) + positions -> [4 class tokens, 4 registers, patches] -> blocks,
no final norm -> the first three class tokens side by side (the "summary"; the fourth teacher has none)
"""

from __future__ import annotations

from functools import partial

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from histobench.roi.encoders.patch_tokens import as_grid

PATCH = 16
#: Side of the stored grid of positions: images of up to 2,048 pixels.
GRID = 128
CLASS_TOKENS, REGISTERS, SUMMARY = 4, 4, 3
#: What the file holds besides the network: constants of the preprocessing and of the output.
CONSTANTS = ("input_conditioner.norm_mean", "input_conditioner.norm_std", "summary_idxs")


class PatchGenerator(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedder = nn.Linear(3 * PATCH**2, width, bias=False)
        self.pos_embed = nn.Parameter(torch.randn(1, GRID**2, width) * width**-0.5)
        self.cls_token = nn.ParameterDict(
            {"token": nn.Parameter(torch.randn(CLASS_TOKENS + REGISTERS, width) * width**-0.5)}
        )

    def forward(self, images: Tensor) -> Tensor:
        # The linear map of a flat patch (channels first) is a convolution by the same numbers.
        patches = F.conv2d(images, self.embedder.weight.reshape(-1, 3, PATCH, PATCH), stride=PATCH)
        tokens = (patches + self.positions(patches.shape[-1]).to(patches.dtype)).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token["token"].expand(len(tokens), -1, -1), tokens], dim=1)

    def positions(self, side: int) -> Tensor:
        """The grid [1, width, side, side], resampled corner to corner as in the code of this release."""
        grid = self.pos_embed.reshape(1, GRID, GRID, -1).permute(0, 3, 1, 2).float()
        return F.interpolate(grid, size=(side, side), mode="bilinear", align_corners=True)


class Radio(nn.Module):
    def __init__(self, *, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.patch_generator = PatchGenerator(width)
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.blocks = nn.Sequential(
            *(Block(width, heads, mlp_ratio=4, qkv_bias=True, norm_layer=norm) for _ in range(blocks))
        )

    def forward(self, images: Tensor, *, output: str = "default") -> Tensor:
        """The summary [b, 3 * width] of normalised images [b, 3, side, side]."""
        return self.blocks(self.patch_generator(images))[:, :SUMMARY].flatten(1)

    def patch_tokens(self, images: Tensor) -> Tensor:
        tokens = self.blocks(self.patch_generator(images))
        return as_grid(tokens, images, prefix=CLASS_TOKENS + REGISTERS, patch=PATCH)


def build(*, width: int = 768, heads: int = 12, blocks: int = 12, depth: int | None = None) -> Radio:
    return Radio(width=width, heads=heads, blocks=depth or blocks)


def from_upstream(state: dict[str, Tensor]) -> dict[str, Tensor]:
    bare = {name.removeprefix("radio_model."): tensor for name, tensor in state.items()}
    return {name.removeprefix("model."): tensor for name, tensor in bare.items() if name not in CONSTANTS}
