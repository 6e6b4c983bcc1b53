"""Stain, scanner and handling applied to images, and the stress test that uses them.

The stress tests have three strengths each; the others are the fourteen transforms of THUNDER's invariance
test, by their published parameters.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter

from histobench.roi.robustness.leaving_out import Measure, mean_without, measured, units_of
from histobench.roi.robustness.site_neighbours import Floats, Ints

Pixels = NDArray[np.uint8]  # [h, w, 3]
Apply = Callable[[Pixels, np.random.Generator], Pixels]

#: Optical density of haematoxylin, eosin and DAB in R, G, B (Ruifrok and Johnston).
_HED = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])
_HED_OFFSET = 3.14159
#: Macenko's reference stains [2 stains, 3 channels] and their concentrations (99th percentile).
_TARGET = np.array([[0.5626, 0.7201, 0.4062], [0.2159, 0.8012, 0.5581]])
_TARGET_TOP = np.array([1.9705, 1.0308])
_BACKGROUND, _ANGLE_PERCENTILE = 0.15, 1.0


@dataclass(frozen=True)
class Perturbation:
    """A named change of an image; `strength` 1 to 3, 0 for THUNDER's transforms, which have one."""

    name: str
    family: str
    strength: int
    apply: Apply


def hed(sigma: float) -> Apply:
    """Each stain's density times U(1 - sigma, 1 + sigma) plus U(-sigma, sigma)."""
    to_stains = np.linalg.inv(_HED)

    def apply(pixels: Pixels, draw: np.random.Generator) -> Pixels:
        density = -np.log((pixels.astype(np.float64) + _HED_OFFSET) / (255 + _HED_OFFSET))
        factor, shift = draw.uniform(1 - sigma, 1 + sigma, 3), draw.uniform(-sigma, sigma, 3)
        stains = density @ to_stains * factor + shift
        return _pixels(np.exp(-(stains @ _HED)) * (255 + _HED_OFFSET) - _HED_OFFSET)

    return apply


def jpeg(quality: int) -> Apply:
    """Written as JPEG of this quality and read again."""

    def apply(pixels: Pixels, draw: np.random.Generator) -> Pixels:
        box = io.BytesIO()
        Image.fromarray(pixels).save(box, "JPEG", quality=quality)
        return np.asarray(Image.open(box).convert("RGB"))

    return apply


def blur(sigma: float) -> Apply:
    return lambda pixels, draw: np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(sigma)))


def brightness(factor: float) -> Apply:
    return lambda pixels, draw: _pixels(pixels * factor)


def scale(factor: float) -> Apply:
    """Tissue `factor` times as large: the middle is cut out, or the edges are mirrored outwards."""

    def apply(pixels: Pixels, draw: np.random.Generator) -> Pixels:
        height, width = pixels.shape[:2]
        h, w = max(1, round(height / factor)), max(1, round(width / factor))
        if factor >= 1:
            top, left = (height - h) // 2, (width - w) // 2
            part = pixels[top : top + h, left : left + w]
        else:
            rows, columns = h - height, w - width
            around = ((rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2), (0, 0))
            part = np.pad(pixels, around, mode="symmetric")
        return _resized(part, width, height)

    return apply


def macenko(top: float) -> Apply:
    """The stains of the image replaced by Macenko's reference, its concentrations times `top`."""

    def apply(pixels: Pixels, draw: np.random.Generator) -> Pixels:
        density = -np.log((pixels.reshape(-1, 3).astype(np.float64) + 1) / 256)
        tissue = density[(density > _BACKGROUND).all(axis=1)]
        if len(tissue) < 100:
            return pixels  # nearly all glass: there is no stain to replace
        _, axes = np.linalg.eigh(np.cov(tissue.T))
        plane = axes[:, 1:] * np.where(axes[0, 1:] < 0, -1, 1)
        angles = np.arctan2(*(tissue @ plane).T)
        low, high = np.percentile(angles, (_ANGLE_PERCENTILE, 100 - _ANGLE_PERCENTILE))
        ends = [plane @ np.array([np.sin(angle), np.cos(angle)]) for angle in (low, high)]
        # Haematoxylin absorbs more red than eosin does.
        stains = np.array(sorted(ends, key=lambda stain: -stain[0] / np.linalg.norm(stain)))
        amounts = np.linalg.lstsq(stains.T, density.T, rcond=None)[0]
        most = np.percentile(amounts, 99, axis=1)
        if (most <= 0).any():
            return pixels  # specks on glass: one of the two stains is not there
        placed = amounts * (_TARGET_TOP * top / most)[:, None]
        # Whatever is brighter than the lamp is white, and need not be computed further.
        light = np.exp(np.minimum(-(placed.T @ _TARGET), 1.0))
        return _pixels((256 * light - 1).reshape(pixels.shape))

    return apply


def _affine(pixels: Pixels, draw: np.random.Generator) -> Pixels:
    """Shift by up to 20 %, scale by 0.8 to 1.2, shear by up to 1 degree; what is new is black."""
    height, width = pixels.shape[:2]
    right, down = draw.uniform(-0.2, 0.2, 2) * (width, height)
    factor, shear = draw.uniform(0.8, 1.2), np.tan(np.radians(draw.uniform(-1, 1)))
    x, y = (width - 1) / 2, (height - 1) / 2
    # Pillow wants the way back: from a place in the result to the place in the image.
    a, b = 1 / factor, -shear / factor
    matrix = (a, b, x - a * (x + right) - b * (y + down), 0.0, a, y - a * (y + down))
    image = Image.fromarray(pixels)
    how = Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
    return np.asarray(image.transform((width, height), *how))


def _blur_15(pixels: Pixels, draw: np.random.Generator) -> Pixels:
    """A Gaussian of 0.1 to 2 pixels, cut off at a width of 15."""
    from scipy.ndimage import gaussian_filter

    sigma = draw.uniform(0.1, 2.0)
    return _pixels(gaussian_filter(pixels.astype(np.float64), (sigma, sigma, 0), radius=(7, 7, 0)))


def _jitter(pixels: Pixels, draw: np.random.Generator) -> Pixels:
    """Brightness, contrast and saturation by 0.5 to 1.5, hue by up to .35 of the circle, in any order."""
    image = Image.fromarray(pixels)
    for step in draw.permutation(4):
        if step == 3:
            hue, saturation, value = image.convert("HSV").split()
            turn = round(draw.uniform(-0.35, 0.35) * 255)
            turned = Image.fromarray(((np.asarray(hue).astype(np.int16) + turn) % 256).astype(np.uint8))
            image = Image.merge("HSV", (turned, saturation, value)).convert("RGB")
        else:
            kind = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[step]
            image = kind(image).enhance(draw.uniform(0.5, 1.5))
    return np.asarray(image)


def _cutout(pixels: Pixels, draw: np.random.Generator) -> Pixels:
    """A black rectangle of the image's shape with 10 to 50 % of its area."""
    height, width = pixels.shape[:2]
    side = np.sqrt(draw.uniform(0.1, 0.5))
    h, w = round(height * side), round(width * side)
    top, left = int(draw.integers(0, height - h + 1)), int(draw.integers(0, width - w + 1))
    changed = pixels.copy()
    changed[top : top + h, left : left + w] = 0
    return changed


def _morphology(kind: str) -> Apply:
    """Grey dilation, erosion, opening or closing with a square of 3 or 5 pixels, each channel alone."""

    def apply(pixels: Pixels, draw: np.random.Generator) -> Pixels:
        from scipy import ndimage

        side = int(draw.choice((3, 5)))
        return np.asarray(getattr(ndimage, f"grey_{kind}")(pixels, size=(side, side, 1)))

    return apply


def _half_crop(pixels: Pixels, draw: np.random.Generator) -> Pixels:
    """One of the four corners or the middle, half as wide and high, brought back to size."""
    height, width = pixels.shape[:2]
    h, w = max(1, height // 2), max(1, width // 2)
    places = ((0, 0), (0, width - w), (height - h, 0), (height - h, width - w), (height // 4, width // 4))
    top, left = places[int(draw.integers(5))]
    return _resized(pixels[top : top + h, left : left + w], width, height)


def _elastic(pixels: Pixels, draw: np.random.Generator) -> Pixels:
    """Every place moved by smoothed noise (sigma 6) times 250 / 2 pixels."""
    from scipy.ndimage import gaussian_filter, map_coordinates

    height, width = pixels.shape[:2]
    moves = [gaussian_filter(draw.uniform(-1, 1, (height, width)), 6) * 125 for _ in range(2)]
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    places = (rows + moves[0], columns + moves[1])
    moved = [map_coordinates(pixels[..., c].astype(np.float64), places, order=1) for c in range(3)]
    return _pixels(np.stack(moved, axis=2))


def _pixels(values: NDArray[np.floating]) -> Pixels:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _resized(pixels: Pixels, width: int, height: int) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


_STRESS: dict[str, tuple[Apply, Apply, Apply]] = {
    "hed": (hed(0.02), hed(0.05), hed(0.1)),
    "macenko": (macenko(1.0), macenko(0.75), macenko(0.5)),
    "jpeg": (jpeg(70), jpeg(40), jpeg(20)),
    "blur": (blur(0.5), blur(1.0), blur(2.0)),
    "brightness": (brightness(0.9), brightness(0.75), brightness(0.6)),
    "larger": (scale(1.1), scale(1.25), scale(1.5)),
    "smaller": (scale(0.9), scale(0.8), scale(0.67)),
}
_THUNDER: dict[str, Apply] = {
    "flip": lambda x, draw: np.ascontiguousarray(x[:, ::-1] if draw.random() < 0.5 else x[::-1]),
    "rotation": lambda x, draw: np.ascontiguousarray(np.rot90(x, int(draw.integers(1, 4)))),
    "affine": _affine,
    "gaussian_blur": _blur_15,
    "colour_jitter": _jitter,
    "gamma": lambda x, draw: _pixels(255 * (x / 255) ** draw.uniform(0.5, 1.5)),
    "hed": hed(0.025),
    "cutout": _cutout,
    **{kind: _morphology(kind) for kind in ("dilation", "erosion", "opening", "closing")},
    "half_crop": _half_crop,
    "elastic": _elastic,
}
STRESS = tuple(
    Perturbation(f"{family}_{strength}", family, strength, apply)
    for family, steps in _STRESS.items()
    for strength, apply in enumerate(steps, start=1)
)
THUNDER = tuple(Perturbation(f"thunder_{name}", name, 0, apply) for name, apply in _THUNDER.items())


#: Features [b, d] of b decoded images.
Encode = Callable[[Sequence[Pixels]], NDArray[np.float32]]


@dataclass(frozen=True)
class Stressed:
    """One perturbation: cosine to the unchanged image, share of changed predictions, loss of accuracy."""

    name: str
    family: str
    strength: int
    cosine: Measure
    flip_rate: Measure
    accuracy_drop: Measure


def stressed_features(
    images: Iterable[tuple[str, Pixels]], changes: Sequence[Perturbation], encode: Encode, *, seed: int
) -> NDArray[np.float32]:
    """Features [1 + changes, n, d] of (name, decoded image): unchanged first, then under each change.

    The random numbers of a change depend on the seed, the change and the image's name: not on other images.
    """
    rows = []
    for name, pixels in images:
        changed = [change.apply(pixels, generator_of(seed, change.name, name)) for change in changes]
        rows.append(encode([pixels, *changed]))
    return np.stack(rows, axis=1)


def stress_measures(
    features: NDArray[np.float32],
    changes: Sequence[Perturbation],
    labels: Ints,
    groups: Ints,
    predicted: Ints,
) -> list[Stressed]:
    """Each change's effect with intervals over groups; `features` [1 + changes, n, d] as above.

    `predicted` [1 + changes, n] are labels by a classifier that was trained on unchanged images.
    """
    units = units_of(groups)
    clean, before = features[0], predicted[0]
    found = []
    for change, moved, after in zip(changes, features[1:], predicted[1:], strict=True):
        terms: dict[str, Floats] = {
            "cosine": _cosine(clean, moved),
            "flip_rate": (after != before).astype(np.float64),
            "accuracy_drop": (before == labels).astype(np.float64) - (after == labels),
        }
        measures = {
            name: measured(
                float(values.mean()),
                mean_without(values, units),
                units,
                within="share" if name == "flip_rate" else "contrast",
            )
            for name, values in terms.items()
        }
        found.append(Stressed(change.name, change.family, change.strength, **measures))
    return found


def _cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> Floats:
    a, b = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray(np.einsum("ij,ij->i", a, b) / np.maximum(lengths, 1e-12))


def generator_of(seed: int, change: str, name: str) -> np.random.Generator:
    """The random numbers of one change of one image."""
    digest = hashlib.sha256(f"{seed}\0{change}\0{name}".encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))
