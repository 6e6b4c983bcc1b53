"""Does the test set stand in the training set? Numbers would be too good, and nothing else would show it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from histobench.roi.features.feature_set import FeatureSet

#: Columns by which rows are first compared; equal ones are then compared whole.
_PROBES = 8


def leaks(test: FeatureSet, others: Mapping[str, FeatureSet]) -> tuple[str, ...]:
    """What the test features share with the `others` (by split), in words."""
    found = []
    for split, features in others.items():
        same = int(_rows_also_in(test.embeddings.numpy(), features.embeddings.numpy()).sum())
        if same:
            images = "1 test image has" if same == 1 else f"{same} of {len(test)} test images have"
            found.append(
                f"{images} the very features of a {split} image: the same images (or equally blank ones) are "
                "in both, and the results may be too good; `histobench data check` lists them"
            )
        groups = set(test.groups or ()) - {""}  # images without a group are groups of their own
        shared = sorted(groups & set(features.groups or ()))
        if shared:
            some = ", ".join(shared[:3]) + (", ..." if len(shared) > 3 else "")
            found.append(
                f"{len(shared)} of {len(groups)} test groups (patients, slides) are also in {split} "
                f"({some}): the results are likely too good"
            )
    return tuple(found)


def _rows_also_in(rows: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows stand among the others, bit for bit."""
    columns = np.unique(np.linspace(0, rows.shape[1] - 1, _PROBES).astype(int))
    keys, other_keys = (_as_bytes(values[:, columns]) for values in (rows, others))
    places = np.flatnonzero(np.isin(other_keys, keys))
    known = {others[place].tobytes() for place in places}
    likely = np.isin(keys, other_keys)
    return np.array([likely[k] and rows[k].tobytes() in known for k in range(len(rows))], dtype=bool)


def _as_bytes(values: NDArray[np.float32]) -> NDArray[np.void]:
    whole = np.ascontiguousarray(values)
    return whole.view(np.dtype((np.void, whole.itemsize * whole.shape[1]))).ravel()
