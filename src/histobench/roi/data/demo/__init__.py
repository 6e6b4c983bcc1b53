"""Synthetic H&E-like tiles of nine colorectal tissue classes."""

from histobench.roi.data.demo.demo_set import PROMPT_WORDS, write_demo_dataset
from histobench.roi.data.demo.tiles import CLASSES, patient_of, render_tile, tile_jpeg

__all__ = ["CLASSES", "PROMPT_WORDS", "patient_of", "render_tile", "tile_jpeg", "write_demo_dataset"]
