"""Painters of the classes without architecture: lymphocytes, debris, background."""

from __future__ import annotations

import numpy as np

from histobench.roi.data.demo.brush import Brush, ramp
from histobench.roi.data.demo.fields import fields
from histobench.roi.data.demo.slide import Tissue


def paint_lymphocytes(brush: Brush) -> Tissue:
    """LYM: densely packed small, round, dark nuclei with hardly any cytoplasm."""
    bank, rng, size = fields(), brush.rng, brush.size
    dense = brush.uniform(0.0, 1.0)
    across, along = brush.directed(brush.uniform(0.0, np.pi), wave=25.0)
    eosin = bank.web.crop(rng, size) * np.float32(0.25)
    eosin += bank.grain.crop(rng, size) * np.float32(0.05)
    eosin += np.float32(0.04 + 0.35 * dense)
    eosin *= ramp(bank.mottle.crop(rng, size), -2.4 + 1.8 * (1 - dense), 0.2)
    gap = bank.fibre.at(across * np.float32(0.8), along * np.float32(1.6))
    open_space = ramp(gap, -2.6, -1.4 + 0.6 * (1 - dense))
    eosin *= open_space
    np.maximum(eosin, 0.0, out=eosin)
    haematoxylin = open_space * np.float32(0.05 + 0.25 * dense)

    y, x = brush.points(10.6 + 3.2 * (1 - dense), jitter=0.22)
    keep = brush.look(gap, y, x) > -1.4
    thin = brush.look(bank.cloud.crop(rng, size), y, x)
    keep &= thin * 0.25 + rng.random(len(y)) > brush.uniform(0.0, 0.2)
    y, x = y[keep], x[keep]
    mixed = int(len(y) * brush.uniform(0.55, 1.0))
    order = rng.permutation(len(y))
    y, x = y[order], x[order]
    brush.press("lymphocyte", y[:mixed], x[:mixed])
    brush.press("plasma", y[mixed:], x[mixed:])
    if brush.chance(0.4):
        y, x = brush.scattered(int(brush.uniform(3, 15)))
        brush.press("tumour" if brush.chance(0.4) else "spindle", y, x)
    return brush.finish(haematoxylin, eosin)


def paint_debris(brush: Brush) -> Tissue:
    """DEB: pink, amorphous, granular necrosis with nuclear dust, ghost cells and cracks."""
    bank, rng, size = fields(), brush.rng, brush.size
    across, along = brush.directed(brush.uniform(0.0, np.pi), wave=45.0, stretch=brush.uniform(1.0, 1.6))
    patch = bank.mottle.at(across, along)
    eosin = patch * np.float32(brush.uniform(0.06, 0.20))
    eosin += bank.cloud.crop(rng, size) * np.float32(0.10)
    eosin += bank.grain.crop(rng, size) * np.float32(brush.uniform(0.06, 0.16))
    eosin += np.float32(brush.uniform(0.40, 0.85))
    broken = bank.blob.at(along, across)
    broken += patch * np.float32(brush.uniform(0.2, 0.6))  # ragged, unlike the smooth lumen of a gland
    level = brush.uniform(-2.6, -1.0)
    whole = ramp(broken, level, level + brush.uniform(0.3, 1.0))
    crack = bank.web.at(across * np.float32(0.5), along * np.float32(0.5))
    whole *= 1.0 - crack * np.float32(brush.uniform(0.0, 0.9))
    eosin *= whole
    np.maximum(eosin, 0.0, out=eosin)
    haematoxylin = ramp(bank.mottle.crop(rng, size), -0.8, 2.5)
    haematoxylin *= whole * np.float32(brush.uniform(0.15, 0.75))
    haematoxylin += eosin * np.float32(0.12)

    y, x = brush.points(brush.uniform(11.0, 17.0), jitter=0.5)
    keep = brush.look(whole, y, x) > 0.4
    keep &= rng.random(len(y)) < brush.uniform(0.25, 0.85)
    brush.press("fragment", y[keep], x[keep])
    y, x = brush.points(brush.uniform(17.0, 34.0), jitter=0.45)
    keep = brush.look(whole, y, x) > 0.4
    brush.press("ghost", y[keep], x[keep])
    if brush.chance(0.5):
        y, x = brush.scattered(int(brush.uniform(5, 45)))
        brush.press("plasma", y, x)
    return brush.finish(haematoxylin, eosin)


def paint_background(brush: Brush) -> Tissue:
    """BACK: glass. Nearly white, with a faint veil, dust, and sometimes a shred of tissue."""
    bank, rng, size = fields(), brush.rng, brush.size
    veil = bank.cloud.crop(rng, size) * np.float32(brush.uniform(0.0, 0.02))
    veil += bank.grain.crop(rng, size) * np.float32(brush.uniform(0.0, 0.02))
    veil += np.float32(brush.uniform(0.0, 0.14))
    eosin = np.maximum(veil, 0.0)
    haematoxylin = eosin * np.float32(brush.uniform(0.2, 1.4))
    if brush.chance(0.5):
        y, x = brush.scattered(int(brush.uniform(1, 9)))
        brush.press("fragment", y, x)
    if brush.chance(0.35):  # a hair or a fold of the mounting medium
        across, along = brush.directed(brush.uniform(0.0, np.pi), wave=40.0, stretch=2.0)
        thread = bank.strand.at(across, along) * ramp(bank.blob.crop(rng, size), 0.9, 1.6)
        eosin += thread * np.float32(brush.uniform(0.05, 0.4))
    if brush.chance(0.2):
        shred = ramp(bank.cloud.crop(rng, size), 1.7, 2.1)
        eosin += shred * np.float32(brush.uniform(0.1, 0.5))
        y, x = brush.points(18.0, jitter=0.4)
        keep = brush.look(shred, y, x) > 0.6
        brush.press("ghost", y[keep], x[keep])
    return brush.finish(haematoxylin, eosin)
