"""Two-dimensional maps of test images, from the feature files that are still there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.report.payload import packed, write_payload
from histobench.report.table import ImageSet
from histobench.roi.features.feature_rows import read_rows

log = logging.getLogger(__name__)
#: Points of one map, and bytes of feature files that a quick report reads.
MOST_POINTS, MOST_BYTES = 4000, 2 * 2**30


def write_maps(
    site: Path,
    wanted: dict[int, tuple[str, ImageSet]],
    *,
    near: Path,
    thorough: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[int, str]:
    """Maps for runs, given as run -> (feature file, images); returns the key of each run's map.

    Runs of several tasks on the same features share one map. Files that are gone are passed over.
    """
    keys: dict[int, str] = {}
    groups: dict[tuple[Path, str], list[int]] = {}
    sets: dict[str, ImageSet] = {}
    for run, (file, images) in wanted.items():
        places = [Path(file), near / file, near.parent / file] if file else []
        path = next((place for place in places if place.is_file()), None)
        if path is not None:
            groups.setdefault((path.resolve(), images.key), []).append(run)
            sets[images.key] = images
    left = float("inf") if thorough else float(MOST_BYTES)
    for number, ((path, key), runs) in enumerate(groups.items()):
        on_progress(number + 1, len(groups))
        left -= path.stat().st_size
        if left < 0:
            log.warning(
                "maps of %d more feature files are left out; `thorough` draws them", len(groups) - number
            )
            break
        payload = _map_payload(path, sets[key])
        if payload is not None:
            write_payload(site, f"map/{number}", payload)
            keys |= dict.fromkeys(runs, str(number))
    return keys


def _map_payload(path: Path, images: ImageSet) -> dict[str, Any] | None:
    try:
        names, embeddings = read_rows(path)
    except HistobenchError as error:
        log.warning("no map: %s", error)
        return None
    place = {name: k for k, name in enumerate(names)}
    chosen = [k for k, name in enumerate(images.names) if name in place]
    chosen = chosen[:: max(1, -(-len(chosen) // MOST_POINTS))]
    if len(chosen) < 3:
        return None
    rows = embeddings[[place[images.names[k]] for k in chosen]].astype(np.float64)
    points, share = _principal_components(rows)
    note = f"The first two principal components, {100 * share:.0f}% of the variance."
    low, high = points.min(axis=0), points.max(axis=0)
    codes = np.rint((points - low) / np.where(high > low, high - low, 1.0) * 65535).astype(np.uint16)
    axes = {"x": packed(codes[:, 0]), "y": packed(codes[:, 1])}
    return {
        "image": packed(np.array(chosen)),
        "maps": [{"kind": "pca", "label": "PCA", **axes, "note": note}],
    }


def _principal_components(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Find the first two, by subspace iteration (Halko et al. 2011), and their share of the variance."""
    centered = rows - rows.mean(axis=0)
    basis = np.random.default_rng(0).standard_normal((rows.shape[1], min(12, *rows.shape)))
    for _ in range(8):
        basis = centered.T @ np.linalg.qr(centered @ basis)[0]
    left, sizes, _ = np.linalg.svd(centered @ np.linalg.qr(basis)[0], full_matrices=False)
    return left[:, :2] * sizes[:2], float((sizes[:2] ** 2).sum() / max((centered**2).sum(), 1e-300))
