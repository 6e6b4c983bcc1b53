"""What the painters of the nine classes share: coordinates, points, and pieces of tissue."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from histobench.roi.data.demo.fields import Array, fields
from histobench.roi.data.demo.nuclei import BORDER, inside, layer, press
from histobench.roi.data.demo.slide import Tissue

Points = NDArray[np.float32]


@cache
def pixel_grid(size: int) -> tuple[Array, Array]:
    """Row coordinates [size, 1] and column coordinates [1, size]."""
    line = np.arange(size, dtype=np.float32)
    return line[:, None], line[None, :]


@dataclass
class Brush:
    """One tile while it is being painted: its random stream and its layers."""

    rng: np.random.Generator
    size: int
    nuclear: Array = field(init=False)
    blood: Array | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.nuclear = layer(self.size)

    def uniform(self, low: float, high: float) -> float:
        """One number between the bounds."""
        return low + (high - low) * float(self.rng.random())

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return float(self.rng.random()) < probability

    def directed(self, angle: float, *, wave: float = 0.0, stretch: float = 1.0) -> tuple[Array, Array]:
        """Coordinates (across, along) turned by `angle` and bent by about `wave` px; `stretch` coarsens."""
        y, x = pixel_grid(self.size)
        cos, sin = np.float32(np.cos(angle) / stretch), np.float32(np.sin(angle) / stretch)
        shift = self.rng.random(2) * 512
        across = (y * cos + np.float32(shift[0])) - x * sin
        along = (y * sin + np.float32(shift[1])) + x * cos
        if wave:
            across += fields().cloud.crop(self.rng, self.size) * np.float32(wave / stretch)
        return across, along

    def points(self, spacing: float, *, jitter: float = 0.3) -> tuple[Points, Points]:
        """Points of a jittered hexagonal lattice that covers the tile and its border."""
        reach = BORDER - 4
        rows = int((self.size + 2 * reach) / (spacing * 0.866)) + 2
        columns = int((self.size + 2 * reach) / spacing) + 2
        noise = self.rng.standard_normal((2, rows, columns), dtype=np.float32) * np.float32(jitter * spacing)
        phase = self.rng.random(2) * spacing
        y = np.arange(rows, dtype=np.float32)[:, None] * np.float32(spacing * 0.866) + noise[0]
        x = np.arange(columns, dtype=np.float32)[None, :] * np.float32(spacing) + noise[1]
        x[1::2] += np.float32(spacing / 2)
        y -= np.float32(reach + phase[0])
        x -= np.float32(reach + phase[1])
        return y.ravel(), x.ravel()

    def scattered(self, count: int) -> tuple[Points, Points]:
        """`count` points anywhere on the tile; a count for 224 px tiles, scaled to the area of this one."""
        count = max(0, round(count * (self.size / 224) ** 2))
        points = self.rng.random((2, count), dtype=np.float32) * np.float32(self.size)
        return points[0], points[1]

    def look(self, values: Array, y: Points, x: Points) -> Points:
        """The values of a tile-sized array at points; points outside read the nearest pixel."""
        last = self.size - 1
        rows = np.clip(y.astype(np.int64), 0, last)
        columns = np.clip(x.astype(np.int64), 0, last)
        return values[rows, columns]

    def slope(self, values: Array, y: Points, x: Points) -> Points:
        """Direction (radians) in which a tile-sized array rises fastest at points."""
        last = self.size - 4
        rows = np.clip(y.astype(np.int64), 3, last)
        columns = np.clip(x.astype(np.int64), 3, last)
        down = values[rows + 3, columns] - values[rows - 3, columns]
        right = values[rows, columns + 3] - values[rows, columns - 3]
        return np.arctan2(down, right)

    def press(
        self, kind: str, y: Points, x: Points, *, angle: Points | float | None = None, spread: float = 0.15
    ) -> None:
        """Nuclei of one kind at points."""
        press(self.nuclear, kind, y, x, rng=self.rng, angle=angle, spread=spread)

    def bleed(self, y: Points, x: Points) -> None:
        """Red blood cells at points."""
        cells = layer(self.size)
        press(cells, "erythrocyte", y, x, rng=self.rng)
        self.blood = inside(cells)

    def finish(self, haematoxylin: Array, eosin: Array) -> Tissue:
        """Lay the nuclei and the blood over the stained ground."""
        nuclear = inside(self.nuclear)
        ground = np.maximum(nuclear, haematoxylin)
        # Nothing in tissue is flat: chromatin and cytoplasm are grainy, and the section is not even.
        texture = fields().grain.crop(self.rng, self.size) * np.float32(self.uniform(0.06, 0.16))
        texture += fields().cloud.crop(self.rng, self.size) * np.float32(0.05)
        texture += np.float32(1.0)
        ground *= texture
        cover = np.minimum(nuclear, np.float32(1.0))
        cover *= np.float32(-0.35)
        cover += np.float32(1.0)
        cover *= eosin
        cover *= texture[::-1]
        if self.blood is not None:
            bare = 1.0 - np.minimum(self.blood, np.float32(1.0))
            ground *= bare
            cover *= bare
        return Tissue(haematoxylin=ground, eosin=cover, blood=self.blood)


def ramp(values: Array, low: float, high: float) -> Array:
    """0 below `low`, 1 above `high`, straight in between (`low` may be the larger one: it then falls)."""
    scaled = (values - np.float32(low)) * np.float32(1.0 / (high - low))
    return np.clip(scaled, 0.0, 1.0, out=scaled)
