"""Prompts to class vectors: ensembles over templates, and a cache of texts already encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

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
