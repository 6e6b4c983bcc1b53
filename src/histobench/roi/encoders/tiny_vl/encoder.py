"""The encoder that the registry hands out: features as stored, and zero-shot from stored features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.file_hash import sha256_of
from histobench.roi.encoders.tiny_vl.network import EMBED_DIM, TinyVL, encode_texts
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.encoders.zoo_encoder import PromptEncoder, Prompts


class TinyVLEncoder(BasePatchEncoder):
    """Like CONCH, `forward` gives the embedding before the projection; zero-shot projects and normalises."""

    name = "tiny-vl"
    embed_dim = EMBED_DIM
    precision = torch.float32

    def __init__(self, transform: TransformSpec, network: TinyVL | None = None) -> None:
        super().__init__()
        self.eval_transforms = transform
        self.network = network or TinyVL()
        self._prompts = PromptEncoder(self._encode)

    @property
    def logit_scale(self) -> Tensor:
        """The factor between cosine similarity and logit."""
        return self.network.logit_scale.detach().exp()

    def forward(self, images: Tensor) -> Tensor:
        """Un-projected features [b, 256] of preprocessed images [b, 3, h, w] of any size."""
        features: Tensor = self.network.image(images)
        return features

    @torch.inference_mode()
    def project_image(self, features: Tensor) -> Tensor:
        """Stored features [n, 256] in the space shared with text, L2-normalised [n, 128]."""
        if features.ndim != 2 or features.shape[1] != self.embed_dim:
            raise HistobenchError(
                f"tiny-vl features have {self.embed_dim} columns, these have shape {tuple(features.shape)}; "
                "extract the features with tiny-vl"
            )
        weight = self.network.image_projection.weight
        return self.network.project_image(features.to(device=weight.device, dtype=weight.dtype))

    @torch.inference_mode()
    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Any texts in the space shared with images, L2-normalised [k, 128]."""
        ids = torch.from_numpy(encode_texts(texts)).to(self.network.logit_scale.device)
        return self.network.encode_text(ids)

    def encode_prompts(self, prompts: Prompts, device: str) -> Tensor:
        """One L2-normalised text vector per class; a class may have one prompt or an ensemble of them."""
        self.to(device)
        return self._prompts(prompts, device)

    @torch.inference_mode()
    def run_zero_shot(self, texts: Prompts, image_features: Tensor, device: str) -> Tensor:
        """Class probabilities [n, classes] of stored, un-projected features against the prompts."""
        text = self.encode_prompts(texts, device)
        images = self.project_image(image_features.to(device))
        return (self.logit_scale * images @ text.T).softmax(dim=-1)

    def _encode(self, texts: Sequence[str], device: str) -> Tensor:
        del device  # the network is there already
        return self.encode_text(texts)


def load_tiny_vl(weights: Path, transform: TransformSpec) -> TinyVLEncoder:
    """The encoder with the weights of a safetensors file (stored in half precision, run in single)."""
    from safetensors.torch import load_file

    encoder = TinyVLEncoder(transform)
    if not encoder.network.logit_scale.is_meta:  # on the meta device only the shapes are wanted
        if not weights.is_file():
            raise HistobenchError(f"{weights} is missing; install histobench again")
        encoder.network.load_state_dict({k: v.float() for k, v in load_file(weights).items()})
        encoder.identity = {"weights": f"sha256:{sha256_of(weights)}"}
    return encoder.eval()
