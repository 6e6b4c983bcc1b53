"""Draw the tissue of the demo tiles and write it into the package.

    python scripts/pack_tissue.py

Each file in the pack is a gray picture: hematoxylin above eosin, 100 gray levels per unit.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tissue_painter import stain_layers

from histobench.roi.data.demo.tiles import (
    CLASSES,
    DRAWN_SIDE,
    LEVELS,
    PACK,
    TEST_DRAWINGS,
    TRAIN_DRAWINGS,
)

SEED = 2


def gray_picture(class_name: str, number: int) -> NDArray[np.uint8]:
    """Draw one piece of tissue as the pack stores it [2 * side, side], before compression."""
    rng = np.random.default_rng([SEED, CLASSES.index(class_name), number])
    layers = stain_layers(class_name, rng, DRAWN_SIDE)
    return np.clip(np.rint(layers * LEVELS), 0, 255).astype(np.uint8).reshape(2 * DRAWN_SIDE, DRAWN_SIDE)


def write_pack(path: Path = PACK, per_class: int = TRAIN_DRAWINGS + TEST_DRAWINGS) -> None:
    """Write the pack; the same drawings give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as pack:
        for class_name in CLASSES:
            for number in range(per_class):
                buffer = io.BytesIO()
                Image.fromarray(gray_picture(class_name, number)).save(buffer, "WEBP", quality=65, method=6)
                pack.writestr(zipfile.ZipInfo(f"{class_name}-{number:02d}.webp"), buffer.getvalue())


if __name__ == "__main__":
    write_pack()
    print(f"{PACK}: {PACK.stat().st_size / 1e6:.1f} MB")
