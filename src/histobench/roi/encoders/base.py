"""The base class of every patch encoder, and how prompts become class vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.patch_tokens import network_tokens
from histobench.roi.encoders.transform import TransformSpec

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class BasePatchEncoder(nn.Module):
    """A frozen image encoder: images in, one feature vector per image out.

    A subclass sets, in its `__init__` after `super().__init__()`:

    * `eval_transforms`: a `TransformSpec`, or any callable from a PIL image to a float tensor [3, h, w];
    * `precision`: the dtype that its authors recommend for inference;
    * `embed_dim`: the length of the feature vector;

    and implements `forward(images [b, 3, h, w]) -> [b, embed_dim]`. An image-text model also implements
    `run_zero_shot`; see `supports_zero_shot`. For segmentation a class implements `patch_tokens`, unless its
    attribute `network` is one of timm, transformers or open_clip.
    """

    name: str = ""
    embed_dim: int
    precision: torch.dtype = torch.float32
    eval_transforms: Callable[[Any], Tensor] | TransformSpec
    #: The user's file and class this encoder comes from; empty for an encoder of the zoo.
    origin: str = ""
    #: For fine-tuning your own class: how the names of its attention projections end, a regular expression.
    lora_targets: str = ""
    #: Plain JSON values that change when the features would: weights sha256, architecture, pooling.
    identity: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.identity = {}

    def forward(self, images: Tensor) -> Tensor:
        """Features of a batch of preprocessed images."""
        raise NotImplementedError(f"{type(self).__name__} must implement forward(images)")

    def patch_tokens(self, images: Tensor) -> Tensor:
        """Tokens [b, d, h, w] of square preprocessed images, for tasks that ask where something is."""
        if isinstance(getattr(self, "network", None), nn.Module):
            return network_tokens(self.network, images)
        raise HistobenchError(f"{self.name or type(self).__name__} does not define patch_tokens(images)")

    def run_zero_shot(self, texts: Sequence[str], image_features: Tensor, device: str) -> Tensor:
        """Class probabilities [n, len(texts)] of stored features [n, d] against one prompt per class."""
        raise NotImplementedError(f"{type(self).__name__} has no text tower")

    @property
    def supports_zero_shot(self) -> bool:
        """Whether the class brings its own `run_zero_shot`."""
        return type(self).run_zero_shot is not BasePatchEncoder.run_zero_shot


#: One prompt per class, or several prompts per class.
Prompts = Sequence[str] | Sequence[Sequence[str]]
BATCH = 64


class PromptEncoder:
    """Encodes classes from their prompts; a text that was encoded before is not encoded again."""

    def __init__(self, encode: Callable[[Sequence[str], str], Tensor]) -> None:
        self._encode = encode
        self._known: dict[str, Tensor] = {}

    @torch.inference_mode()
    def __call__(self, prompts: Prompts, device: str) -> Tensor:
        """L2-normalised class vectors [classes, d] on `device`."""
        groups = [[entry] if isinstance(entry, str) else list(entry) for entry in prompts]
        new = list(dict.fromkeys(text for group in groups for text in group if text not in self._known))
        for start in range(0, len(new), BATCH):
            texts = new[start : start + BATCH]
            self._known.update(zip(texts, self._encode(texts, device).cpu(), strict=True))
        return class_vectors([[self._known[text] for text in group] for group in groups]).to(device)


def class_vectors(groups: Sequence[Sequence[Tensor]]) -> Tensor:
    """Normalise every prompt, average over the prompts of a class, normalise again: [classes, d].

    >>> class_vectors([[torch.tensor([3.0, 0.0]), torch.tensor([0.0, 0.5])]])
    tensor([[0.7071, 0.7071]])
    """
    means = [normalize(torch.stack(list(group)).float(), dim=-1).mean(dim=0) for group in groups]
    return normalize(torch.stack(means), dim=-1)
