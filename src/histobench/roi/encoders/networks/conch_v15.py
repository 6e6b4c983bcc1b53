"""CONCH v1.5: the patch encoder of TITAN (Ding et al. 2025); only its image tower is public.

    image 448 px -> ViT-L/16 with layer scale -> tokens -> attentional pooler (1 query) -> LayerNorm -> 768

The positions are stored for 224 px (14 x 14) and enlarged for every other size, 448 px included.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from histobench.roi.encoders.patch_tokens import as_grid

STORED_GRID = 14


class AttentionalPooler(nn.Module):
    """Learned queries that read the tokens; no biases, keys and values from one matrix."""

    def __init__(self, dim: int, context_dim: int, *, queries: int = 1, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.randn(queries, dim))
        self.ln_k = nn.LayerNorm(context_dim)
        self.ln_q = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(context_dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[b, n, context_dim] to [b, queries, dim]."""
        query = self.to_q(self.ln_q(self.query)).expand(len(tokens), -1, -1)
        key, value = self.to_kv(self.ln_k(tokens)).chunk(2, dim=-1)
        query, key, value = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (query, key, value))
        pooled = F.scaled_dot_product_attention(query, key, value)
        return self.to_out(pooled.transpose(1, 2).flatten(2))


def enlarged_positions(stored: Tensor, *, rows: int, columns: int) -> Tensor:
    """Position embeddings [1, 1 + side², d] for another grid, as DINO does it.

    The scale factor is taken 0.1 patch larger than the grid asks for. It only guards a rounding in the
    original, but it also moves every sample point, so it is part of what the weights mean.
    """
    side = round((stored.shape[1] - 1) ** 0.5)
    if (rows, columns) == (side, side):
        return stored
    cls, patches = stored[:, :1], stored[:, 1:]
    grid = patches.unflatten(1, (side, side)).permute(0, 3, 1, 2).float()
    scale = ((rows + 0.1) / side, (columns + 0.1) / side)
    grid = F.interpolate(grid, scale_factor=scale, mode="bicubic")
    return torch.cat([cls, grid.flatten(2).transpose(1, 2).to(stored.dtype)], dim=1)


class ConchV15(nn.Module):
    """The image tower."""

    def __init__(self, *, depth: int) -> None:
        super().__init__()
        self.trunk = VisionTransformer(
            img_size=16 * STORED_GRID,
            patch_size=16,
            embed_dim=1024,
            depth=depth,
            num_heads=16,
            init_values=1.0,
            num_classes=0,
        )
        self.attn_pool_contrast = AttentionalPooler(768, 1024)
        self.ln_contrast = nn.LayerNorm(768)

    def forward(self, images: Tensor) -> Tensor:
        return self.encode_image(images)

    def encode_image(self, images: Tensor, *, output: str = "default") -> Tensor:
        """Images of any size that 16 divides to [b, 768], not normalised."""
        return self.ln_contrast(self.attn_pool_contrast(self._tokens(images))[:, 0])

    def patch_tokens(self, images: Tensor) -> Tensor:
        """The tokens of the trunk as a map."""
        return as_grid(self._tokens(images), images, prefix=1, patch=16)

    def _tokens(self, images: Tensor) -> Tensor:
        # timm would enlarge the positions in its own way, so its embedding step is spelled out here.
        patches = self.trunk.patch_embed.proj(images)
        rows, columns = patches.shape[-2:]
        x = torch.cat([self.trunk.cls_token.expand(len(images), -1, -1), patches.flatten(2).mT], dim=1)
        x = x + enlarged_positions(self.trunk.pos_embed, rows=rows, columns=columns)
        return self.trunk.norm(self.trunk.blocks(x))


def build(*, depth: int | None = None) -> ConchV15:
    """CONCH v1.5 with random weights."""
    return ConchV15(depth=depth or 24)


def from_upstream(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that `build` has; positions stored for another grid are brought to 14 x 14 first."""
    tensors = dict(state)
    name = "trunk.pos_embed"
    if name in tensors and tensors[name].shape[1] != STORED_GRID**2 + 1:
        tensors[name] = resample_abs_pos_embed(
            tensors[name], new_size=[STORED_GRID, STORED_GRID], interpolation="bilinear", antialias=False
        )
    return tensors
