"""Networks of the transformers library, built from their configuration: CLIP, DINOv3, vision towers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.families.family import (
    Family,
    Tokenizer,
    clip_tokenizer,
    pool_tokens,
    resample_positions,
)

POSITIONS = "vision_model.embeddings.position_embedding.weight"


class TransformersFamily(Family):
    """`arch` is the class name without `Model`, `kwargs` its configuration; no file of the hub is run."""

    def build(self, spec: EncoderSpec, *, depth: int | None = None) -> nn.Module:
        import transformers

        kwargs = dict(spec.kwargs)
        towers = [key for key in kwargs if key.endswith("_config")]
        if depth is not None and towers:
            kwargs |= {key: {**kwargs[key], "num_hidden_layers": depth} for key in towers}
        elif depth is not None:
            kwargs["num_hidden_layers"] = depth
        if "vision_config" in kwargs:
            kwargs["vision_config"] = {**kwargs["vision_config"], "image_size": spec.size}
        try:
            config = getattr(transformers, f"{spec.arch}Config")(**kwargs)
            return getattr(transformers, f"{spec.arch}Model")(config)
        except AttributeError as error:
            raise HistobenchError(
                f"{spec.name} needs a transformers with {spec.arch}Model; run: pip install -U transformers"
            ) from error

    def from_upstream(
        self, spec: EncoderSpec, network: nn.Module, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        state = {name: tensor for name, tensor in state.items() if not name.endswith(".position_ids")}
        expected = network.state_dict()
        if POSITIONS in state and POSITIONS in expected:
            patches = expected[POSITIONS].shape[0] - 1
            state[POSITIONS] = resample_positions(state[POSITIONS][None], patches, "plain")[0]
        # The library moved its blocks under `model.` in newer versions; published files have either name.
        for name in [name for name in state if name not in expected]:
            for other in (f"model.{name}", name.removeprefix("model."), name.removeprefix("vision_model.")):
                if other in expected and other not in state:
                    state[other] = state.pop(name)
                    break
        return state

    def encode_image(self, spec: EncoderSpec, network: Any, images: Tensor) -> Tensor:
        if spec.pooling == "pooled":
            return network(pixel_values=images).pooler_output
        if spec.arch == "Gemma4Vision":
            return _gemma4_mean(network, images)
        if spec.arch == "CLIP":
            return network.visual_projection(network.vision_model(pixel_values=images).pooler_output)
        prefix = 1 + int(getattr(network.config, "num_register_tokens", 0))
        return pool_tokens(network(pixel_values=images).last_hidden_state, spec.pooling, prefix=prefix)

    def encode_text(self, spec: EncoderSpec, network: Any, tokens: Tensor) -> Tensor:
        # Attention is causal, so what follows the end token cannot change its state.
        features = network.text_projection(network.text_model(input_ids=tokens).pooler_output)
        return nn.functional.normalize(features, dim=-1)

    def load_tokenizer(self, spec: EncoderSpec, files: Mapping[str, Path]) -> Tokenizer:
        return clip_tokenizer(spec)


def _gemma4_mean(network: Any, images: Tensor) -> Tensor:
    """The mean [b, d] of the tokens that the tower gives to the language model, from pixels in 0 to 1."""
    patch = network.config.patch_size
    grid = images.unfold(2, patch, patch).unfold(3, patch, patch)  # [b, 3, rows, columns, patch, patch]
    rows, columns = grid.shape[2:4]
    patches = grid.permute(0, 2, 3, 4, 5, 1).reshape(len(images), rows * columns, -1)
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    places = torch.stack([x, y], dim=-1).reshape(1, -1, 2).to(images.device).expand(len(images), -1, -1)
    tokens: Tensor = network(pixel_values=patches, pixel_position_ids=places).last_hidden_state
    return tokens.reshape(len(images), -1, tokens.shape[-1]).mean(dim=1)


FAMILY = TransformersFamily()
