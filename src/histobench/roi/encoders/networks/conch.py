"""CONCH v1: image and text towers trained with contrastive and captioning losses (Lu et al. 2024).

image 448 px -> ViT-B/16 -> tokens -> contrast pooler (1 query)    -> LayerNorm -> 512 (stored)
                                   -> caption pooler (256 queries) -> LayerNorm -> 256 x 768
stored @ proj_contrast, L2-normalised -> 512 joint space
text -> 12 causal blocks, a CLS token at the end -> LayerNorm -> projection -> 512 joint space
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT_LENGTH = 128
PAD, START, END = 0, 1, 2
VOCABULARY = 32007

#: The captioning decoder, which no feature needs; its published weights were withheld.
CAPTION_DECODER = "text_decoder."


class AttentionalPooler(nn.Module):
    """Learned queries that read the image tokens through one multi-head attention."""

    def __init__(self, dim: int, context_dim: int, *, queries: int, heads: int = 8) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(queries, dim))
        self.attn = nn.MultiheadAttention(dim, heads, kdim=context_dim, vdim=context_dim, batch_first=True)
        self.ln_q = nn.LayerNorm(dim)
        self.ln_k = nn.LayerNorm(context_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        context = self.ln_k(tokens)
        query = self.ln_q(self.query).expand(len(tokens), -1, -1)
        return self.attn(query, context, context, need_weights=False)[0]


class VisionTower(nn.Module):
    """ViT-B/16 whose tokens are pooled twice: one vector for contrast, 256 tokens for captions."""

    def __init__(self, *, image_size: int, depth: int) -> None:
        super().__init__()
        self.trunk = VisionTransformer(
            img_size=image_size,
            patch_size=16,
            embed_dim=768,
            depth=depth,
            num_heads=12,
            num_classes=0,
            dynamic_img_size=True,
        )
        self.attn_pool_contrast = AttentionalPooler(512, 768, queries=1)
        self.ln_contrast = nn.LayerNorm(512)
        self.proj_contrast = nn.Parameter(torch.randn(512, 512) * 768**-0.5)
        self.attn_pool_caption = AttentionalPooler(768, 768, queries=256)
        self.ln_caption = nn.LayerNorm(768)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.trunk.forward_features(images)
        return self.ln_contrast(self.attn_pool_contrast(tokens)[:, 0])


class TextBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width)
        layers = OrderedDict(
            c_fc=nn.Linear(width, 4 * width), gelu=nn.GELU(), c_proj=nn.Linear(4 * width, width)
        )
        self.mlp = nn.Sequential(layers)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class TextTower(nn.Module):
    """Causal transformer with a learned CLS token after the text; the CLS output is the text feature."""

    def __init__(self, *, depth: int, width: int = 768, heads: int = 12, out_dim: int = 512) -> None:
        super().__init__()
        self.heads = heads
        self.text_projection = nn.Parameter(torch.randn(width, out_dim) * width**-0.5)
        self.cls_emb = nn.Parameter(torch.randn(width) * 0.01)
        self.token_embedding = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        self.positional_embedding = nn.Parameter(torch.randn(CONTEXT_LENGTH, width) * 0.01)
        self.transformer = nn.ModuleDict(
            {"resblocks": nn.ModuleList(TextBlock(width, heads) for _ in range(depth))}
        )
        self.ln_final = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [n, at most 127], padded with 0, to [n, out_dim]."""
        x = torch.cat([self.token_embedding(tokens), self.cls_emb.expand(len(tokens), 1, -1)], dim=1)
        x = x + self.positional_embedding[: x.shape[1]]
        mask = blocked_attention(tokens).repeat_interleave(self.heads, dim=0)
        for block in self.transformer["resblocks"].children():
            x = block(x, mask)
        return self.ln_final(x[:, -1]) @ self.text_projection


def blocked_attention(tokens: Tensor) -> Tensor:
    """Which key each query may not see: [n, length + 1, length + 1], True = blocked, the CLS token last.

    Text is causal. CLS skips padding one place to the right: the network was trained like this."""
    length = tokens.shape[1] + 1
    future = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
    blocked = future.repeat(len(tokens), 1, 1)
    blocked[:, -1, 1:] = tokens == PAD
    return blocked


class Conch(nn.Module):
    def __init__(self, *, image_size: int, vision_depth: int, text_depth: int) -> None:
        super().__init__()
        self.text = TextTower(depth=text_depth)
        self.visual = VisionTower(image_size=image_size, depth=vision_depth)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images: Tensor, *, output: str = "default") -> Tensor:
        """The 512 values before the contrastive projection, not normalised."""
        return self.visual(images)

    def project_image(self, features: Tensor) -> Tensor:
        projection = self.visual.proj_contrast
        return F.normalize(features.to(projection) @ projection, dim=-1)

    def encode_text(self, tokens: Tensor) -> Tensor:
        """Texts in the joint space, L2-normalised; the last of the 128 token places belongs to CLS."""
        return F.normalize(self.text(tokens[:, : CONTEXT_LENGTH - 1]), dim=-1)


def build(*, depth: int | None = None, image_size: int = 448) -> Conch:
    return Conch(image_size=image_size, vision_depth=depth or 12, text_depth=depth or 12)


def from_upstream(state: Mapping[str, Tensor], *, image_size: int = 448) -> dict[str, Tensor]:
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(CAPTION_DECODER)}
    name, side = "visual.trunk.pos_embed", image_size // 16
    if name in kept and kept[name].shape[1] != side * side + 1:
        kept[name] = resample_abs_pos_embed(
            kept[name], new_size=[side, side], interpolation="bilinear", antialias=False
        )
    return kept


def load_tokenizer(files: Mapping[str, Path]) -> Callable[[Sequence[str]], Tensor]:
    """Texts to token ids [n, 128]: start, at most 125 pieces, end, then padding, at least one."""
    from tokenizers import Tokenizer

    (path,) = (path for name, path in files.items() if name.endswith(".json"))
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(CONTEXT_LENGTH - 1)
    tokenizer.enable_padding(length=CONTEXT_LENGTH - 1, pad_id=PAD, pad_token="<pad>")

    def tokenize(texts: Sequence[str]) -> Tensor:
        ids = torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(list(texts))])
        return F.pad(ids, (0, 1), value=PAD)

    return tokenize
