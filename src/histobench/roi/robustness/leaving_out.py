"""Intervals of robustness measures: every measure with one group (patient, slide) left out at a time.

A group that is left out disappears everywhere: its images are no longer asked for their neighbours, and they
are no longer neighbours of others. The spread of the values found so gives intervals by the jackknife with
Student's t (`statistics.jackknife`). More than `MOST_UNITS` groups are left out in
blocks of equally many, drawn at random with a fixed seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.roi.metrics.left_out import auroc_left_out
from histobench.roi.robustness.site_neighbours import Floats, Ints
from histobench.roi.robustness.site_probes import SiteProbe, mean_of_known
from histobench.statistics.jackknife import UNIT_RANGE, LeaveOneOut, bounds, bunch, freedom_of_sizes

#: At most so many groups, or blocks of groups, are left out one after another.
MOST_UNITS = 200
#: How intervals are made, as files name it.
METHOD = "wilson-t over groups, rule 3"
#: Fewer groups than this give no interval.
LEAST_GROUPS = 5
#: The range of a measure: a share lies in [0, 1], a contrast in [-1, 1].
Range = Literal["share", "contrast"]
_SEED = 0


class NothingToCompareError(HistobenchError):
    """No encoder can have a measure by this column; it has a single site, for example."""


@dataclass(frozen=True)
class Units:
    """What is left out one at a time: `of_image` [n] numbers the groups, or blocks of groups, of images."""

    of_image: Ints
    sizes: Ints  # images in each group
    count: int

    @property
    def groups(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Measure:
    """A value with its 95 % interval, or the reason why there is none; `left_out` [units] for pairing."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    left_out: Floats | None = None


def units_of(groups: Ints, *, most: int = MOST_UNITS) -> Units:
    """Groups [n] as units; the same groups always give the same units, so encoders are paired."""
    names, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    block = np.arange(len(names))
    if len(names) > most:
        block = np.random.default_rng(_SEED).permutation(len(names)) * most // len(names)
    return Units(block[place].astype(np.int64), sizes, int(block.max(initial=-1)) + 1)


def measured(value: float, left_out: Floats, units: Units, *, within: Range = "share") -> Measure:
    """A measure with its interval; `left_out` [units] are its values without each unit."""
    if units.groups < LEAST_GROUPS:
        reason = f"no interval: too few groups: {units.groups} (an interval needs {LEAST_GROUPS})"
        return Measure(value, reason=reason)
    undefined = int((~np.isfinite(left_out)).sum())
    if undefined:
        which = f"{undefined} of {units.count} groups" if units.count == units.groups else "some groups"
        return Measure(value, reason=f"no interval: the value is not defined without {which}")
    columns = columns_of(("measure",), np.array([value]), left_out[:, None], units.sizes, within)
    low, high = bounds(columns, UNIT_RANGE if within == "share" else (-np.inf, np.inf))
    if within == "contrast":
        low, high = np.clip(low, -1.0, 1.0), np.clip(high, -1.0, 1.0)
    if not (np.isfinite(low[0]) and np.isfinite(high[0])):
        return Measure(value, reason="no interval: the spread over groups is not defined", left_out=left_out)
    return Measure(value, float(low[0]), float(high[0]), None, left_out)


def columns_of(
    names: tuple[str, ...], values: Floats, left_out: Floats, sizes: Ints | Floats, within: Range
) -> LeaveOneOut:
    """Values [m] of a measure, with each unit left out [units, m], from groups with `sizes` images.

    A contrast is a mean of cosines, seldom near its ends: nothing unseen is added to its spread.
    """
    images = float(sizes.sum())
    moved = bunch(sizes) / images if within == "share" else 0.0
    grouped, freedom = bool((sizes > 1).any()), freedom_of_sizes(sizes)
    return LeaveOneOut(names, values, left_out, np.array([[-moved]]), images, freedom, grouped)


def mean_without(terms: Floats, units: Units) -> Floats:
    """The mean over images [n] without each unit [units]."""
    total = np.bincount(units.of_image, weights=terms, minlength=units.count)
    count = np.bincount(units.of_image, minlength=units.count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((terms.sum() - total) / (len(terms) - count))


def site_probe_without(probe: SiteProbe, sites: Ints, units: Units) -> Floats:
    """The mean AUROC over folds (of sites against the rest within a fold) without each unit.

    The classifiers are kept: the unit's images are no longer tested. What other training images would have
    changed is added: an average over n images of a fold varies by their chance, and by that of the n (K - 1)
    images it was trained on, as 1 to 1 / (K - 1) (Nadeau and Bengio 2003), so deviations grow by the root of
    K / (K - 1). Without that, intervals covered 90 to 91 % where they should 95
    (`benchmarks/studies/robustness_coverage.py`).
    """
    areas = []
    folds = len(probe.per_fold) + probe.skipped_folds
    for fold in np.unique(probe.fold[probe.fold >= 0]):
        rows = np.flatnonzero(probe.fold == fold)
        inside, tested = np.unique(units.of_image[rows], return_inverse=True)
        truth, scores = sites[rows], probe.scores[rows]
        kinds = (1,) if scores.shape[1] == 2 else range(scores.shape[1])
        each = np.empty((len(kinds), units.count))
        for place, at in enumerate(kinds):
            against_rest = np.stack([-scores[:, at], scores[:, at]], axis=1)
            # A unit without an image in the fold changes nothing there.
            each[place], each[place, inside] = auroc_left_out(against_rest, (truth == at).astype(int), tested)
        areas.append(each.mean(axis=0))
    left = mean_of_known(np.array(areas))
    return np.clip(left.mean() + np.sqrt(folds / (folds - 1)) * (left - left.mean()), 0.0, 1.0)
