"""Are classes and sites crossed? Where they are not, an encoder may be right for the wrong reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from histobench.roi.data.dataset import SPLITS, RoiDataset
from histobench.roi.data.sites import PAIR_COLUMN, site_table

#: From this Cramer's V on a set is called confounded; Cohen calls it a large association.
CONFOUNDED = 0.5


def cramers_v(one: Sequence[object], other: Sequence[object]) -> float:
    """How far two columns say the same: 0 (crossed evenly) to 1; NaN where one of them never changes.

    >>> cramers_v([0, 0, 1, 1], ["a", "a", "b", "b"])
    1.0
    """
    _, rows = np.unique(np.asarray(one, dtype=str), return_inverse=True)
    _, columns = np.unique(np.asarray(other, dtype=str), return_inverse=True)
    table = np.zeros((int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1))
    np.add.at(table, (rows, columns), 1)
    smaller = min(table.shape) - 1
    if smaller < 1:
        return float("nan")
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    chi_squared: NDArray[np.float64] = (table - expected) ** 2 / expected
    return float(np.sqrt(chi_squared.sum() / (table.sum() * smaller)))


def confounded(labels: Sequence[object], sites: Sequence[str], column: str) -> str | None:
    """What to say where label and site go together; None where they do not."""
    value = cramers_v(labels, sites)
    if not value >= CONFOUNDED:
        return None
    return (
        f"label and {column} are confounded (Cramer's V {value:.2f}): accuracy may come from the "
        f"{column} instead of the tissue"
    )


def site_warnings(dataset: RoiDataset) -> Iterator[str]:
    """What an accuracy on this set may owe to the sites, in words; images of unknown site are left out."""
    splits = [split for split in SPLITS for _ in dataset.splits.get(split, ())]
    images = [image for split in SPLITS for image in dataset.splits.get(split, ())]
    labels = [image.label for image in images]
    for column, values in site_table([image.sites for image in images]).items():
        known = [k for k, value in enumerate(values) if value]
        sites = [values[k] for k in known]
        if column == PAIR_COLUMN or len(set(sites)) < 2:
            continue
        if told := confounded([labels[k] for k in known], sites, column):
            yield told
        yield from _one_site_each(dataset.classes, [labels[k] for k in known], sites, column)
        test = {values[k] for k in known if splits[k] == "test"}
        train = {values[k] for k in known if splits[k] != "test"}
        if test and train:
            for site in sorted(test - train):
                yield f"{column} {site!r} is in test alone: its images are judged without training on it"
            for site in sorted(train - test):
                yield f"{column} {site!r} is never in test: nothing is measured there"
        if unknown := len(values) - len(known):
            yield f"{unknown:,} images have no {column}; they are left out of what is said about it"


def _one_site_each(
    classes: Sequence[str], labels: Sequence[int], sites: Sequence[str], column: str
) -> Iterator[str]:
    """The classes that come from one site, in one line however many they are."""
    found: dict[str, str] = {}
    for label, name in enumerate(classes):
        own = {site for site, other in zip(sites, labels, strict=True) if other == label}
        if len(own) == 1:
            found[name] = own.pop()
    if len(found) == 1:
        ((name, site),) = found.items()
        yield f"all images of class {name!r} with a known {column} come from {site!r}"
    elif found:
        listed = ", ".join(f"{name!r} from {site!r}" for name, site in found.items())
        yield f"{len(found)} classes come from one {column} each: {listed}"
