"""CONCH v1.5: the patch encoder of TITAN (Ding et al. 2025); only its image tower is public.

image 448 px -> ViT-L/16 with layer scale -> tokens -> attentional pooler (1 query) -> LayerNorm -> 768
The positions are stored for 224 px (14 x 14) and enlarged for every other size, 448 px included.
"""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from histobench.roi.encoders.families.family import resample_positions
from histobench.roi.encoders.patch_tokens import as_grid

STORED_GRID = 14


class UnbiasedPooler(nn.Module):
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
        query = self.to_q(self.ln_q(self.query)).expand(len(tokens), -1, -1)
        key, value = self.to_kv(self.ln_k(tokens)).chunk(2, dim=-1)
        query, key, value = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (query, key, value))
        return self.to_out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class ConchV15(nn.Module):
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
        self.attn_pool_contrast = UnbiasedPooler(768, 1024)
        self.ln_contrast = nn.LayerNorm(768)

    def forward(self, images: Tensor, *, output: str = "default") -> Tensor:
        """Images of any size that 16 divides to [b, 768], not normalised."""
        return self.ln_contrast(self.attn_pool_contrast(self._tokens(images))[:, 0])

    def patch_tokens(self, images: Tensor) -> Tensor:
        return as_grid(self._tokens(images), images, prefix=1, patch=16)

    def _tokens(self, images: Tensor) -> Tensor:
        # timm would enlarge the positions in its own way, so its embedding step is spelled out here.
        patches = self.trunk.patch_embed.proj(images)
        patches = patches.flatten(2).mT
        x = torch.cat([self.trunk.cls_token.expand(len(images), -1, -1), patches], dim=1)
        x = x + resample_positions(self.trunk.pos_embed, patches.shape[1], "dino")
        return self.trunk.norm(self.trunk.blocks(x))


def build(*, depth: int | None = None) -> ConchV15:
    return ConchV15(depth=depth or 24)
