"""Painters of the epithelial classes: normal colon mucosa and tumour."""

from __future__ import annotations

import numpy as np

from histobench.roi.data.demo.brush import Brush, ramp
from histobench.roi.data.demo.fields import Array, fields
from histobench.roi.data.demo.nuclei import inside, layer, press
from histobench.roi.data.demo.slide import Tissue


def paint_normal(brush: Brush) -> Tissue:
    """NORM: round glands with a ring of basal nuclei and goblet vacuoles, in cell-rich lamina propria."""
    bank, rng, size = fields(), brush.rng, brush.size
    loose = brush.uniform(0.0, 0.5)
    across, along = brush.directed(brush.uniform(0.0, np.pi), wave=30.0)
    eosin = bank.fibre.at(across, along) * np.float32(0.12)
    eosin += bank.web.crop(rng, size) * np.float32(0.2)
    eosin += np.float32(0.55 - 0.7 * loose)
    eosin *= ramp(bank.mottle.crop(rng, size), -1.8 + 2.0 * loose, -1.0 + 2.4 * loose)
    np.maximum(eosin, 0.0, out=eosin)
    haematoxylin = eosin * np.float32(brush.uniform(0.15, 0.35))

    stroma_y, stroma_x = brush.points(brush.uniform(15.0, 24.0), jitter=0.4)
    crypts = _crypts(brush)
    free = np.ones(len(stroma_y), bool)
    for crypt in crypts:
        free &= crypt.reach(stroma_y, stroma_x) > 1.06
    stroma_y, stroma_x = stroma_y[free], stroma_x[free]
    third = len(stroma_y) // 3
    brush.press("lymphocyte", stroma_y[:third], stroma_x[:third])
    brush.press("plasma", stroma_y[third : 2 * third], stroma_x[third : 2 * third])
    brush.press("spindle", stroma_y[2 * third :], stroma_x[2 * third :])

    cytoplasm = brush.uniform(0.40, 0.75)
    for crypt in crypts:
        crypt.paint(brush, haematoxylin, eosin, cytoplasm)
    y, x, outward = _rings(brush, crypts, depth=6.5, spacing=brush.uniform(8.0, 11.0))
    brush.press("columnar", y, x, angle=outward, spread=0.25)
    vacuoles = layer(size)
    goblets = brush.uniform(0.35, 1.0)
    for depth in (19.0, 34.0):
        y, x, outward = _rings(brush, crypts, depth=depth, spacing=17.0)
        keep = rng.random(len(y)) < goblets
        press(vacuoles, "vacuole", y[keep], x[keep], rng=rng, angle=outward[keep], spread=0.2)
    clear = inside(vacuoles)
    mucin = bank.mottle.crop(rng, size) * np.float32(0.04) + np.float32(brush.uniform(0.05, 0.22))
    kept = 1.0 - clear * np.float32(0.92)
    eosin *= kept
    haematoxylin *= kept
    haematoxylin += clear * mucin
    return brush.finish(haematoxylin, np.maximum(eosin, 0.0))


class _Crypt:
    """One gland: an ellipse with centre, half axes and direction."""

    def __init__(self, brush: Brush, y: float, x: float, radius: float) -> None:
        stretch = 1.0 + 0.9 * float(brush.rng.beta(1.0, 2.5))
        self.y, self.x = y, x
        self.long, self.short = radius * stretch, radius
        angle = brush.uniform(0.0, np.pi)
        self.cos, self.sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))

    def reach(self, y: Array, x: Array) -> Array:
        """0 at the centre, 1 on the outline."""
        dy, dx = y - np.float32(self.y), x - np.float32(self.x)
        along = (dx * self.cos + dy * self.sin) * np.float32(1 / self.long)
        across = (dy * self.cos - dx * self.sin) * np.float32(1 / self.short)
        along *= along
        across *= across
        along += across
        return np.sqrt(along, out=along)

    def paint(self, brush: Brush, haematoxylin: Array, eosin: Array, cytoplasm: float) -> None:
        """Cytoplasm, lumen, and the pale seam around the gland."""
        size = brush.size
        far = int(self.long * 1.16) + 2
        top, bottom = max(0, int(self.y) - far), min(size, int(self.y) + far)
        left, right = max(0, int(self.x) - far), min(size, int(self.x) + far)
        if top >= bottom or left >= right:
            return
        line = np.arange(size, dtype=np.float32)
        reach = self.reach(line[top:bottom, None], line[None, left:right])
        reach += fields().blob.crop(brush.rng, size)[top:bottom, left:right] * np.float32(0.035)
        lumen = brush.uniform(0.05, 0.3)
        tone = reach * np.float32(0.15)
        tone += np.float32(cytoplasm - 0.1)
        tone *= ramp(reach, lumen, lumen + 0.06)
        body = ramp(reach, 1.06, 0.99)
        tone *= body
        around = (1.0 - ramp(reach, 1.16, 1.05) * np.float32(0.55)) * (1.0 - body)
        for stain, share in ((eosin, 1.0), (haematoxylin, 0.42)):
            window = stain[top:bottom, left:right]
            window *= around
            window += tone * np.float32(share)


def _rings(brush: Brush, crypts: list[_Crypt], *, depth: float, spacing: float) -> tuple[Array, Array, Array]:
    """Points `spacing` px apart, `depth` px inside the outline of every gland, and the outward directions."""
    wide = [crypt for crypt in crypts if crypt.short > depth * 1.45]
    shares = np.array([1.0 - depth / crypt.short for crypt in wide])
    axes = np.array([[crypt.long, crypt.short] for crypt in wide]).reshape(-1, 2)
    counts = np.maximum(3, np.rint(np.pi * axes.sum(1) * shares / spacing)).astype(np.int64)
    owner = np.repeat(np.arange(len(wide)), counts)
    total = len(owner)
    step = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    turn = (step + 0.25 * brush.rng.standard_normal(total)) * (2 * np.pi / counts[owner])
    size = shares[owner] * (1.0 + 0.03 * brush.rng.standard_normal(total))
    along = (np.cos(turn) * axes[owner, 0] * size).astype(np.float32)
    across = (np.sin(turn) * axes[owner, 1] * size).astype(np.float32)
    place = np.array([[c.y, c.x, c.cos, c.sin] for c in wide], np.float32).reshape(-1, 4)[owner].T
    up, right = along * place[3] + across * place[2], along * place[2] - across * place[3]
    return place[0] + up, place[1] + right, np.arctan2(up, right)


def _crypts(brush: Brush) -> list[_Crypt]:
    """Glands on a jittered lattice, those that touch the tile."""
    spacing = brush.uniform(105.0, 165.0)
    count = int(brush.size / spacing) + 3
    shift = brush.rng.random(2) * spacing
    crypts = []
    for row in range(count):
        for column in range(count):
            wobble = brush.rng.normal(0.0, 0.07 * spacing, 2)
            y = (row - 0.5) * spacing * 0.9 - shift[0] + wobble[0]
            x = (column - 0.5 + 0.5 * (row % 2)) * spacing - shift[1] + wobble[1]
            radius = brush.uniform(0.33, 0.43) * spacing
            crypt = _Crypt(brush, float(y), float(x), float(radius))
            far = 0.95 * crypt.long
            if -far < y < brush.size + far and -far < x < brush.size + far:
                crypts.append(crypt)
    return crypts


def paint_tumour(brush: Brush) -> Tissue:
    """TUM: crowded, irregular glands or sheets with large, uneven, dark nuclei."""
    bank, rng, size = fields(), brush.rng, brush.size
    stretch = brush.uniform(0.9, 1.9)
    across, along = brush.directed(brush.uniform(0.0, np.pi), wave=10.0, stretch=stretch)
    elongated = brush.uniform(0.5, 1.0)
    depth = bank.blob.at(across, along * np.float32(elongated))
    sheet = brush.chance(0.3)
    edge = -2.2 if sheet else brush.uniform(-1.1, -0.3)
    lumen = brush.uniform(2.0, 2.8) if sheet else brush.uniform(0.7, 1.9)

    epithelium = ramp(depth, edge - 0.12, edge + 0.05)
    filled = ramp(depth, lumen + 0.1, lumen)
    grain = bank.grain.crop(rng, size)
    cell = bank.mottle.crop(rng, size) * np.float32(0.07) + grain * np.float32(0.05)
    cell += np.float32(brush.uniform(0.42, 0.8))
    cell *= epithelium
    cell *= filled
    stroma = bank.fibre.at(across * np.float32(stretch), along * np.float32(stretch)) * np.float32(0.15)
    stroma += np.float32(brush.uniform(0.15, 0.6))
    stroma *= ramp(depth, edge + 0.02, edge - 0.3)  # leaves a pale seam between epithelium and stroma
    eosin = cell + np.maximum(stroma, 0.0)
    haematoxylin = cell * np.float32(brush.uniform(0.35, 0.65))

    spacing = brush.uniform(13.0, 18.5)
    y, x = brush.points(spacing, jitter=0.3)
    value = brush.look(depth, y, x)
    inside = (value > edge + 0.1) & (value < lumen - 0.15)
    if not sheet:  # nuclei sit away from the lumen in better differentiated glands
        polar = brush.uniform(0.0, 0.9)
        inside &= value < edge + (lumen - edge) * (1.0 - 0.45 * polar * rng.random(len(y)))
    direction = brush.slope(depth, y[inside], x[inside])
    spread = 0.9 if sheet else brush.uniform(0.2, 0.5)
    dark = rng.random(len(direction)) < brush.uniform(0.0, 0.8)
    for kind, chosen in (("tumour", ~dark), ("dark_tumour", dark)):
        brush.press(kind, y[inside][chosen], x[inside][chosen], angle=direction[chosen], spread=spread)
    outside = value < edge - 0.15
    outside &= rng.random(len(y)) < 0.5
    half = int(outside.sum()) // 2
    stroma_y, stroma_x = y[outside], x[outside]
    brush.press("lymphocyte", stroma_y[:half], stroma_x[:half])
    brush.press("spindle", stroma_y[half:], stroma_x[half:])
    if brush.chance(0.4):  # dirty necrosis in the lumen
        y, x = brush.points(9.0, jitter=0.5)
        keep = (brush.look(depth, y, x) > lumen + 0.1) & (rng.random(len(y)) < 0.6)
        brush.press("fragment", y[keep], x[keep])
        eosin += (1.0 - filled) * np.maximum(grain * np.float32(0.15) + np.float32(0.25), 0.0)
    return brush.finish(haematoxylin, eosin)
