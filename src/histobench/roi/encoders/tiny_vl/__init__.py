"""tiny-vl: a small image-text encoder trained by this project on synthetic tissue.

It makes zero-shot classification run offline and stands in for the large image-text models in tests.
It knows nothing of real tissue.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from histobench.roi.encoders.tiny_vl.encoder import TinyVLEncoder
    from histobench.roi.encoders.transform import TransformSpec

WEIGHTS = Path(__file__).with_name("weights.safetensors")


def build_tiny_vl(transform: TransformSpec) -> TinyVLEncoder:
    """The trained encoder with the given preprocessing, in eval mode."""
    from histobench.roi.encoders.tiny_vl.encoder import load_tiny_vl

    return load_tiny_vl(WEIGHTS, transform)
