"""Networks of the open_clip library: CLIP, CLIP with a BERT text tower, and the image tower of CoCa."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.families.family import Family, Tokenizer, clip_tokenizer, wordpiece_tokenizer


class OpenClipFamily(Family):
    """`arch` is CLIP, BertCLIP or VisionTransformer, `kwargs` what open_clip calls the configuration."""

    def build(self, spec: EncoderSpec, *, depth: int | None = None) -> nn.Module:
        from open_clip.model import CLIP
        from open_clip.transformer import VisionTransformer

        if spec.arch == "BertCLIP":
            return BertClip(depth=depth, **spec.kwargs)
        if spec.arch == "VisionTransformer":
            return VisionTransformer(**{**spec.kwargs, "layers": depth or spec.kwargs["layers"]})
        towers = {
            key: {**spec.kwargs[key], "layers": depth or spec.kwargs[key]["layers"]}
            for key in ("vision_cfg", "text_cfg")
        }
        return CLIP(**{**spec.kwargs, **towers})

    def from_upstream(
        self, spec: EncoderSpec, network: nn.Module, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        # Old versions stored two constant tables with the weights.
        return {name: t for name, t in state.items() if not name.endswith((".position_ids", "attn_mask"))}

    def encode_image(self, spec: EncoderSpec, network: Any, images: Tensor) -> Tensor:
        return network(images) if spec.arch == "VisionTransformer" else network.encode_image(images)

    def encode_text(self, spec: EncoderSpec, network: Any, tokens: Tensor) -> Tensor:
        return nn.functional.normalize(network.encode_text(tokens), dim=-1)

    def load_tokenizer(self, spec: EncoderSpec, files: Mapping[str, Path]) -> Tokenizer:
        if spec.arch == "BertCLIP" and spec.text is not None:
            (file,) = files.values()
            return wordpiece_tokenizer(file, spec.text.context)
        return clip_tokenizer(spec)


class BertClip(nn.Module):
    """A timm image tower and a BERT text tower under open_clip's names."""

    def __init__(
        self, *, embed_dim: int, vision: str, bert: Mapping[str, Any], depth: int | None = None
    ) -> None:
        super().__init__()
        import timm
        from transformers import BertConfig, BertModel

        trunk = timm.create_model(vision, num_classes=0, **({} if depth is None else {"depth": depth}))
        head = nn.ModuleDict({"proj": nn.Linear(trunk.num_features, embed_dim, bias=False)})
        self.visual = nn.ModuleDict({"trunk": trunk, "head": head})
        config = BertConfig(**{**bert, "num_hidden_layers": depth or bert["num_hidden_layers"]})
        width = config.hidden_size
        middle = (width + embed_dim) // 2
        bert_tower = BertModel(config, add_pooling_layer=False)
        up, down = nn.Linear(width, middle, bias=False), nn.Linear(middle, embed_dim, bias=False)
        self.text = nn.ModuleDict({"transformer": bert_tower, "proj": nn.Sequential(up, nn.GELU(), down)})
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def encode_image(self, images: Tensor) -> Tensor:
        """Projected image features [b, embed_dim], not normalised."""
        return self.visual["head"]["proj"](self.visual["trunk"](images))  # type: ignore[index]

    def encode_text(self, tokens: Tensor) -> Tensor:
        """Projected state of the first token [n, embed_dim], not normalised; 0 is padding."""
        states = self.text["transformer"](input_ids=tokens, attention_mask=(tokens != 0).long())
        return self.text["proj"](states.last_hidden_state[:, 0])


FAMILY = OpenClipFamily()
