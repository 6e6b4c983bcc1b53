"""Periodic random fields that every synthetic tile is cut from; made once per process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

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
    cloud = _noise(rng, along=150.0, across=150.0, slope=1.6)
    blob = _band(rng, wavelength=115.0, width=0.30)
    mottle = _band(rng, wavelength=32.0, width=0.5)
    grain = _band(rng, wavelength=6.0, width=0.6)
    fibre = _noise(rng, along=130.0, across=9.0, slope=1.4)
    strand = _ridge(_noise(rng, along=160.0, across=22.0, slope=1.7), 0.16)
    web = _ridge(_band(rng, wavelength=38.0, width=0.6), 0.15)
    return Fields(
        cloud=_field(cloud),
        blob=_field(blob),
        mottle=_field(mottle),
        grain=_field(grain),
        speck=_field(rng.standard_normal((PERIOD, PERIOD)).astype(np.float32)),
        fibre=_field(fibre),
        strand=_field(strand),
        web=_field(web),
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
