"""Painters of the nine tissue classes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from histobench.roi.data.demo.drawing import Array, Brush, DrawnTissue, fields, inside, layer, press, ramp


def paint_lymphocytes(brush: Brush) -> DrawnTissue:
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


def paint_debris(brush: Brush) -> DrawnTissue:
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


def paint_background(brush: Brush) -> DrawnTissue:
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


# Painters of the fibrous and fatty classes: muscle, stroma, mucus, fat.


def paint_muscle(brush: Brush) -> DrawnTissue:
    """MUS: parallel pink fibres with cigar-shaped nuclei along them; now and then cut across."""
    if brush.chance(0.12):
        return _muscle_across(brush)
    bank = fields()
    angle = brush.uniform(0.0, np.pi)
    across, along = brush.directed(angle, wave=brush.uniform(2.0, 14.0))
    eosin = bank.fibre.at(across, along) * np.float32(brush.uniform(0.06, 0.14))
    eosin += bank.fibre.at(across * np.float32(2.3), along * np.float32(1.7)) * np.float32(0.06)
    eosin += np.float32(brush.uniform(0.60, 1.0))
    cleft = _clefts(across, along, brush.uniform(0.0, 0.75))
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
    _capillary_blood(brush, 0.12)
    return brush.finish(haematoxylin, eosin)


def _muscle_across(brush: Brush) -> DrawnTissue:
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


def paint_stroma(brush: Brush) -> DrawnTissue:
    """STR: wavy collagen with sparse spindle nuclei, clefts and a few immune cells."""
    bank, rng = fields(), brush.rng
    across, along = brush.directed(brush.uniform(0.0, np.pi), wave=brush.uniform(6.0, 24.0))
    across += bank.mottle.crop(rng, brush.size) * np.float32(brush.uniform(0.5, 2.5))
    eosin = bank.fibre.at(across, along) * np.float32(brush.uniform(0.06, 0.18))
    eosin += bank.fibre.at(across * np.float32(2.5), along * np.float32(2.1)) * np.float32(0.10)
    eosin += bank.strand.at(across * np.float32(1.6), along * np.float32(3.0)) * np.float32(0.15)
    eosin += np.float32(brush.uniform(0.32, 0.85))
    eosin *= _clefts(across, along, brush.uniform(0.2, 1.1))
    np.maximum(eosin, 0.02, out=eosin)
    haematoxylin = eosin * np.float32(brush.uniform(0.08, 0.32))

    y, x = brush.points(brush.uniform(20.0, 42.0), jitter=0.4)
    direction = brush.slope(across, y, x) + np.float32(np.pi / 2)
    brush.press("spindle", y, x, angle=direction, spread=0.28)
    if brush.chance(0.5):
        _immune(brush, int(brush.uniform(4, 36)))
    if brush.chance(0.18):
        _vessel(brush, eosin, haematoxylin)
    _capillary_blood(brush, 0.12)
    return brush.finish(haematoxylin, eosin)


def paint_mucus(brush: Brush) -> DrawnTissue:
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
    _capillary_blood(brush, 0.15)
    return brush.finish(haematoxylin, eosin)


def paint_fat(brush: Brush) -> DrawnTissue:
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


def _clefts(across: Array, along: Array, amount: float) -> Array:
    """A multiplier that opens white gaps along the fibres; `amount` 0 gives none, 1 gives many."""
    gap = fields().fibre.at(across * np.float32(0.62), along * np.float32(0.8))
    return ramp(gap, -3.1 + 1.3 * amount, -2.5 + 1.6 * amount)


def _band(brush: Brush, width: float) -> Array:
    """A wavy strip across the tile, 0..1."""
    y, _ = brush.directed(brush.uniform(0.0, np.pi), wave=22.0)
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


def _capillary_blood(brush: Brush, probability: float) -> None:
    """A short row of red cells."""
    if brush.blood is not None or not brush.chance(probability):
        return
    count = int(brush.uniform(3, 14))
    start = brush.rng.random(2) * brush.size
    angle = brush.uniform(0.0, 2 * np.pi)
    steps = np.arange(count) * 6.0
    wobble = brush.rng.normal(0.0, 3.0, (2, count))
    brush.bleed(
        (start[0] + steps * np.sin(angle) + wobble[0]).astype(np.float32),
        (start[1] + steps * np.cos(angle) + wobble[1]).astype(np.float32),
    )


# Painters of the epithelial classes: normal colon mucosa and tumour.


def paint_normal(brush: Brush) -> DrawnTissue:
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


def paint_tumour(brush: Brush) -> DrawnTissue:
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


#: By class, in the order of the ids.
PAINTERS: dict[str, Callable[[Brush], DrawnTissue]] = {
    "NORM": paint_normal,
    "STR": paint_stroma,
    "TUM": paint_tumour,
    "MUS": paint_muscle,
    "MUC": paint_mucus,
    "LYM": paint_lymphocytes,
    "DEB": paint_debris,
    "BACK": paint_background,
    "ADI": paint_fat,
}
