"""MUSK: one BEiT-3 encoder whose every layer has an image and a text way (Xiang et al. 2025).

image 384 px -> 16 px patches + CLS -> 24 layers through way A -> CLS -> 1024 (stored)
text         -> pieces, <s> first   -> 24 layers through way B -> <s> -> 1024
vision_head / language_head, L2-normalised -> joint space
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from histobench.roi.encoders.families.family import resample_positions
from histobench.roi.encoders.patch_tokens import as_grid

WIDTH, HEADS, PATCH, EPS = 1024, 16, 16, 1e-5
VOCABULARY, TEXT_POSITIONS = 64010, 1024
TEXT_LENGTH = 100
START, PAD, END, UNKNOWN = 0, 1, 2, 3
IMAGE, TEXT = "A", "B"


class Multiway(nn.Module):
    """The same module twice: way A for image tokens, way B for text tokens."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.A = make()
        self.B = make()

    def forward(self, x: Tensor, way: str) -> Tensor:
        return (self.A if way == IMAGE else self.B)(x)


def _norms() -> Multiway:
    return Multiway(lambda: nn.LayerNorm(WIDTH, eps=EPS))


class SubNormedAttention(nn.Module):
    """Multi-head self-attention with a LayerNorm between the heads and the output matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            Multiway(lambda: nn.Linear(WIDTH, WIDTH)) for _ in range(4)
        )
        self.inner_attn_ln = _norms()

    def forward(self, x: Tensor, way: str, visible: Tensor | None) -> Tensor:
        query, key, value = (
            projection(x, way).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        heads = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        return self.out_proj(self.inner_attn_ln(heads.transpose(1, 2).flatten(2), way), way)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)
        self.ffn_layernorm = nn.LayerNorm(4 * WIDTH, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.ffn_layernorm(F.gelu(self.fc1(x))))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = SubNormedAttention()
        self.self_attn_layer_norm = _norms()
        self.ffn = Multiway(FeedForward)
        self.final_layer_norm = _norms()

    def forward(self, x: Tensor, way: str, visible: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x, way), way, visible)
        return x + self.ffn(self.final_layer_norm(x, way), way)


class Positions(nn.Module):
    """Learned positions. Both tables keep fairseq's habit of leaving their first two rows unused."""

    def __init__(self, image_positions: int) -> None:
        super().__init__()
        self.A = nn.Embedding(image_positions + 2, WIDTH)
        self.B = nn.Embedding(TEXT_POSITIONS, WIDTH)

    def table(self, way: str) -> Tensor:
        return (self.A if way == IMAGE else self.B).weight[2:]


class MultiwayEncoder(nn.Module):
    def __init__(self, *, depth: int, image_positions: int) -> None:
        super().__init__()
        self.embed_positions = Positions(image_positions)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.layer_norm = _norms()

    def forward(self, x: Tensor, way: str, visible: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, way, visible)
        return self.layer_norm(x, way)


class ImageEmbedding(nn.Module):
    """Patches behind a CLS token. The mask token was used in pre-training alone; checkpoints carry it."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, kernel_size=PATCH, stride=PATCH)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.proj(images).flatten(2).mT
        return torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1)


class Beit3(nn.Module):
    def __init__(self, *, depth: int, image_size: int) -> None:
        super().__init__()
        self.text_embed = nn.Embedding(VOCABULARY, WIDTH)
        self.vision_embed = ImageEmbedding()
        self.encoder = MultiwayEncoder(depth=depth, image_positions=(image_size // PATCH) ** 2 + 1)

    def image_tokens(self, images: Tensor) -> Tensor:
        x = self.vision_embed(images)
        table = self.encoder.embed_positions.table(IMAGE)
        return self.encoder(x + resample_positions(table[None], x.shape[1] - 1, "plain"), IMAGE)

    def text_tokens(self, tokens: Tensor) -> Tensor:
        real = tokens != PAD
        x = self.text_embed(tokens) + self.encoder.embed_positions.table(TEXT)[: tokens.shape[1]]
        return self.encoder(x * real.unsqueeze(-1), TEXT, real[:, None, None, :])


class Musk(nn.Module):
    def __init__(self, *, depth: int, image_size: int) -> None:
        super().__init__()
        self.beit3 = Beit3(depth=depth, image_size=image_size)
        self.language_head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.vision_head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images: Tensor, *, output: str = "default") -> Tensor:
        """The CLS output [b, 1024]; with output "ms" the two-scale feature [b, 2048]. Not normalised."""
        whole = self._cls(images)
        if output == "default":
            return whole
        quarters = torch.stack([self._cls(quarter) for quarter in enlarged_quarters(images)])
        return torch.cat([whole, quarters.mean(dim=0)], dim=-1)

    def patch_tokens(self, images: Tensor) -> Tensor:
        return as_grid(self.beit3.image_tokens(images), images, prefix=1, patch=PATCH)

    def project_image(self, features: Tensor) -> Tensor:
        """Stored features [n, 1024 or 2048] in the joint space, L2-normalised; only scale 1 is aligned."""
        return F.normalize(self.vision_head(features[:, :WIDTH].to(self.vision_head.weight)), dim=-1)

    def encode_text(self, tokens: Tensor) -> Tensor:
        return F.normalize(self.language_head(self.beit3.text_tokens(tokens)[:, 0]), dim=-1)

    def _cls(self, images: Tensor) -> Tensor:
        return self.beit3.image_tokens(images)[:, 0]


def enlarged_quarters(images: Tensor) -> list[Tensor]:
    """The image at twice its size, cut into four of its own size, row by row."""
    height, width = images.shape[-2:]
    large = F.interpolate(images.float(), size=(2 * height, 2 * width), mode="bicubic").to(images.dtype)
    return [part for row in large.chunk(2, dim=-2) for part in row.chunk(2, dim=-1)]


def build(*, depth: int | None = None, image_size: int = 384) -> Musk:
    return Musk(depth=depth or 24, image_size=image_size)


def from_upstream(state: Mapping[str, Tensor], *, image_size: int = 384) -> dict[str, Tensor]:
    """The tensors that `build` has; image positions stored for another size are resized."""
    tensors = dict(state)
    name, patches = "beit3.encoder.embed_positions.A.weight", (image_size // PATCH) ** 2
    if name in tensors:
        unused, table = tensors[name].split([2, len(tensors[name]) - 2])
        tensors[name] = torch.cat([unused, resample_positions(table[None], patches, "plain")[0]])
    return tensors


def load_tokenizer(files: Mapping[str, Path]) -> Callable[[Sequence[str]], Tensor]:
    """Texts to token ids [n, 100]: XLM-R's <s> pieces </s>, padded with 1, long texts cut."""
    from sentencepiece import SentencePieceProcessor

    (path,) = (path for name, path in files.items() if name.endswith((".spm", ".model")))
    pieces = SentencePieceProcessor(model_file=str(path))

    def ids(text: str) -> list[int]:
        # XLM-R puts its four special tokens first, which moves every sentencepiece id by one; 0 is "unknown".
        body = [piece + 1 if piece else UNKNOWN for piece in pieces.encode(text)][: TEXT_LENGTH - 2]
        return [START, *body, END] + [PAD] * (TEXT_LENGTH - 2 - len(body))

    return lambda texts: torch.tensor([ids(text) for text in texts])
