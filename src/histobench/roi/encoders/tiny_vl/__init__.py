"""tiny-vl: a small image-text encoder trained by this project on synthetic tissue."""

from pathlib import Path

WEIGHTS = Path(__file__).with_name("weights.safetensors")
