"""Synthetic H&E-like tiles of nine colorectal tissue classes, computed from random numbers.

Nothing here is real histology; it is called synthetic wherever it appears.
"""

from histobench.roi.data.demo.demo_set import PROMPT_WORDS, write_demo_dataset
from histobench.roi.data.demo.tile import CLASSES, patient_of, render_tile, tile_jpeg

__all__ = ["CLASSES", "PROMPT_WORDS", "patient_of", "render_tile", "tile_jpeg", "write_demo_dataset"]
