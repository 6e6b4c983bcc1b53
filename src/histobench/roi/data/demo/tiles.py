"""Synthetic tiles: tissue of a pack of drawings, stained and scanned like the slide of its patient.

`scripts/pack_tissue.py` draws the tissue and writes the pack.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

#: The classes in the order of their ids.
CLASSES = ("NORM", "STR", "TUM", "MUS", "MUC", "LYM", "DEB", "BACK", "ADI")
TILES_PER_PATIENT = 5
#: Test tiles are counted from here, so test patients never meet training patients.
FIRST_TEST_INDEX = 1_000_000

PACK = Path(__file__).with_name("tissue.zip")
#: Side in px of a drawing, at about 0.5 µm per pixel.
DRAWN_SIDE = 256
#: Drawings of each class: the first ones for training tiles, the others for test tiles.
TRAIN_DRAWINGS, TEST_DRAWINGS = 12, 24
#: Gray levels of the pack per unit of stain.
LEVELS = 100.0

# Optical density of hematoxylin and eosin in R, G, B: two published estimates (Macenko's and Ruifrok's).
_STAINS = np.array(
    [[[0.5626, 0.7201, 0.4062], [0.650, 0.704, 0.286]], [[0.2159, 0.8012, 0.5581], [0.20, 0.93, 0.25]]]
)


def render_tile(class_name: str, *, seed: int, index: int, size: int = 224) -> NDArray[np.uint8]:
    """Make the RGB pixels [size, size, 3] of one synthetic tile, at about 0.5 µm per pixel.

    The tile depends on its arguments alone. `index` also decides the synthetic patient, see `patient_of`.

    >>> render_tile("TUM", seed=0, index=3).shape
    (224, 224, 3)
    """
    rng = np.random.default_rng([3, seed, 1, CLASSES.index(class_name), index])
    tissue = _drawing(class_name, _drawing_of(index))
    tissue = np.rot90(tissue, int(rng.integers(4)), axes=(1, 2))
    tissue = tissue[:, :, :: rng.choice([1, -1])]
    if size > DRAWN_SIDE:
        tissue = np.pad(tissue, ((0, 0), (0, size - DRAWN_SIDE), (0, size - DRAWN_SIDE)), "symmetric")
    top, left = rng.integers(tissue.shape[1] - size + 1, size=2)
    piece = tissue[:, top : top + size, left : left + size].astype(np.float32) / np.float32(LEVELS)
    return slide_of(patient_of(index), seed=seed).scan(piece, rng)


def tile_jpeg(class_name: str, *, seed: int, index: int, size: int = 224) -> bytes:
    """Make the same tile as the JPEG file that its patient's scanner would write."""
    return slide_of(patient_of(index), seed=seed).jpeg(
        render_tile(class_name, seed=seed, index=index, size=size)
    )


def patient_of(index: int) -> int:
    """Return the number of the synthetic patient of a tile; the same for every class."""
    return index // TILES_PER_PATIENT


def _drawing_of(index: int) -> int:
    """The drawing of a tile: all are used before one returns, and no test tile shows one of training."""
    number = index % FIRST_TEST_INDEX
    number = number // TILES_PER_PATIENT + 7 * (number % TILES_PER_PATIENT)
    return number % TRAIN_DRAWINGS if index < FIRST_TEST_INDEX else TRAIN_DRAWINGS + number % TEST_DRAWINGS


@lru_cache(maxsize=len(CLASSES) * (TRAIN_DRAWINGS + TEST_DRAWINGS))
def _drawing(class_name: str, number: int) -> NDArray[np.uint8]:
    """Hematoxylin and eosin of one drawing [2, side, side]."""
    with zipfile.ZipFile(PACK) as pack:
        picture = Image.open(io.BytesIO(pack.read(f"{class_name}-{number:02d}.webp"))).convert("L")
    return np.asarray(picture).reshape(2, DRAWN_SIDE, DRAWN_SIDE)


@dataclass(frozen=True)
class Slide:
    """Stain and scanner of one synthetic patient."""

    stains: NDArray[np.float64]  # [hematoxylin and eosin, R G B]: optical density per unit of concentration
    white: NDArray[np.float64]
    gamma: float
    blur: float  # share that each of the four neighboring pixels gets; negative sharpens
    passes: int
    noise: float  # optical density
    jpeg_quality: int

    @property
    def scanner(self) -> str:
        return "synthetic-sharp" if self.blur < 0.10 else "synthetic-soft"

    @property
    def stain_lot(self) -> str:
        red, _, blue = self.stains[0]
        return "synthetic-lot-1" if red / blue < 1.75 else "synthetic-lot-2"

    def scan(self, tissue: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return the RGB image of a piece of tissue [hematoxylin and eosin, side, side] on this slide."""
        from scipy.ndimage import convolve, gaussian_filter

        # Chromatin and cytoplasm are grainy.
        grain = gaussian_filter(rng.standard_normal(tissue.shape[1:], dtype=np.float32), 1.0, mode="wrap")
        texture = 1.0 + grain * np.float32(rng.uniform(0.2, 0.5))
        layers = [tissue[0] * texture, tissue[1] * texture[::-1]]
        kernel = self.blur * np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
        kernel[1, 1] = 1 - 4 * self.blur
        for _ in range(self.passes):
            layers = [convolve(layer, kernel, mode="nearest") for layer in layers]
        density = np.tensordot(layers, self.stains, (0, 0)).astype(np.float32)
        density += self.noise * rng.standard_normal(density.shape, dtype=np.float32)
        return np.clip(np.rint(np.exp(-self.gamma * density) * self.white), 0, 255).astype(np.uint8)

    def jpeg(self, pixels: NDArray[np.uint8]) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=self.jpeg_quality, subsampling=0)
        return buffer.getvalue()


@lru_cache(maxsize=256)
def slide_of(patient: int, *, seed: int) -> Slide:
    """Return the slide of a synthetic patient, drawn from the range of laboratories and scanners."""
    rng = np.random.default_rng([1, seed, 0, patient])
    stains = _STAINS[:, 0] + rng.beta(1.2, 1.2, 2)[:, None] * (_STAINS[:, 1] - _STAINS[:, 0])
    strength = np.exp(rng.normal(0.0, [0.16, 0.20]))[:, None]
    return Slide(
        stains=np.clip(stains + rng.normal(0.0, 0.025, (3, 3))[:2], 0.02, None) * strength,
        white=rng.uniform(232.0, 252.0) + rng.normal(0.0, 3.0, 3),
        gamma=float(np.exp(rng.normal(0.0, 0.09))),
        blur=float(rng.choice([-0.05, 0.05, 0.12, 0.18])),
        passes=int(rng.choice([1, 1, 2])),
        noise=float(rng.uniform(0.003, 0.018)),
        jpeg_quality=int(rng.choice([95, 85, 70])),
    )
