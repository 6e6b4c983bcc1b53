"""Drawing of synthetic tissue: noise fields, nuclei, brushes and stains."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Periodic random fields that every synthetic tile is cut from; made once per process.

Array = NDArray[np.float32]

PERIOD = 512
_MASK = PERIOD - 1
_BITS = 9
# Sampling truncates towards zero; a large offset keeps every coordinate positive without changing the wrap.
_POSITIVE = np.float32(16 * PERIOD)


@dataclass(frozen=True)
class Field:
    """One periodic field: `flat` is what is sampled, `twice` is the same tiled 2 x 2 so a crop is a view."""

    flat: Array
    twice: Array

    def crop(self, rng: np.random.Generator, size: int) -> Array:
        """A window [size, size] at a random place; a view where the window fits the tiled copy."""
        top, left = rng.integers(PERIOD, size=2)
        if size <= PERIOD:
            return self.twice[top : top + size, left : left + size]
        rows = (np.arange(size) + top) & _MASK
        columns = (np.arange(size) + left) & _MASK
        return self.twice[rows[:, None], columns[None, :]]

    def at(self, v: Array, u: Array) -> Array:
        """Nearest values at row coordinates `v` and column coordinates `u`, wrapping around."""
        rows = (v + _POSITIVE).astype(np.int32)
        rows &= _MASK
        rows <<= _BITS
        columns = (u + _POSITIVE).astype(np.int32)
        columns &= _MASK
        rows |= columns
        # Every index is in range; "clip" only spares the check that "raise" makes.
        return self.flat.take(rows.astype(np.intp), mode="clip")


@dataclass(frozen=True)
class Fields:
    """The fields by what they look like. Noise fields have mean 0 and standard deviation 1."""

    cloud: Field  # broad, soft patches
    blob: Field  # islands about 110 px apart: gland outlines
    mottle: Field  # patches about 25 px wide
    grain: Field  # about 4 px: cytoplasm, chromatin
    speck: Field  # pixel noise: the sensor
    fibre: Field  # streaks along the columns, about 8 px across
    strand: Field  # 0..1 thin ridges along the columns
    web: Field  # 0..1 thin ridges in every direction
    fat: Field  # distance in px to the nearest border between cells about 110 px wide
    bundle: Field  # the same for cells about 16 px wide


@cache
def fields() -> Fields:
    """The fields of this process; the same on every call and in every process."""
    rng = np.random.default_rng(20_180_407)
    return Fields(  # in the order in which they are drawn
        cloud=_field(_noise(rng, along=150.0, across=150.0, slope=1.6)),
        blob=_field(_band(rng, wavelength=115.0, width=0.30)),
        mottle=_field(_band(rng, wavelength=32.0, width=0.5)),
        grain=_field(_band(rng, wavelength=6.0, width=0.6)),
        fibre=_field(_noise(rng, along=130.0, across=9.0, slope=1.4)),
        strand=_field(_ridge(_noise(rng, along=160.0, across=22.0, slope=1.7), 0.16)),
        web=_field(_ridge(_band(rng, wavelength=38.0, width=0.6), 0.15)),
        speck=_field(rng.standard_normal((PERIOD, PERIOD)).astype(np.float32)),
        fat=_field(_borders(rng, spacing=112.0, jitter=0.22)),
        bundle=_field(_borders(rng, spacing=17.0, jitter=0.18)),
    )


def _field(values: Array) -> Field:
    values = np.ascontiguousarray(values, dtype=np.float32)
    return Field(flat=values.ravel(), twice=np.tile(values, (2, 2)))


def _frequencies() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    cycles = np.asarray(np.fft.fftfreq(PERIOD), np.float64)
    return cycles[:, None], cycles[None, : PERIOD // 2 + 1].copy()


def _shaped(rng: np.random.Generator, gain: NDArray[np.float64]) -> Array:
    white = np.fft.rfft2(rng.standard_normal((PERIOD, PERIOD)))
    gain[0, 0] = 0.0
    values = np.fft.irfft2(white * gain, s=(PERIOD, PERIOD))
    return (values / values.std()).astype(np.float32)


def _noise(rng: np.random.Generator, *, along: float, across: float, slope: float) -> Array:
    """Noise with a power-law tail above the given lengths, along the columns and across them."""
    fy, fx = _frequencies()
    return _shaped(rng, (1.0 + (fx * along) ** 2 + (fy * across) ** 2) ** -slope)


def _band(rng: np.random.Generator, *, wavelength: float, width: float) -> Array:
    """Noise with one dominant wavelength."""
    fy, fx = _frequencies()
    octaves = np.log(np.maximum(np.hypot(fy, fx), 1e-9) * wavelength)
    return _shaped(rng, np.exp(-0.5 * (octaves / width) ** 2))


def _ridge(noise: Array, width: float) -> Array:
    """Thin bright lines along the zero crossings of a noise field."""
    return np.clip(1.0 - np.abs(noise) / width, 0.0, 1.0).astype(np.float32)


def _borders(rng: np.random.Generator, *, spacing: float, jitter: float) -> Array:
    """Distance to the borders of a periodic, irregular honeycomb."""
    from scipy.spatial import cKDTree

    count = max(2, round(PERIOD / spacing))
    step = PERIOD / count
    grid = np.stack(np.meshgrid(np.arange(count), np.arange(count), indexing="ij"), -1).reshape(-1, 2)
    sites = (grid + 0.5) * step
    sites[:, 1] += (grid[:, 0] % 2) * step / 2
    sites = (sites + rng.normal(0.0, jitter * step, sites.shape)) % PERIOD
    pixels = np.indices((PERIOD, PERIOD)).reshape(2, -1).T
    distance, _ = cKDTree(sites, boxsize=PERIOD).query(pixels, k=2)
    return ((distance[:, 1] - distance[:, 0]) / 2).reshape(PERIOD, PERIOD).astype(np.float32)


# Cell nuclei and vacuoles: an atlas of small stamps, and the loop that presses them onto a layer.

#: Stamps may reach this far outside the tile, so layers carry a border of this width.
BORDER = 24
ANGLES = 16
VARIANTS = 14


@dataclass(frozen=True)
class NucleusKind:
    """How the nuclei of one cell type vary: half axes in px, outline, chromatin and darkness."""

    long: tuple[float, float]
    short: tuple[float, float]
    irregular: float
    rim: float  # how much darker the membrane is than the inside
    clumps: float  # strength of the chromatin texture
    nucleoli: int
    dark: tuple[float, float]
    softness: float = 1.2


KINDS: dict[str, NucleusKind] = {
    "lymphocyte": NucleusKind((5.0, 6.6), (4.6, 6.0), 0.08, 0.16, 0.40, 0, (1.1, 1.8)),
    "plasma": NucleusKind((4.6, 6.4), (3.6, 5.2), 0.14, 0.20, 0.45, 0, (0.9, 1.6)),
    "spindle": NucleusKind((9.0, 16.0), (1.8, 3.4), 0.18, 0.05, 0.35, 0, (0.75, 1.5)),
    "cigar": NucleusKind((8.0, 13.0), (2.6, 4.2), 0.10, 0.15, 0.35, 0, (0.7, 1.35)),
    "columnar": NucleusKind((6.0, 8.0), (4.0, 5.4), 0.10, 0.25, 0.45, 0, (0.9, 1.5)),
    "tumour": NucleusKind((8.5, 13.5), (5.5, 9.5), 0.14, 0.45, 0.50, 2, (0.8, 1.5)),
    "dark_tumour": NucleusKind((8.0, 13.0), (4.0, 6.6), 0.14, 0.22, 0.50, 1, (1.0, 1.7)),
    "fragment": NucleusKind((1.2, 4.0), (1.0, 3.0), 0.25, 0.0, 0.10, 0, (0.8, 1.9), 0.9),
    "ghost": NucleusKind((5.0, 9.0), (4.0, 6.5), 0.15, 0.30, 0.35, 0, (0.30, 0.65), 2.2),
    "vacuole": NucleusKind((9.5, 14.5), (7.0, 10.5), 0.08, 0.0, 0.0, 0, (1.0, 1.0), 1.6),
    "erythrocyte": NucleusKind((4.2, 5.4), (3.8, 5.0), 0.08, 0.15, 0.0, 0, (0.8, 1.3), 1.0),
}


@dataclass(frozen=True)
class Atlas:
    """The stamps of one kind, cut to what is drawn, numbered `angle * VARIANTS + variant`."""

    stamps: tuple[Array, ...]
    boxes: NDArray[np.int64]  # [stamps, 4]: top, bottom, left, right around the centre


@cache
def atlas(kind: str) -> Atlas:
    """The stamps of one kind; the same in every process."""
    spec = KINDS[kind]
    rng = np.random.default_rng([7, sorted(KINDS).index(kind)])
    stamps: list[Array] = []
    boxes = np.empty((ANGLES * VARIANTS, 4), np.int64)
    shapes = [_shape(spec, rng) for _ in range(VARIANTS)]
    for number in range(ANGLES * VARIANTS):
        step, variant = divmod(number, VARIANTS)
        stamp = shapes[variant](np.pi * step / ANGLES)
        centre = stamp.shape[0] // 2
        rows, columns = (np.flatnonzero(stamp.any(axis=axis)) for axis in (1, 0))
        y0, y1, x0, x1 = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
        stamps.append(np.ascontiguousarray(stamp[y0:y1, x0:x1]))
        boxes[number] = np.array([y0, y1, x0, x1]) - centre
    return Atlas(tuple(stamps), boxes)


def _shape(spec: NucleusKind, rng: np.random.Generator) -> Callable[[float], Array]:
    """One random nucleus, as a function from its angle to its stamp."""
    long, short = rng.uniform(*spec.long), rng.uniform(*spec.short)
    dark = rng.uniform(*spec.dark)
    waves = rng.normal(0.0, spec.irregular, 4) / np.arange(1, 5)
    phases = rng.uniform(0.0, 2 * np.pi, 4)
    chromatin = rng.normal(size=(9, 2)) * 0.9
    clump_dark = rng.normal(0.0, 1.0, 9)
    nucleoli = rng.normal(0.0, 0.35, (spec.nucleoli and int(rng.integers(1, spec.nucleoli + 1)), 2))
    reach = int(np.ceil(max(long, short) * (1 + 2 * spec.irregular) + 1))
    reach = min(reach, BORDER - 1)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(np.float64)

    def turn(angle: float) -> Array:
        along = (x * np.cos(angle) + y * np.sin(angle)) / long
        across = (-x * np.sin(angle) + y * np.cos(angle)) / short
        radius = np.hypot(along, across)
        theta = np.arctan2(across, along)
        outline = 1.0 + sum(
            w * np.cos((k + 2) * theta + p) for k, (w, p) in enumerate(zip(waves, phases, strict=True))
        )
        depth = (outline - radius) * short  # px inside the outline
        body = np.clip(depth / spec.softness, 0.0, 1.0)
        shade = 1.0 - spec.rim * np.clip((depth - 1.2) / 2.0, 0.0, 1.0)
        for (cy, cx), strength in zip(chromatin, clump_dark, strict=True):
            spot = np.exp(-(((along - cx * 0.6) * long) ** 2 + ((across - cy * 0.6) * short) ** 2) / 4.5)
            shade = shade + spec.clumps * 0.45 * strength * spot
        for cy, cx in nucleoli:
            spot = np.exp(-(((along - cx) * long) ** 2 + ((across - cy) * short) ** 2) / 2.6)
            shade = shade + 0.75 * spot
        return (dark * body * np.clip(shade, 0.25, 1.6)).astype(np.float32)

    return turn


def layer(size: int) -> Array:
    """An empty layer for stamps: the tile plus its border."""
    return np.zeros((size + 2 * BORDER, size + 2 * BORDER), np.float32)


def inside(stamped: Array) -> Array:
    """The tile part of a layer."""
    return stamped[BORDER:-BORDER, BORDER:-BORDER]


def press(
    stamped: Array,
    kind: str,
    y: NDArray[np.float32],
    x: NDArray[np.float32],
    *,
    rng: np.random.Generator,
    angle: NDArray[np.float32] | float | None = None,
    spread: float = 0.15,
) -> None:
    """Press one stamp per point (tile coordinates) onto the layer, keeping the darker value.

    `angle` is the direction of the long axis in radians, `spread` its standard deviation around that;
    without an angle every direction is equally likely. Points beyond the border are left out.
    """
    book = atlas(kind)
    count = len(y)
    if angle is None:
        numbers = rng.integers(ANGLES * VARIANTS, size=count)
    else:
        directions = angle + spread * rng.standard_normal(count, dtype=np.float32)
        turns = np.rint(directions * (ANGLES / np.pi)).astype(np.int64) % ANGLES
        numbers = turns * VARIANTS + rng.integers(VARIANTS, size=count)
    places = np.empty((count, 5), np.int64)
    places[:, :4] = book.boxes[numbers]
    places[:, :2] += (np.rint(y).astype(np.int64) + BORDER)[:, None]
    places[:, 2:4] += (np.rint(x).astype(np.int64) + BORDER)[:, None]
    places[:, 4] = numbers
    near, far = places[:, [0, 2]], places[:, [1, 3]]
    side = stamped.shape[0]
    fits = (near >= 0) & (far <= side)  # inside the layer
    fits &= (far > BORDER) & (near < side - BORDER)  # and touching the tile
    stamps, keep_darker = book.stamps, np.maximum
    for y0, y1, x0, x1, number in places[fits.all(axis=1)].tolist():
        window = stamped[y0:y1, x0:x1]
        keep_darker(window, stamps[number], out=window)


# A synthetic patient's slide: how it was stained, and how the scanner saw it.

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
class DrawnTissue:
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

    def scan(self, tissue: DrawnTissue, rng: np.random.Generator) -> NDArray[np.uint8]:
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
        press(self.nuclear, kind, y, x, rng=self.rng, angle=angle, spread=spread)

    def bleed(self, y: Points, x: Points) -> None:
        """Red blood cells at points."""
        cells = layer(self.size)
        press(cells, "erythrocyte", y, x, rng=self.rng)
        self.blood = inside(cells)

    def finish(self, haematoxylin: Array, eosin: Array) -> DrawnTissue:
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
        return DrawnTissue(haematoxylin=ground, eosin=cover, blood=self.blood)


def ramp(values: Array, low: float, high: float) -> Array:
    """0 below `low`, 1 above `high`, straight in between (`low` may be the larger one: it then falls)."""
    scaled = (values - np.float32(low)) * np.float32(1.0 / (high - low))
    return np.clip(scaled, 0.0, 1.0, out=scaled)
