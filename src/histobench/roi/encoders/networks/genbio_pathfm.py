"""GenBio-PathFM: a DINOv3-style ViT-g/16 that reads one colour channel at a time (Kapse et al. 2026).

each of R, G, B 224 px -> ViT-g/16 (CLS, 4 storage tokens, rotary positions, SwiGLU) -> CLS -> 1536
the three side by side -> 4608
"""

from __future__ import annotations

import math

import torch
from timm.models.vision_transformer import LayerScale
from torch import Tensor, nn
from torch.nn import functional as F

from histobench.roi.encoders.patch_tokens import as_grid

WIDTH, HEADS, HIDDEN, PATCH, STORAGE, EPS = 1536, 24, 4096, 16, 4, 1e-6
ROTARY_BASE = 100.0

Rotation = tuple[Tensor, Tensor]


class RotaryPositions(nn.Module):
    """Angles of the patch grid. All of it happens in bfloat16, as it did in training."""

    periods: Tensor

    def __init__(self) -> None:
        super().__init__()
        quarter = WIDTH // HEADS // 4
        exponents = torch.arange(quarter, dtype=torch.bfloat16) * 2 / (2 * quarter)
        self.register_buffer("periods", ROTARY_BASE**exponents)

    def forward(self, rows: int, columns: int) -> Rotation:
        """Sine and cosine [rows * columns, head width] of patch centres that run from -1 to 1."""
        # The cast undoes a `.float()` or `.half()` of the whole network: the values fit bfloat16 exactly.
        periods = self.periods.to(torch.bfloat16)
        y = torch.arange(0.5, rows, dtype=periods.dtype, device=periods.device) / rows
        x = torch.arange(0.5, columns, dtype=periods.dtype, device=periods.device) / columns
        centres = 2.0 * torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).flatten(0, 1) - 1.0
        angles = 2 * math.pi * centres[:, :, None] / periods
        angles = angles.flatten(1).tile(2)
        return angles.sin(), angles.cos()


def rotated(heads: Tensor, rotation: Rotation) -> Tensor:
    """Turn the patch tokens of [b, h, n, d] by their position; CLS and storage tokens have none."""
    sine, cosine = rotation
    prefix, patches = heads.split([heads.shape[-2] - len(sine), len(sine)], dim=-2)
    patches = patches.to(sine.dtype)
    first, second = patches.chunk(2, dim=-1)
    turned = patches * cosine + torch.cat([-second, first], dim=-1) * sine
    # The untouched tokens pass through bfloat16 with the others.
    return torch.cat([prefix.to(sine.dtype), turned], dim=-2).to(heads.dtype)


class RotaryAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(rotated(query, rotation), rotated(key, rotation), value)
        return self.proj(heads.transpose(1, 2).flatten(2))


class SwiGlu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(WIDTH, HIDDEN)
        self.w2 = nn.Linear(WIDTH, HIDDEN)
        self.w3 = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.w3(F.silu(self.w1(x)) * self.w2(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, eps=EPS)
        self.attn = RotaryAttention()
        self.ls1 = LayerScale(WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH, eps=EPS)
        self.mlp = SwiGlu()
        self.ls2 = LayerScale(WIDTH)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x), rotation))
        return x + self.ls2(self.mlp(self.norm2(x)))


class PatchEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(1, WIDTH, kernel_size=PATCH, stride=PATCH)

    def forward(self, channels: Tensor) -> Tensor:
        return self.proj(channels).permute(0, 2, 3, 1)


class GenBioPathFM(nn.Module):
    def __init__(self, *, depth: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.storage_tokens = nn.Parameter(torch.randn(1, STORAGE, WIDTH) * 0.02)
        self.patch_embed = PatchEmbedding()
        self.rope_embed = RotaryPositions()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH, eps=EPS)

    def forward(self, images: Tensor, *, output: str = "default") -> Tensor:
        """The CLS outputs of R, G and B side by side: [b, 4608]."""
        return self.tokens(images.flatten(0, 1).unsqueeze(1))[:, 0].unflatten(0, (-1, 3)).flatten(1)

    def patch_tokens(self, images: Tensor) -> Tensor:
        tokens = self.tokens(images.flatten(0, 1).unsqueeze(1))
        return as_grid(tokens, images, prefix=1 + STORAGE, patch=PATCH).unflatten(0, (-1, 3)).flatten(1, 2)

    def tokens(self, channels: Tensor) -> Tensor:
        """[n, 1, h, w] to [n, 1 + 4 + patches, 1536]: CLS, storage tokens, patches."""
        grid = self.patch_embed(channels)
        prefix = torch.cat([self.cls_token, self.storage_tokens], dim=1).expand(len(grid), -1, -1)
        x = torch.cat([prefix, grid.flatten(1, 2)], dim=1)
        rotation = self.rope_embed(*grid.shape[1:3])
        for block in self.blocks:
            x = block(x, rotation)
        return self.norm(x)


def build(*, depth: int | None = None) -> GenBioPathFM:
    return GenBioPathFM(depth=depth or 40)
