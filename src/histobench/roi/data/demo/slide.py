"""A synthetic patient's slide: how it was stained, and how the scanner saw it."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histobench.roi.data.demo.fields import Array, fields

# Optical density (natural logarithm) of the pure stains in R, G, B: two published estimates of the same
# dyes (Macenko's reference matrix and Ruifrok's); a laboratory lies somewhere between them.
_HAEMATOXYLIN = np.array([[0.5626, 0.7201, 0.4062], [0.650, 0.704, 0.286]])
_EOSIN = np.array([[0.2159, 0.8012, 0.5581], [0.20, 0.93, 0.25]])
_BLOOD = np.array([0.10, 0.85, 0.62])

# Between the blur of the scanners, and between the red to blue of the two haematoxylins (1.4 and 2.3).
_SOFT = 0.10
_LOT = 1.75

# Optical density is looked up in a table of this many steps per unit, from -_BELOW steps upwards.
_STEPS = 400.0
_BELOW = 60
_ENTRIES = 1024


@dataclass(frozen=True)
class Tissue:
    """Stain concentrations of a tile before any slide: haematoxylin, eosin, and blood where there is any."""

    haematoxylin: Array
    eosin: Array
    blood: Array | None = None


@dataclass(frozen=True)
class Slide:
    """Stain and scanner of one synthetic patient."""

    stains: NDArray[np.float32]  # [3 stains, 3 channels] optical density per unit of concentration
    curve: NDArray[np.uint8]  # [3 channels, entries]: optical density -> 8-bit value
    blur: float  # share that each of the four neighbours gets; negative sharpens
    passes: int
    noise: float  # optical density
    jpeg_quality: int  # of the files that this scanner writes

    @property
    def scanner(self) -> str:
        """The kind of scanner: one that sharpens, or leaves edges nearly as they are, or a soft one."""
        return "synthetic-sharp" if self.blur < _SOFT else "synthetic-soft"

    @property
    def stain_lot(self) -> str:
        """The lot of haematoxylin, which is what makes it more or less blue."""
        red, _, blue = self.stains[0]
        return "synthetic-lot-1" if red / blue < _LOT else "synthetic-lot-2"

    def scan(self, tissue: Tissue, rng: np.random.Generator) -> NDArray[np.uint8]:
        """The RGB image [size, size, 3] of a piece of tissue on this slide."""
        size = tissue.eosin.shape[0]
        image = np.empty((size, size, 3), np.uint8)
        haematoxylin, eosin = tissue.haematoxylin, tissue.eosin
        for _ in range(self.passes):
            haematoxylin, eosin = _soften(haematoxylin, self.blur), _soften(eosin, self.blur)
        sensor = fields().speck.crop(rng, size) * np.float32(self.noise * _STEPS)
        for channel in range(3):
            h, e, b = (self.stains[:, channel] * np.float32(_STEPS)).astype(np.float32)
            density = haematoxylin * h
            density += eosin * e
            if tissue.blood is not None:
                density += tissue.blood * b
            # The same noise window, mirrored for each channel, is as good as three windows.
            density += (sensor, sensor[::-1], sensor[:, ::-1])[channel]
            density += np.float32(_BELOW)
            image[:, :, channel] = self.curve[channel].take(density.astype(np.intp), mode="clip")
        return image

    def compress(self, image: NDArray[np.uint8]) -> bytes:
        """The JPEG file that this scanner makes of an image."""
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=self.jpeg_quality, subsampling=0)
        return buffer.getvalue()


def make_slide(rng: np.random.Generator) -> Slide:
    """A patient's slide drawn from the range of laboratories and scanners."""
    blend = rng.beta(1.2, 1.2, 2)
    haematoxylin = _HAEMATOXYLIN[0] + blend[0] * (_HAEMATOXYLIN[1] - _HAEMATOXYLIN[0])
    eosin = _EOSIN[0] + blend[1] * (_EOSIN[1] - _EOSIN[0])
    strength = np.exp(rng.normal(0.0, [0.16, 0.20]))
    stains = np.stack([haematoxylin, eosin, _BLOOD]) + rng.normal(0.0, 0.025, (3, 3))
    stains = np.clip(stains, 0.02, None) * np.array([strength[0], strength[1], 1.0])[:, None]
    white = rng.uniform(232.0, 252.0) + rng.normal(0.0, 3.0, 3)
    gamma = np.exp(rng.normal(0.0, 0.09))
    density = (np.arange(_ENTRIES) - _BELOW) / _STEPS
    values = np.exp(-density * gamma)[None, :] * white[:, None]
    return Slide(
        stains=stains.astype(np.float32),
        curve=np.clip(np.rint(values), 0, 255).astype(np.uint8),
        blur=float(rng.choice([-0.05, 0.05, 0.12, 0.18])),
        passes=int(rng.choice([1, 1, 2])),
        noise=float(rng.uniform(0.003, 0.018)),
        jpeg_quality=int(rng.choice([95, 85, 70])),
    )


def _soften(values: Array, share: float) -> Array:
    """Give each of the four neighbours a share; beyond the edge the outermost pixels go on."""
    around = np.empty_like(values)
    np.add(values[:-2], values[2:], out=around[1:-1])
    np.add(values[0], values[1], out=around[0])
    np.add(values[-2], values[-1], out=around[-1])
    around[:, 1:] += values[:, :-1]
    around[:, :-1] += values[:, 1:]
    around[:, 0] += values[:, 0]
    around[:, -1] += values[:, -1]
    around *= np.float32(share)
    around += values * np.float32(1.0 - 4.0 * share)
    return around
