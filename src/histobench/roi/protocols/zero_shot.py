"""Zero-shot: an image-text encoder compares stored image features with one prompt per class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.protocols.outcome import Outcome

if TYPE_CHECKING:
    from histobench.roi.encoders.base import BasePatchEncoder


def zero_shot(
    encoder: BasePatchEncoder, texts: Sequence[str], test: Tensor, *, device: str = "cpu"
) -> Outcome:
    """Class probabilities of image features [n, d], from the encoder itself: one prompt per class."""
    with torch.inference_mode():
        probabilities = encoder.run_zero_shot(list(texts), test, device)
    p = torch.as_tensor(probabilities).double().cpu().numpy()
    if p.shape != (len(test), len(texts)):
        raise HistobenchError(
            f"{type(encoder).__name__}.run_zero_shot gave shape {p.shape} for {len(test)} images and "
            f"{len(texts)} prompts; it must give one row per image and one column per prompt"
        )
    return Outcome(p, np.argmax(p, axis=1), {"prompts": list(texts)})
