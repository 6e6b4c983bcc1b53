"""An encoder of the zoo: a spec, its family's driver and a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.base import BasePatchEncoder, PromptEncoder, Prompts
from histobench.roi.encoders.families.family import Tokenizer, family_of
from histobench.roi.encoders.spec import EncoderSpec

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class ZooEncoder(BasePatchEncoder):
    """Runs the network of an `EncoderSpec` and gives the documented features."""

    def __init__(self, spec: EncoderSpec, network: nn.Module) -> None:
        super().__init__()
        self.spec = spec
        self.name = spec.full_name
        self.embed_dim = spec.dim
        self.precision = PRECISIONS[spec.precision]
        self.eval_transforms = spec.transform
        self.network = network
        self._family = family_of(spec)

    def forward(self, images: Tensor) -> Tensor:
        """Features [b, embed_dim] of preprocessed images [b, 3, h, w]."""
        features = self._family.encode_image(self.spec, self.network, images)
        return nn.functional.normalize(features, dim=-1) if self.spec.normalised else features


class ImageTextEncoder(ZooEncoder):
    """An encoder whose images can be compared with texts."""

    def __init__(
        self, spec: EncoderSpec, network: nn.Module, find_files: Callable[[], Mapping[str, Path]]
    ) -> None:
        super().__init__(spec, network)
        self._find_files = find_files
        self._tokenizer: Tokenizer | None = None
        self._prompts = PromptEncoder(self._encode_texts)

    @property
    def supports_zero_shot(self) -> bool:
        """Whether this output lies in, or can be projected into, the space shared with text."""
        return self.spec.supports_zero_shot

    def project_image(self, features: Tensor) -> Tensor:
        """Stored features in the space shared with text, L2-normalised."""
        return self._family.project_image(self.spec, self.network, features)

    def encode_prompts(self, prompts: Prompts, device: str) -> Tensor:
        """One L2-normalised text vector per class; a class may have one prompt or an ensemble of them."""
        if not self.spec.supports_zero_shot:
            raise HistobenchError(
                f"the output {self.name} cannot be compared with text; use {self.spec.name}"
            )
        return self._prompts(prompts, device)

    @torch.inference_mode()
    def run_zero_shot(self, texts: Prompts, image_features: Tensor, device: str) -> Tensor:
        """Class probabilities [n, classes] of stored features [n, d] against the prompts of each class."""
        self.to(device)
        text = self.encode_prompts(texts, device)
        dtype = next(self.network.parameters()).dtype
        images = self.project_image(image_features.to(device=device, dtype=dtype)).float()
        scale = self._family.logit_scale(self.network).to(device)
        return (scale * images @ text.T).softmax(dim=-1)

    def _encode_texts(self, texts: Sequence[str], device: str) -> Tensor:
        if self._tokenizer is None:
            self._tokenizer = self._family.load_tokenizer(self.spec, self._find_files())
        tokens = self._tokenizer(texts)
        if isinstance(tokens, Tensor):
            moved: Tensor | dict[str, Tensor] = tokens.to(device)
        else:
            moved = {key: value.to(device) for key, value in tokens.items()}
        return self._family.encode_text(self.spec, self.network, moved).float()
