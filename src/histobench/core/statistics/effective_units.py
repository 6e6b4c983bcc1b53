"""How many degrees of freedom the spread between units (patients, slides, images) has.

    class_freedom(labels, unit_of)     units count alike, those of the rarest class decide: single intervals
    effective_freedom(design, labels)  units count by their size: comparisons that hold together

A patient with 200 images moves a metric more than one with 5, and then the spread between patients is known
less well than their number says. Kish's effective number, (sum n)^2 / sum n^2, counts units by their weight.
A single interval hardly notices, and reads its own influences besides (`logit_t`); the far tails that
corrected comparisons live on do notice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from histobench.core.statistics.resampling import SamplingDesign

Floats = NDArray[np.float64]


def effective_number(sizes: ArrayLike) -> float:
    """How many units of equal size tell as much about the spread as units of these sizes.

    >>> effective_number([10, 10, 10]), round(effective_number([28, 1, 1]), 2)
    (3.0, 1.15)
    """
    weights = np.asarray(sizes, dtype=np.float64)
    total = float((weights**2).sum())
    return float(weights.sum() ** 2 / total) if total > 0 else 0.0


def class_freedom(labels: ArrayLike, unit_of: ArrayLike | None = None) -> float:
    """Degrees of freedom for metrics of several classes: those of the class with the fewest units count.

    Single samples (`unit_of` None): one less than there are. Groups of one class each: Welch's formula over
    the classes. Mixed groups: one less than the groups in which the rarest class occurs.

    >>> class_freedom([0, 0, 1, 0, 0, 1, 0], [0, 0, 0, 1, 1, 1, 2])
    1.0
    """
    classes = np.unique(np.asarray(labels), return_inverse=True)[1]
    if unit_of is None:
        return len(classes) - 1.0
    units = np.unique(np.asarray(unit_of), return_inverse=True)[1]
    occurs = np.zeros((units.max(initial=-1) + 1, classes.max(initial=-1) + 1), dtype=bool)
    occurs[units, classes] = True
    most = len(occurs) - 1.0
    sizes = occurs.sum(axis=0)
    if (occurs.sum(axis=1) > 1).any():
        return float(min(most, max(sizes.min() - 1.0, min(most, 1.0))))
    return min(most, _welch(sizes.astype(np.float64)))


def effective_freedom(design: SamplingDesign, labels: ArrayLike | None = None) -> float:
    """Degrees of freedom of a variance between units, units counted by their size.

    With `labels` (for metrics that average over classes) also the units of each class are counted, and the
    smaller figure holds: a rare class that lies in few patients decides how well a class average is known.
    Units of one size, as images are, give `SamplingDesign.degrees_of_freedom`.

    >>> from histobench.core.statistics.resampling import sampling_design
    >>> round(effective_freedom(sampling_design(5)), 9)
    4.0
    """
    found = _welch(_numbers(design.unit_of, design.stratum_of[design.unit_of]))
    if labels is None or not design.is_clustered:
        return found
    classes = np.unique(np.asarray(labels), return_inverse=True)[1]
    return min(found, _welch(_numbers(design.unit_of, classes)))


def _numbers(unit_of: NDArray[np.int64], part_of: NDArray[np.int64]) -> Floats:
    """The effective number of units in each part (stratum or class) of the samples."""
    parts = int(part_of.max(initial=-1)) + 1
    units = int(unit_of.max(initial=-1)) + 1
    sizes = np.bincount(part_of * units + unit_of, minlength=parts * units).reshape(parts, units)
    return np.array([effective_number(row[row > 0]) for row in sizes], dtype=np.float64)


def _welch(numbers: Floats) -> float:
    """Welch's formula over parts that weigh equally; a part of one unit shows no spread and is left out."""
    numbers = numbers[numbers > 1 + 1e-9]
    if len(numbers) == 0:
        return 0.0
    return float((1 / numbers).sum() ** 2 / (1 / (numbers**2 * (numbers - 1))).sum())
