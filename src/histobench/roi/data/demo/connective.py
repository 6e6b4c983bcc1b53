"""Painters of the fibrous and fatty classes: muscle, stroma, mucus, fat."""

from __future__ import annotations

import numpy as np

from histobench.roi.data.demo.brush import Brush, ramp
from histobench.roi.data.demo.fields import Array, fields
from histobench.roi.data.demo.slide import Tissue


def paint_muscle(brush: Brush) -> Tissue:
    """MUS: parallel pink fibres with cigar-shaped nuclei along them; now and then cut across."""
    if brush.chance(0.12):
        return _muscle_across(brush)
    bank, rng = fields(), brush.rng
    angle = brush.uniform(0.0, np.pi)
    across, along = brush.directed(angle, wave=brush.uniform(2.0, 14.0))
    eosin = bank.fibre.at(across, along) * np.float32(brush.uniform(0.06, 0.14))
    eosin += bank.fibre.at(across * np.float32(2.3), along * np.float32(1.7)) * np.float32(0.06)
    eosin += np.float32(brush.uniform(0.60, 1.0))
    cleft = _clefts(brush, across, along, brush.uniform(0.0, 0.75))
    eosin *= cleft
    np.maximum(eosin, 0.0, out=eosin)
    haematoxylin = eosin * np.float32(brush.uniform(0.05, 0.18))

    y, x = brush.points(brush.uniform(24.0, 40.0), jitter=0.35)
    direction = brush.slope(across, y, x) + np.float32(np.pi / 2)
    brush.press("cigar", y, x, angle=direction, spread=0.10)
    if brush.chance(0.35):
        _immune(brush, int(brush.uniform(3, 14)))
    if brush.chance(0.12):
        _vessel(brush, eosin, haematoxylin)
    _capillary_blood(brush, rng, 0.12)
    return brush.finish(haematoxylin, eosin)


def _muscle_across(brush: Brush) -> Tissue:
    """Fibre bundles cut across: small polygons with a thin pale seam."""
    bank = fields()
    across, along = brush.directed(brush.uniform(0.0, np.pi), wave=6.0, stretch=brush.uniform(0.8, 1.3))
    seam = bank.bundle.at(across, along)
    eosin = ramp(seam, -0.6, 1.6)
    eosin *= np.float32(brush.uniform(0.55, 0.95))
    eosin += bank.grain.crop(brush.rng, brush.size) * np.float32(0.05)
    eosin *= ramp(bank.mottle.crop(brush.rng, brush.size), -2.6, -1.6)
    haematoxylin = eosin * np.float32(brush.uniform(0.06, 0.16))
    y, x = brush.points(brush.uniform(26.0, 38.0), jitter=0.35)
    brush.press("plasma", y, x)
    return brush.finish(haematoxylin, np.maximum(eosin, 0.0))


def paint_stroma(brush: Brush) -> Tissue:
    """STR: wavy collagen with sparse spindle nuclei, clefts and a few immune cells."""
    bank, rng = fields(), brush.rng
    across, along = brush.directed(brush.uniform(0.0, np.pi), wave=brush.uniform(6.0, 24.0))
    across += bank.mottle.crop(rng, brush.size) * np.float32(brush.uniform(0.5, 2.5))
    eosin = bank.fibre.at(across, along) * np.float32(brush.uniform(0.06, 0.18))
    eosin += bank.fibre.at(across * np.float32(2.5), along * np.float32(2.1)) * np.float32(0.10)
    eosin += bank.strand.at(across * np.float32(1.6), along * np.float32(3.0)) * np.float32(0.15)
    eosin += np.float32(brush.uniform(0.32, 0.85))
    eosin *= _clefts(brush, across, along, brush.uniform(0.2, 1.1))
    np.maximum(eosin, 0.02, out=eosin)
    haematoxylin = eosin * np.float32(brush.uniform(0.08, 0.32))

    y, x = brush.points(brush.uniform(20.0, 42.0), jitter=0.4)
    direction = brush.slope(across, y, x) + np.float32(np.pi / 2)
    brush.press("spindle", y, x, angle=direction, spread=0.28)
    if brush.chance(0.5):
        _immune(brush, int(brush.uniform(4, 36)))
    if brush.chance(0.18):
        _vessel(brush, eosin, haematoxylin)
    _capillary_blood(brush, rng, 0.12)
    return brush.finish(haematoxylin, eosin)


def paint_mucus(brush: Brush) -> Tissue:
    """MUC: pale streaming mucin with thin threads, few floating cells, sometimes a septum."""
    bank, rng = fields(), brush.rng
    across, along = brush.directed(brush.uniform(0.0, np.pi), wave=brush.uniform(8.0, 34.0))
    across += bank.mottle.crop(rng, brush.size) * np.float32(brush.uniform(1.0, 4.0))
    thread = bank.strand.at(across * np.float32(1.9), along * np.float32(2.6))
    thread += bank.web.crop(rng, brush.size) * np.float32(brush.uniform(0.1, 0.8))
    film = bank.cloud.crop(rng, brush.size) * np.float32(0.09)
    film += bank.fibre.at(across, along) * np.float32(brush.uniform(0.03, 0.10))
    film += np.float32(brush.uniform(0.05, 0.40))
    np.maximum(film, 0.0, out=film)
    tint = brush.uniform(0.25, 0.8)  # bluish to pinkish
    haematoxylin = film * np.float32(tint)
    haematoxylin += thread * np.float32(brush.uniform(0.05, 0.28))
    eosin = film * np.float32(1.05 - tint)
    eosin += thread * np.float32(brush.uniform(0.05, 0.22))
    if brush.chance(0.45):
        septum = _band(brush, brush.uniform(0.08, 0.22))
        eosin += septum * np.float32(brush.uniform(0.3, 0.6))
        haematoxylin += septum * np.float32(0.12)
        y, x = brush.points(20.0, jitter=0.4)
        keep = brush.look(septum, y, x) > 0.5
        angle = brush.slope(septum, y[keep], x[keep]) + np.float32(np.pi / 2)
        brush.press("spindle", y[keep], x[keep], angle=angle, spread=0.4)
    _immune(brush, int(brush.uniform(0, 16)))
    if brush.chance(0.3):
        _cluster(brush, haematoxylin, eosin)
    if brush.chance(0.3):
        lake = ramp(bank.blob.crop(rng, brush.size), 1.5, 1.25)
        eosin *= lake
        haematoxylin *= lake
    _capillary_blood(brush, rng, 0.15)
    return brush.finish(haematoxylin, eosin)


def paint_fat(brush: Brush) -> Tissue:
    """ADI: large empty cells with thin pink membranes and a rare flattened nucleus."""
    bank, rng = fields(), brush.rng
    across, along = brush.directed(brush.uniform(0.0, np.pi), stretch=brush.uniform(0.75, 1.6))
    bend = bank.cloud.crop(rng, brush.size)
    across += bend * np.float32(8.0)
    along += bend.T * np.float32(8.0)
    border = bank.fat.at(across, along)
    width = bank.mottle.crop(rng, brush.size) * np.float32(0.8)
    width += np.float32(brush.uniform(1.4, 3.0))
    np.maximum(width, 0.5, out=width)
    membrane = ramp(border / width, 1.3, 0.3)
    membrane *= ramp(bank.cloud.crop(rng, brush.size), -1.6, -0.9)
    eosin = membrane * np.float32(brush.uniform(0.35, 0.85))
    haematoxylin = membrane * np.float32(brush.uniform(0.10, 0.45))
    if brush.chance(0.65):  # a membrane seen flat: a translucent sheet
        sheet = ramp(bank.blob.crop(rng, brush.size), brush.uniform(0.5, 1.5), 1.8)
        sheet *= bank.grain.crop(rng, brush.size) * np.float32(0.1) + np.float32(brush.uniform(0.08, 0.28))
        eosin += np.maximum(sheet, 0.0)
    if brush.chance(0.45):
        corner = ramp(bank.cloud.crop(rng, brush.size), brush.uniform(0.8, 1.6), 2.0)
        fibre = bank.fibre.at(across * np.float32(1.5), along) * np.float32(0.15) + np.float32(0.6)
        eosin = np.maximum(eosin, corner * fibre)
        y, x = brush.points(21.0, jitter=0.4)
        keep = brush.look(corner, y, x) > 0.5
        angle = brush.slope(across, y[keep], x[keep]) + np.float32(np.pi / 2)
        brush.press("spindle", y[keep], x[keep], angle=angle, spread=0.4)
    y, x = brush.points(15.0, jitter=0.4)
    near = brush.look(border, y, x) < 2.0
    near &= brush.rng.random(len(y)) < brush.uniform(0.03, 0.22)
    angle = brush.slope(border, y[near], x[near]) + np.float32(np.pi / 2)
    brush.press("spindle", y[near], x[near], angle=angle)
    return brush.finish(haematoxylin, np.maximum(eosin, 0.0))


def _clefts(brush: Brush, across: Array, along: Array, amount: float) -> Array:
    """A multiplier that opens white gaps along the fibres; `amount` 0 gives none, 1 gives many."""
    gap = fields().fibre.at(across * np.float32(0.62), along * np.float32(0.8))
    return ramp(gap, -3.1 + 1.3 * amount, -2.5 + 1.6 * amount)


def _band(brush: Brush, width: float) -> Array:
    """A wavy strip across the tile, 0..1."""
    y, x = brush.directed(brush.uniform(0.0, np.pi), wave=22.0)
    del x
    middle = float(y[brush.size // 2, brush.size // 2]) + brush.uniform(-0.3, 0.3) * brush.size
    return ramp(np.abs(y - np.float32(middle)), width * brush.size, width * brush.size * 0.6)


def _immune(brush: Brush, count: int) -> None:
    y, x = brush.scattered(count)
    half = len(y) // 2
    brush.press("lymphocyte", y[:half], x[:half])
    brush.press("plasma", y[half:], x[half:])


def _cluster(brush: Brush, haematoxylin: Array, eosin: Array) -> None:
    """A few floating tumour cells."""
    centre = brush.rng.random(2) * brush.size
    count = int(brush.uniform(4, 14))
    y, x = (centre[:, None] + brush.rng.normal(0.0, 13.0, (2, count))).astype(np.float32)
    grid = np.arange(brush.size, dtype=np.float32)
    far = np.sqrt((grid[:, None] - np.float32(centre[0])) ** 2 + (grid[None, :] - np.float32(centre[1])) ** 2)
    body = ramp(far, 34.0, 20.0)
    np.maximum(eosin, body * np.float32(0.55), out=eosin)
    np.maximum(haematoxylin, body * np.float32(0.25), out=haematoxylin)
    brush.press("tumour", y, x)


def _vessel(brush: Brush, eosin: Array, haematoxylin: Array) -> None:
    """A small vessel: an empty oval with a lining and red cells inside."""
    centre = brush.rng.random(2) * brush.size
    radius = brush.uniform(14.0, 36.0)
    aspect = brush.uniform(1.0, 2.2)
    angle = brush.uniform(0.0, np.pi)
    line = np.arange(brush.size, dtype=np.float32)
    dy, dx = line[:, None] - np.float32(centre[0]), line[None, :] - np.float32(centre[1])
    along = (dx * np.float32(np.cos(angle)) + dy * np.float32(np.sin(angle))) * np.float32(1 / aspect)
    across = dy * np.float32(np.cos(angle)) - dx * np.float32(np.sin(angle))
    far = np.sqrt(along * along + across * across)
    wall = ramp(far, radius - 1.5, radius + 1.5)
    eosin *= wall
    haematoxylin *= wall
    turn = np.arange(0.0, 2 * np.pi, 17.0 / radius, dtype=np.float32)
    rim = np.stack([np.sin(turn), np.cos(turn) * aspect]).astype(np.float32) * np.float32(radius)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    y = np.float32(centre[0]) + rim[1] * sin + rim[0] * cos
    x = np.float32(centre[1]) + rim[1] * cos - rim[0] * sin
    tangent = np.arctan2(np.gradient(y), np.gradient(x)).astype(np.float32)
    brush.press("spindle", y, x, angle=tangent, spread=0.1)
    count = int(radius * radius * aspect / 60 * brush.uniform(0.2, 1.6))
    spot = brush.rng.normal(0.0, radius * 0.42, (2, count)).astype(np.float32)
    brush.bleed(
        np.float32(centre[0]) + spot[1] * sin * np.float32(aspect) + spot[0] * cos,
        np.float32(centre[1]) + spot[1] * cos * np.float32(aspect) - spot[0] * sin,
    )


def _capillary_blood(brush: Brush, rng: np.random.Generator, probability: float) -> None:
    """A short row of red cells."""
    if brush.blood is not None or not brush.chance(probability):
        return
    count = int(brush.uniform(3, 14))
    start = rng.random(2) * brush.size
    angle = brush.uniform(0.0, 2 * np.pi)
    steps = np.arange(count) * 6.0
    wobble = rng.normal(0.0, 3.0, (2, count))
    brush.bleed(
        (start[0] + steps * np.sin(angle) + wobble[0]).astype(np.float32),
        (start[1] + steps * np.cos(angle) + wobble[1]).astype(np.float32),
    )
