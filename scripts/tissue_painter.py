"""Draws synthetic tissue: noise for textures, ellipses for nuclei. See pack_tissue.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import cos, sin
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: Concentrations of hematoxylin and eosin, and the nuclei on top.
Tissue = Sequence[Array]

PERIOD = 512
#: The tissues that may lie beside each class.
NEIGHBORS: dict[str, str] = {
    "NORM": "LYM STR BACK",
    "STR": "TUM MUS LYM ADI",
    "TUM": "STR DEB LYM MUC",
    "MUS": "STR ADI",
    "MUC": "TUM STR",
    "LYM": "STR TUM ADI",
    "DEB": "TUM BACK MUC",
    "BACK": "ADI DEB",
    "ADI": "STR MUS LYM",
}
#: Half axes in px (long, short), darkness, and how much lighter than the rim the inside is.
NUCLEI: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float], float]] = {
    "lymphocyte": ((5.0, 6.6), (4.6, 6.0), (1.1, 1.8), 0.16),
    "plasma": ((4.6, 6.4), (3.6, 5.2), (0.9, 1.6), 0.20),
    "spindle": ((9.0, 16.0), (1.8, 3.4), (0.75, 1.5), 0.05),
    "cigar": ((8.0, 13.0), (2.6, 4.2), (0.7, 1.35), 0.15),
    "columnar": ((6.0, 8.0), (4.0, 5.4), (0.9, 1.5), 0.25),
    "tumor": ((8.0, 13.5), (4.5, 9.0), (0.8, 1.6), 0.40),
    "fragment": ((1.2, 4.0), (1.0, 3.0), (0.8, 1.9), 0.0),
    "ghost": ((5.0, 9.0), (4.0, 6.5), (0.3, 0.65), 0.30),
    "vacuole": ((9.5, 14.5), (7.0, 10.5), (1.0, 1.0), 0.0),
}
_BORDER = 20


def draw_tissue(class_name: str, rng: np.random.Generator, size: int) -> Tissue:
    """Draw a piece of tissue of a class; one in eight also shows one of the tissues beside its own."""
    brush = Brush(rng, size)
    tissue = PAINTERS[class_name](brush)
    if brush.chance(1 / 8):
        other = PAINTERS[str(brush.rng.choice(NEIGHBORS[class_name].split()))](brush)
        line = np.arange(size, dtype=np.float32) / size - 0.5
        angle = brush.uniform(0.0, 2 * np.pi)
        front = line[:, None] * sin(angle) + line * cos(angle) + brush.crop("cloud") * 0.08
        share = ramp(front, start := brush.uniform(0.02, 0.30), start + 0.06)
        tissue = [layer + share * (beside - layer) for layer, beside in zip(tissue, other, strict=True)]
    return tissue


def stain_layers(class_name: str, rng: np.random.Generator, size: int) -> NDArray[np.float32]:
    """Draw tissue and return how much hematoxylin and eosin it takes up [2, size, size]."""
    hematoxylin, eosin, nuclei = draw_tissue(class_name, rng, size)
    eosin = eosin * (1.0 - 0.35 * np.minimum(nuclei, 1.0))
    return np.stack([np.maximum(nuclei, hematoxylin), eosin]).astype(np.float32)


@cache
def _fields() -> dict[str, Array]:
    """Make the periodic textures, the same in every process."""
    from scipy.spatial import cKDTree

    rng = np.random.default_rng(20_180_407)
    fy, fx = np.fft.fftfreq(PERIOD)[:, None], np.fft.rfftfreq(PERIOD)[None]

    def noise(gain: NDArray[np.float64]) -> Array:
        gain[0, 0] = 0.0
        values = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((PERIOD, PERIOD))) * gain)
        return (values / values.std()).astype(np.float32)

    def streaks(along: float, across: float, slope: float) -> Array:
        return noise((1.0 + (fx * along) ** 2 + (fy * across) ** 2) ** -slope)

    def patches(wavelength: float, width: float) -> Array:
        return noise(np.exp(-0.5 * (np.log(np.maximum(np.hypot(fy, fx), 1e-9) * wavelength) / width) ** 2))

    # Distance in px to the nearest border between fat cells: an irregular honeycomb.
    grid = np.indices((5, 5)).reshape(2, -1).T.astype(float)
    grid[:, 1] += grid[:, 0] % 2 / 2
    centers = ((grid + 0.5 + rng.normal(0.0, 0.22, grid.shape)) * PERIOD / 5) % PERIOD
    pixels = np.indices((PERIOD, PERIOD)).reshape(2, -1).T
    distance = cKDTree(centers, boxsize=PERIOD).query(pixels, k=2)[0]
    return {
        "fat": ((distance[:, 1] - distance[:, 0]) / 2).reshape(PERIOD, PERIOD).astype(np.float32),
        "cloud": streaks(150.0, 150.0, 1.6),  # broad, soft patches
        "blob": patches(115.0, 0.30),  # islands: gland outlines
        "mottle": patches(32.0, 0.5),
        "grain": patches(6.0, 0.6),  # cytoplasm, chromatin
        "fiber": streaks(130.0, 9.0, 1.4),  # streaks along the columns
        "strand": np.clip(1.0 - np.abs(streaks(160.0, 22.0, 1.7)) / 0.16, 0.0, 1.0),  # thin ridges
        "web": np.clip(1.0 - np.abs(patches(38.0, 0.6)) / 0.15, 0.0, 1.0),  # ridges in every direction
    }


def _over(*layers: Array) -> Array:
    return np.maximum.reduce(layers)


def ramp(values: Array, low: float, high: float) -> Array:
    """Rise from 0 at `low` to 1 at `high` (or fall, where `low` is the larger one)."""
    return np.clip((values - low) / (high - low), 0.0, 1.0)


class Brush:
    """The random stream of one tile and what can be drawn with it."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self.rng, self.size = rng, size

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def crop(self, name: str) -> Array:
        """Cut a window out of a texture at a random place."""
        rows, columns = (np.arange(self.size) + start for start in self.rng.integers(PERIOD, size=2))
        return _fields()[name][np.ix_(rows % PERIOD, columns % PERIOD)]

    def at(self, name: str, across: Array, along: Array) -> Array:
        """Sample a texture at coordinates, wrapping around."""
        rows, columns = (np.floor(values).astype(np.int32) % PERIOD for values in (across, along))
        return _fields()[name][rows, columns]

    def directed(self, wave: float, stretch: float = 1.0) -> tuple[Array, Array]:
        """Make coordinates (across, along) of a random direction, bent by about `wave` px."""
        y, x = np.indices((self.size, self.size), dtype=np.float32) / stretch
        angle, shift = self.uniform(0.0, np.pi), self.rng.random(2).astype(np.float32) * PERIOD
        across = y * cos(angle) - x * sin(angle) + shift[0] + self.crop("cloud") * (wave / stretch)
        return across.astype(np.float32), (y * sin(angle) + x * cos(angle) + shift[1]).astype(np.float32)

    def nuclei(
        self, kind: str, spacing: float, where: Any = True, share: float = 1.0, along: Any = 0.0
    ) -> Array:
        """Draw a share of the nuclei about `spacing` px apart, where a mask allows.

        They lie along the steepest direction of the layer `along`, or in any direction.
        """
        size, rng = self.size, self.rng
        lattice = np.arange(-_BORDER, size + _BORDER, spacing)
        y, x = (
            np.stack(np.meshgrid(lattice, lattice, indexing="ij")).reshape(2, -1)
            + rng.random((2, 1)) * spacing
        )
        y, x = np.stack([y, x]) + rng.normal(0.0, 0.3 * spacing, (2, len(y)))
        rows, columns = np.clip([y, x], 3, size - 4).astype(np.int64)
        keep = (np.minimum(y, x) > 2 - _BORDER) & (np.maximum(y, x) < size + _BORDER - 2)
        keep &= (rng.random(len(y)) < share) & np.broadcast_to(where, (size, size))[rows, columns]
        y, x, rows, columns = y[keep], x[keep], rows[keep], columns[keep]
        layer = np.broadcast_to(along, (size, size))
        down, right = layer[rows + 3, columns], layer[rows, columns + 3]
        angle = np.arctan2(down - layer[rows - 3, columns], right - layer[rows, columns - 3])
        angle += rng.standard_normal(len(y)) * (9.0 if np.isscalar(along) else 0.2)
        *ranges, rim = NUCLEI[kind]
        long, short, dark = (self.rng.uniform(*bounds, len(y))[:, None, None] for bounds in ranges)
        reach = int(np.ceil(ranges[0][1])) + 1
        dy, dx = np.mgrid[-reach : reach + 1, -reach : reach + 1]
        c, s = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
        depth = (1.0 - np.hypot((dx * c + dy * s) / long, (dy * c - dx * s) / short)) * short
        stamps = dark * np.clip(depth / 1.2, 0.0, 1.0) * (1.0 - rim * np.clip((depth - 1.2) / 2.0, 0.0, 1.0))
        edge = _BORDER + reach
        layer = np.zeros((size + 2 * edge, size + 2 * edge), np.float32)
        for row, column, stamp in zip((y + edge).astype(int), (x + edge).astype(int), stamps, strict=True):
            window = layer[row - reach : row + reach + 1, column - reach : column + reach + 1]
            np.maximum(window, stamp, out=window)
        return layer[edge:-edge, edge:-edge]


def _normal(brush: Brush) -> Tissue:
    """Draw round glands with a ring of basal nuclei and goblet vacuoles, in cell-rich lamina propria."""
    loose, spacing = brush.uniform(0.0, 0.5), brush.uniform(105.0, 165.0)
    across, along = brush.directed(30.0)
    eosin = brush.at("fiber", across, along) * 0.12 + brush.crop("web") * 0.2 + 0.55 - 0.7 * loose
    eosin = np.maximum(eosin * ramp(brush.crop("mottle"), -1.8 + 2.0 * loose, -1.0 + 2.4 * loose), 0.0)
    y, x = np.indices((brush.size, brush.size), dtype=np.float32)
    reach = np.full_like(y, 9.0)  # 0 at the center of the nearest gland, 1 on its outline
    start = brush.rng.random(2) * spacing
    for row in np.arange(int(brush.size / spacing) + 3):
        for column in np.arange(int(brush.size / spacing) + 3):
            wobble = brush.rng.normal(0.0, 0.07 * spacing, 2) - start
            dy = y - float((row - 0.5) * spacing * 0.9 + wobble[0])
            dx = x - float((column - 0.5 + 0.5 * (row % 2)) * spacing + wobble[1])
            radius, angle = brush.uniform(0.33, 0.43) * spacing, brush.uniform(0.0, np.pi)
            long = (dx * cos(angle) + dy * sin(angle)) / (1.0 + 0.5 * float(brush.rng.beta(1.0, 2.5)))
            reach = np.minimum(reach, np.hypot(long, dy * cos(angle) - dx * sin(angle)) / radius)
    reach = (reach + brush.crop("blob") * 0.035).astype(np.float32)
    lumen = brush.uniform(0.05, 0.3)
    body = ramp(reach, 1.06, 0.99)
    around = (1.0 - ramp(reach, 1.16, 1.05) * 0.55) * (1.0 - body)
    cytoplasm = (reach * 0.15 + brush.uniform(0.30, 0.65)) * ramp(reach, lumen, lumen + 0.06) * body
    hematoxylin = eosin * around * brush.uniform(0.15, 0.35) + cytoplasm * 0.42
    eosin = eosin * around + cytoplasm
    inside, cells = (reach > 0.35) & (reach < 0.78), (reach > 0.83) & (reach < 0.94)
    goblets = brush.nuclei("vacuole", 17.0, inside, brush.uniform(0.4, 1.0), along=reach)
    nuclei = brush.nuclei("columnar", brush.uniform(7.0, 9.0), cells, along=reach)
    for kind in ("lymphocyte", "plasma", "spindle"):
        nuclei = _over(nuclei, brush.nuclei(kind, brush.uniform(24.0, 36.0), reach > 1.1))
    clear = 1.0 - 0.92 * goblets
    mucin = goblets * (brush.crop("mottle") * 0.04 + brush.uniform(0.05, 0.22))
    return hematoxylin * clear + mucin, eosin * clear, nuclei


def _stroma(brush: Brush) -> Tissue:
    """Draw wavy collagen with clefts and sparse spindle nuclei."""
    return _fibers(
        brush, "spindle", brush.uniform(6.0, 24.0), brush.uniform(0.32, 0.85), brush.uniform(0.2, 1.1)
    )


def _muscle(brush: Brush) -> Tissue:
    """Draw straighter, denser fibers with cigar-shaped nuclei."""
    return _fibers(
        brush, "cigar", brush.uniform(2.0, 14.0), brush.uniform(0.6, 1.0), brush.uniform(0.0, 0.75)
    )


def _fibers(brush: Brush, kind: str, wave: float, tone: float, clefts: float) -> Tissue:
    across, along = brush.directed(wave)
    across = across + brush.crop("mottle") * (wave / 12)
    eosin = brush.at("fiber", across, along) * brush.uniform(0.06, 0.16) + tone
    eosin += brush.at("fiber", across * 2.4, along * 2.0) * 0.08
    eosin += brush.at("strand", across * 1.6, along * 3.0) * (wave / 120)
    gaps = ramp(brush.at("fiber", across * 0.62, along * 0.8), -3.1 + 1.3 * clefts, -2.5 + 1.6 * clefts)
    eosin = np.maximum(eosin * gaps, 0.02)
    immune = brush.nuclei("lymphocyte", 30.0, share=brush.uniform(-0.4, 0.3))
    nuclei = _over(brush.nuclei(kind, brush.uniform(20.0, 40.0), along=along), immune)
    return eosin * brush.uniform(0.06, 0.25), eosin, nuclei


def _tumor(brush: Brush) -> Tissue:
    """Draw crowded, irregular glands or sheets with large, uneven, dark nuclei."""
    stretch, sheet = brush.uniform(0.9, 1.9), brush.chance(0.3)
    across, along = brush.directed(10.0, stretch)
    depth = brush.at("blob", across, along * brush.uniform(0.5, 1.0))
    edge = -2.2 if sheet else brush.uniform(-1.1, -0.3)
    lumen = brush.uniform(2.0, 2.8) if sheet else brush.uniform(0.7, 1.9)
    filled = ramp(depth, lumen + 0.1, lumen)
    cell = brush.crop("mottle") * 0.07 + brush.crop("grain") * 0.05 + brush.uniform(0.42, 0.8)
    cell *= ramp(depth, edge - 0.12, edge + 0.05) * filled
    stroma = brush.at("fiber", across * stretch, along * stretch) * 0.15 + brush.uniform(0.15, 0.6)
    eosin = cell + np.maximum(stroma, 0.0) * ramp(depth, edge + 0.02, edge - 0.3)
    cells = (depth > edge + 0.1) & (depth < lumen - 0.15)
    nuclei = brush.nuclei("tumor", brush.uniform(12.0, 17.0), cells, along=0.0 if sheet else depth)
    for kind in ("lymphocyte", "spindle"):
        nuclei = _over(nuclei, brush.nuclei(kind, 28.0, depth < edge - 0.15))
    return cell * brush.uniform(0.35, 0.65), eosin, nuclei


def _mucus(brush: Brush) -> Tissue:
    """Draw pale streaming mucin with thin threads and few floating cells."""
    across, along = brush.directed(brush.uniform(8.0, 34.0))
    across = across + brush.crop("mottle") * brush.uniform(1.0, 4.0)
    thread = brush.at("strand", across * 1.9, along * 2.6) + brush.crop("web") * brush.uniform(0.1, 0.8)
    film = brush.crop("cloud") * 0.09 + brush.at("fiber", across, along) * brush.uniform(0.03, 0.10)
    film = np.maximum(film + brush.uniform(0.05, 0.40), 0.0)
    tint = brush.uniform(0.25, 0.8)  # bluish to pinkish
    hematoxylin = film * tint + thread * brush.uniform(0.05, 0.28)
    eosin = film * (1.05 - tint) + thread * brush.uniform(0.05, 0.22)
    nuclei = brush.nuclei("lymphocyte", 40.0, share=brush.uniform(0.0, 0.4))
    if brush.chance(0.5):  # a septum or floating tumor cells
        island = brush.crop("cloud")
        nuclei = _over(nuclei, brush.nuclei("tumor" if brush.chance(0.5) else "spindle", 19.0, island > 1.5))
        eosin += ramp(island, 1.2, 1.6) * brush.uniform(0.3, 0.6)
    return hematoxylin, eosin, nuclei


def _lymphocytes(brush: Brush) -> Tissue:
    """Draw densely packed small, round, dark nuclei with hardly any cytoplasm."""
    dense = brush.uniform(0.0, 1.0)
    across, along = brush.directed(25.0)
    gap = brush.at("fiber", across * 0.8, along * 1.6)
    tissue = ramp(gap, -2.6, -0.8 - 0.6 * dense)
    eosin = brush.crop("web") * 0.25 + brush.crop("grain") * 0.05 + 0.04 + 0.35 * dense
    eosin = np.maximum(eosin * ramp(brush.crop("mottle"), -0.6 - 1.8 * dense, 0.2) * tissue, 0.0)
    spacing, plasma = 13.0 - 3.2 * dense, brush.uniform(0.0, 0.4)
    nuclei = _over(
        brush.nuclei("lymphocyte", spacing, gap > -1.4, share=1.0 - plasma),
        brush.nuclei("plasma", spacing, gap > -1.4, share=plasma),
        brush.nuclei("tumor" if brush.chance(0.4) else "spindle", 50.0, share=brush.uniform(-0.6, 0.5)),
    )
    return tissue * (0.05 + 0.25 * dense), eosin, nuclei


def _debris(brush: Brush) -> Tissue:
    """Draw pink, amorphous, granular necrosis with nuclear dust, ghost cells and cracks."""
    across, along = brush.directed(45.0, brush.uniform(1.0, 1.6))
    patch = brush.at("mottle", across, along)
    eosin = patch * brush.uniform(0.06, 0.20) + brush.crop("cloud") * 0.10 + brush.uniform(0.40, 0.85)
    eosin += brush.crop("grain") * brush.uniform(0.06, 0.16)
    broken = brush.at("blob", along, across) + patch * brush.uniform(0.2, 0.6)
    whole = ramp(broken, level := brush.uniform(-2.6, -1.0), level + brush.uniform(0.3, 1.0))
    whole *= 1.0 - brush.at("web", across * 0.5, along * 0.5) * brush.uniform(0.0, 0.9)
    eosin = np.maximum(eosin * whole, 0.0)
    hematoxylin = ramp(brush.crop("mottle"), -0.8, 2.5) * whole * brush.uniform(0.15, 0.75) + eosin * 0.12
    nuclei = _over(
        brush.nuclei("fragment", brush.uniform(11.0, 17.0), whole > 0.4, share=brush.uniform(0.25, 0.85)),
        brush.nuclei("ghost", brush.uniform(17.0, 34.0), whole > 0.4),
        brush.nuclei("plasma", 30.0, share=brush.uniform(-0.5, 0.5)),
    )
    return hematoxylin, eosin, nuclei


def _background(brush: Brush) -> Tissue:
    """Draw nearly white glass with a faint veil, dust, and sometimes a shred of tissue."""
    veil = brush.crop("cloud") * brush.uniform(0.0, 0.02) + brush.crop("grain") * brush.uniform(0.0, 0.02)
    eosin = np.maximum(veil + brush.uniform(0.0, 0.14), 0.0)
    hematoxylin = eosin * brush.uniform(0.2, 1.4)
    nuclei = brush.nuclei("fragment", 50.0, share=brush.uniform(-0.3, 0.4))
    if brush.chance(0.35):  # a hair or a fold of the mounting medium
        thread = brush.at("strand", *brush.directed(40.0, 2.0)) * ramp(brush.crop("blob"), 0.9, 1.6)
        eosin += thread * brush.uniform(0.05, 0.4)
    return hematoxylin, eosin, nuclei


def _fat(brush: Brush) -> Tissue:
    """Draw large empty cells with thin pink membranes and a rare flattened nucleus."""
    across, along = brush.directed(8.0, brush.uniform(0.75, 1.6))
    border = brush.at("fat", across, along + brush.crop("cloud") * 8.0)
    width = np.maximum(brush.crop("mottle") * 0.8 + brush.uniform(1.4, 3.0), 0.5)
    membrane = ramp(border / width, 1.3, 0.3) * ramp(brush.crop("cloud"), -1.6, -0.9)
    eosin = membrane * brush.uniform(0.35, 0.85)
    if brush.chance(0.65):  # a membrane seen flat: a translucent sheet
        sheet = ramp(brush.crop("blob"), brush.uniform(0.5, 1.5), 1.8)
        eosin += np.maximum(sheet * (brush.crop("grain") * 0.1 + brush.uniform(0.08, 0.28)), 0.0)
    nuclei = brush.nuclei("spindle", 15.0, border < 2.0, share=brush.uniform(0.03, 0.22))
    if brush.chance(0.45):  # a corner of fibrous tissue
        corner = ramp(brush.crop("cloud"), brush.uniform(0.8, 1.6), 2.0)
        eosin = _over(eosin, corner * (brush.at("fiber", across * 1.5, along) * 0.15 + 0.6))
        nuclei = _over(nuclei, brush.nuclei("spindle", 21.0, corner > 0.5, along=along))
    return membrane * brush.uniform(0.10, 0.45), eosin, nuclei


PAINTERS: dict[str, Callable[[Brush], Tissue]] = {
    "NORM": _normal,
    "STR": _stroma,
    "TUM": _tumor,
    "MUS": _muscle,
    "MUC": _mucus,
    "LYM": _lymphocytes,
    "DEB": _debris,
    "BACK": _background,
    "ADI": _fat,
}
