"""One synthetic tile, made alone from (seed, class, index)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.roi.data.demo.drawing import Brush, DrawnTissue, Slide, fields, make_slide, ramp
from histobench.roi.data.demo.tissues import PAINTERS

#: Class names in the order of their ids.
CLASSES = tuple(PAINTERS)

# What lies next to each tissue in a colon: where a tile on a transition zone gets its other part from.
NEIGHBOURS: dict[str, tuple[str, ...]] = {
    "NORM": ("LYM", "STR", "BACK"),
    "STR": ("TUM", "MUS", "LYM", "ADI"),
    "TUM": ("STR", "DEB", "LYM", "MUC"),
    "MUS": ("STR", "ADI"),
    "MUC": ("TUM", "STR"),
    "LYM": ("STR", "TUM", "ADI"),
    "DEB": ("TUM", "BACK", "MUC"),
    "BACK": ("ADI", "DEB"),
    "ADI": ("STR", "MUS", "LYM"),
}
MIXED_SHARE = 0.12
TILES_PER_PATIENT = 5

# Tiles of different purposes never share a random stream, whatever their seeds are.
DOMAINS = {"demo": 1, "training": 2}
_PATIENT_STREAM, _TILE_STREAM = 0, 1


def render_tile(
    class_name: str, *, seed: int, index: int, size: int = 224, domain: str = "demo"
) -> NDArray[np.uint8]:
    """The RGB pixels [size, size, 3] of one synthetic tile, at about 0.5 µm per pixel.

    The tile depends on its arguments alone: not on other tiles, their number, their order or threads.
    `index` also decides the synthetic patient, see `patient_of`.

    >>> render_tile("TUM", seed=0, index=3).shape
    (224, 224, 3)
    """
    if class_name not in PAINTERS:
        raise HistobenchError(f"unknown tissue class {class_name!r}; {did_you_mean(class_name, PAINTERS)}")
    if size < 32:
        raise HistobenchError(f"a synthetic tile needs a size of at least 32 px, not {size}")
    rng = _stream(domain, seed, _TILE_STREAM, CLASSES.index(class_name), index)
    tissue = PAINTERS[class_name](Brush(rng, size))
    if rng.random() < MIXED_SHARE:
        neighbours = NEIGHBOURS[class_name]
        other = PAINTERS[neighbours[int(rng.integers(len(neighbours)))]](Brush(rng, size))
        tissue = _transition(tissue, other, rng)
    return slide_of(patient_of(index), seed=seed, domain=domain).scan(tissue, rng)


def tile_jpeg(class_name: str, *, seed: int, index: int, size: int = 224, domain: str = "demo") -> bytes:
    """The same tile as the JPEG file that its patient's scanner would write."""
    pixels = render_tile(class_name, seed=seed, index=index, size=size, domain=domain)
    return slide_of(patient_of(index), seed=seed, domain=domain).compress(pixels)


def patient_of(index: int) -> int:
    """The number of the synthetic patient that a tile comes from; the same for every class."""
    return index // TILES_PER_PATIENT


@lru_cache(maxsize=256)
def slide_of(patient: int, *, seed: int, domain: str = "demo") -> Slide:
    """The slide (stain and scanner) of a synthetic patient."""
    return make_slide(_stream(domain, seed, _PATIENT_STREAM, patient))


def _stream(domain: str, *key: int) -> np.random.Generator:
    if domain not in DOMAINS:
        raise HistobenchError(f"unknown domain {domain!r}; {did_you_mean(domain, DOMAINS)}")
    if min(key) < 0:
        raise HistobenchError(f"seed and index of a synthetic tile must not be negative: {key}")
    return np.random.default_rng([DOMAINS[domain], *key])


def _transition(main: DrawnTissue, other: DrawnTissue, rng: np.random.Generator) -> DrawnTissue:
    """A tile whose larger part is `main`: a straight front, made uneven, through the tile."""
    size = main.eosin.shape[0]
    angle = rng.random() * 2 * np.pi
    line = (np.arange(size, dtype=np.float32) / np.float32(size)) - np.float32(0.5)
    front = line[:, None] * np.float32(np.sin(angle)) + line[None, :] * np.float32(np.cos(angle))
    front += fields().cloud.crop(rng, size) * np.float32(0.08)
    start = rng.uniform(0.02, 0.30)
    share = ramp(front, start, start + 0.06)
    blood = main.blood
    if blood is not None:
        blood = blood * (1.0 - share)
    return DrawnTissue(
        haematoxylin=main.haematoxylin + share * (other.haematoxylin - main.haematoxylin),
        eosin=main.eosin + share * (other.eosin - main.eosin),
        blood=blood,
    )
