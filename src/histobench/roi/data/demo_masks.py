"""Drawn tissue with masks: glands in stroma, of several patients; to try segmentation with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histobench.core.files import write_text
from histobench.core.text import csv_text

CODES = {0: "background", 1: "stroma", 2: "gland", 255: "ignore"}
#: Mean colors of the three classes.
_COLORS = np.array([[243, 240, 244], [226, 168, 196], [150, 92, 160]], dtype=np.float64)


def draw_mask_tiles(
    folder: Path, *, n_train: int = 12, n_test: int = 6, n_tiles: int = 3, size: int = 224, seed: int = 0
) -> Path:
    """Write tiles, masks, `classes.json` and the table `glands.csv` of so many patients."""
    rows = []
    for patient in range(n_train + n_test):
        rng = np.random.default_rng([seed, patient])
        stain = rng.uniform(0.8, 1.1, size=3)
        split = "train" if patient < n_train else "test"
        for tile in range(n_tiles):
            pixels, mask = _tile(rng, size, stain)
            name = f"p{patient:02d}_{tile}.png"
            for part, picture in (("images", pixels), ("masks", mask)):
                (folder / part).mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture).save(folder / part / name)
            rows.append((f"images/{name}", f"masks/{name}", f"p{patient:02d}", split))
    write_text(folder / "classes.json", json.dumps(CODES, indent=1))
    write_text(folder / "glands.csv", csv_text(("image_path", "mask_path", "group", "split"), rows))
    return folder / "glands.csv"


def _tile(
    rng: np.random.Generator, size: int, stain: NDArray[np.float64]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """An empty edge on one side, stroma with fibers, and ring-shaped glands with nuclei."""
    y, x = np.mgrid[:size, :size] / size
    angle = rng.uniform(0, 2 * np.pi)
    across = (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle)
    mask = np.where(across > rng.uniform(0.2, 0.5), 0, 1)
    for _ in range(rng.integers(1, 5)):
        center, radius = rng.uniform(0.1, 0.9, size=2), rng.uniform(0.08, 0.22)
        bend = 1 + 0.2 * np.sin(3 * np.arctan2(y - center[0], x - center[1]) + rng.uniform(0, 6))
        distance = np.hypot(y - center[0], x - center[1]) / (radius * bend)
        mask[(distance < 1) & (mask == 1)] = 2
        mask[distance < 0.35] = 0  # the lumen
    pixels = _COLORS[mask] * stain
    pixels += (mask == 1)[..., None] * 14 * np.sin(60 * (x * np.sin(angle) - y * np.cos(angle)))[..., None]
    nuclei = (np.sin(70 * x + rng.uniform(0, 6)) * np.sin(70 * y) > 0.5) & (mask == 2)
    pixels[nuclei] -= 45
    pixels += rng.normal(0, 6, size=(size, size, 3))
    mask[:2], mask[-2:], mask[:, :2], mask[:, -2:] = 255, 255, 255, 255
    return np.clip(pixels, 0, 255).astype(np.uint8), mask.astype(np.uint8)
