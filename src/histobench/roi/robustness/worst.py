"""The images whose site outweighs their tissue most, with the neighbours that show it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.roi.robustness.neighbours import Floats, Ints

#: Images that are kept for a look.
SHOWN = 8


def worst_relatives(
    features: NDArray[np.floating],
    labels: Ints,
    sites: Ints,
    groups: Ints,
    margins: Floats,
    *,
    count: int = SHOWN,
) -> list[dict[str, Any]]:
    """The `count` images of the lowest margin, each with its nearest relative of either kind, by row.

    `same_site` is the nearest image of another class at the same site, `same_class` the nearest of the same
    class at another site; both outside of the image's own group. Of equal ones the first is taken.
    """
    rows = np.argsort(margins, kind="stable")[:count]
    chosen = np.asarray(features[rows], dtype=np.float64)
    chosen /= np.maximum(np.linalg.norm(chosen, axis=1, keepdims=True), 1e-12)
    lengths = np.sqrt(np.einsum("ij,ij->i", features, features, dtype=np.float64))
    distance = 1 - (features @ chosen.T.astype(features.dtype)).T / np.maximum(lengths, 1e-12)
    found = []
    for place, row in enumerate(rows):
        other = groups != groups[row]
        kinds = {
            "same_site": other & (labels != labels[row]) & (sites == sites[row]),
            "same_class": other & (labels == labels[row]) & (sites != sites[row]),
        }
        near = {name: int(np.argmin(np.where(mask, distance[place], np.inf))) for name, mask in kinds.items()}
        found.append(
            {
                "row": int(row),
                "margin": float(margins[row]),
                **{
                    name: {"row": other_row, "distance": float(distance[place, other_row])}
                    for name, other_row in near.items()
                },
            }
        )
    return found
