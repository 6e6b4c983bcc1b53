"""tiny-vl: a small image-text encoder trained by this project on synthetic tissue.

It makes zero-shot classification run offline and stands in for the large image-text models in tests.
It knows nothing of real tissue.
"""

from pathlib import Path

WEIGHTS = Path(__file__).with_name("weights.safetensors")
