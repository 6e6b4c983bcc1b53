"""KEEP: a ViT-L/16 and a PubMedBERT aligned with disease knowledge (Zhou et al. 2026).

image 224 px -> ViT-L/16 with layer scale -> CLS -> 1024 -> linear, GELU, linear -> L2-normalised -> 768
text         -> BERT -> pooled [CLS] -> L2-normalised -> 768
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from histobench.roi.encoders.families.family import bert_tokenizer

TEXT_LENGTH = 256

#: The published file names the layer scales `weight`; timm and the authors' first release say `gamma`.
LAYER_SCALE = re.compile(r"(visual\.blocks\.\d+\.ls[12])\.weight")
#: The numbers 0..511, which older transformers stored.
COMPUTED = "text.embeddings.position_ids"


class Keep(nn.Module):
    def __init__(self, *, vision_depth: int, text_depth: int) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        self.visual = VisionTransformer(
            img_size=224,
            patch_size=16,
            embed_dim=1024,
            depth=vision_depth,
            num_heads=16,
            init_values=1e-5,
            num_classes=0,
            dynamic_img_size=True,
        )
        self.visual_head = nn.Sequential(nn.Linear(1024, 768), nn.GELU(), nn.Linear(768, 768))
        # BERT's defaults are PubMedBERT's sizes: vocabulary 30522, width 768, 12 heads, 512 positions.
        self.text = BertModel(BertConfig(num_hidden_layers=text_depth))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.04)))

    def forward(self, images: Tensor, *, output: str = "default") -> Tensor:
        return F.normalize(self.visual_head(self.visual(images)), dim=-1)

    def project_image(self, features: Tensor) -> Tensor:
        """Stored features are in the joint space already."""
        return F.normalize(features.to(self.logit_scale.dtype), dim=-1)

    def encode_text(self, tokens: Mapping[str, Tensor]) -> Tensor:
        return F.normalize(self.text(**tokens).pooler_output, dim=-1)


def build(*, depth: int | None = None) -> Keep:
    return Keep(vision_depth=depth or 24, text_depth=depth or 12)


def from_upstream(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {LAYER_SCALE.sub(r"\1.gamma", name): tensor for name, tensor in state.items() if name != COMPUTED}


def load_tokenizer(files: Mapping[str, Path]) -> Callable[[Sequence[str]], dict[str, Tensor]]:
    """Texts to BERT's three inputs, each [n, 256], from `tokenizer.json` or `vocab.txt`."""
    tokenizer = bert_tokenizer(files.get("tokenizer.json") or files["vocab.txt"], TEXT_LENGTH)

    def tokenize(texts: Sequence[str]) -> dict[str, Tensor]:
        encodings = tokenizer.encode_batch(list(texts))
        return {
            "input_ids": torch.tensor([encoding.ids for encoding in encodings]),
            "token_type_ids": torch.tensor([encoding.type_ids for encoding in encodings]),
            "attention_mask": torch.tensor([encoding.attention_mask for encoding in encodings]),
        }

    return tokenize
