"""Cell nuclei and vacuoles: an atlas of small stamps, and the loop that presses them onto a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from histobench.roi.data.demo.fields import Array

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
