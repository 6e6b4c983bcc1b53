"""What classical image analysis says of a region: stains, tissue, nuclei, texture; no weights, no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError

Floats = NDArray[np.float64]

#: name -> how it is called in the tools' answers. The order is that of every table of measurements.
MEASUREMENTS: dict[str, str] = {
    "haematoxylin_mean": "haematoxylin optical density, mean",
    "haematoxylin_sd": "haematoxylin optical density, sd",
    "eosin_mean": "eosin optical density, mean",
    "eosin_sd": "eosin optical density, sd",
    "tissue_share": "share of tissue",
    "nuclei_count": "nuclei, count",
    "nuclei_density": "nuclei per 1000 pixels of tissue",
    "nucleus_area": "area of a nucleus in pixels, median",
    "nucleus_eccentricity": "eccentricity of a nucleus, median",
    "texture_entropy": "entropy of grey levels in bits",
}
#: Light that passes to less than this density is glass.
TISSUE_DENSITY = 0.15
SMALLEST_NUCLEUS = 16


def require_measurements() -> None:
    if find_spec("skimage") is None:
        raise HistobenchError("measuring regions needs scikit-image: pip install 'histobench[consult]'")


def measure(image: NDArray[np.uint8]) -> Floats:
    """The numbers of `MEASUREMENTS` for an RGB region [h, w, 3]; what is not there counts as 0."""
    require_measurements()
    from skimage.color import rgb2gray, rgb2hed
    from skimage.filters import gaussian, threshold_otsu
    from skimage.measure import label, shannon_entropy

    density = -np.log10(np.maximum(image.astype(np.float64), 1) / 255).mean(axis=2)
    tissue = density > TISSUE_DENSITY
    stains = rgb2hed(image)
    haematoxylin, eosin = stains[..., 0], stains[..., 1]
    smooth = gaussian(haematoxylin, sigma=1.0)
    pixels = int(tissue.sum())
    areas = eccentricities = np.zeros(0)
    if pixels and float(np.ptp(smooth[tissue])) > 0:
        spots: Any = label(tissue & (smooth > threshold_otsu(smooth[tissue])))
        areas, eccentricities = _shapes(spots)
    return np.array(
        [
            *_mean_and_sd(haematoxylin[tissue]),
            *_mean_and_sd(eosin[tissue]),
            pixels / tissue.size,
            len(areas),
            1000 * len(areas) / pixels if pixels else 0.0,
            float(np.median(areas)) if len(areas) else 0.0,
            float(np.median(eccentricities)) if len(areas) else 0.0,
            float(shannon_entropy(np.rint(rgb2gray(image) * 255).astype(np.uint8))),
        ]
    )


def _shapes(spots: NDArray[np.int64]) -> tuple[Floats, Floats]:
    y, x = np.nonzero(spots)
    spot = spots[y, x]
    area = np.bincount(spot).astype(np.float64)
    large = np.flatnonzero(area >= SMALLEST_NUCLEUS)

    def mean(values: NDArray[Any]) -> Floats:
        return np.asarray(np.bincount(spot, values, minlength=len(area)) / np.maximum(area, 1))

    dy, dx = y - mean(y)[spot], x - mean(x)[spot]
    yy, xx, xy = (mean(product)[large] for product in (dy * dy, dx * dx, dx * dy))
    spread = np.sqrt((yy - xx) ** 2 + 4 * xy**2)
    longest, shortest = (yy + xx + spread) / 2, np.maximum((yy + xx - spread) / 2, 0)
    return area[large], np.sqrt(1 - shortest / np.maximum(longest, 1e-12))


def measurement_text(values: Sequence[float] | Floats) -> str:
    return "\n".join(
        f"{words}: {_short(value)}" for words, value in zip(MEASUREMENTS.values(), values, strict=True)
    )


def typical_text(label: str, values: Floats) -> str:
    lines = [f"{label}: {len(values)} training regions"]
    low, high = np.quantile(values, [0.05, 0.95], axis=0)
    for column, words in enumerate(MEASUREMENTS.values()):
        each = values[:, column]
        lines.append(
            f"{words}: mean {_short(each.mean())}, sd {_short(each.std())}, "
            f"5-95 % {_short(low[column])} to {_short(high[column])}"
        )
    return "\n".join(lines)


def read_measurements(text: str) -> Floats:
    shown: Mapping[str, str] = dict(line.rsplit(": ", 1) for line in text.splitlines() if ": " in line)
    return np.array([float(shown[words]) for words in MEASUREMENTS.values()])


def as_shown(values: Floats) -> Floats:
    return np.array([read_measurements(measurement_text(row)) for row in values]).reshape(values.shape)


def _mean_and_sd(values: Floats) -> tuple[float, float]:
    return (float(values.mean()), float(values.std())) if len(values) else (0.0, 0.0)


def _short(value: float) -> str:
    return f"{float(value):.3g}" if abs(value) < 1000 else f"{float(value):.0f}"
