"""Measures that a classifier gives, in every draw of groups: AUROC over folds, accuracy at each site."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from histobench.roi.robustness.intervals import Redrawn
from histobench.roi.robustness.neighbours import Floats, Ints
from histobench.roi.robustness.probes import SiteProbe, SiteTransfer

_DRAWS_AT_ONCE = 64


def weighted_auroc(scores: Floats, positive: NDArray[np.bool_], weights: NDArray[np.integer]) -> Floats:
    """AUROC [draws] of scores [n] with each image counted `weights` [draws, n] times; ties count half."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf) != 0)
    counted = weights[:, order].astype(np.float64)
    above = np.add.reduceat(counted * positive[order], starts, axis=1)
    below = np.add.reduceat(counted * ~positive[order], starts, axis=1)
    lower = np.cumsum(below, axis=1) - below
    with np.errstate(invalid="ignore"):
        area: Floats = (above * (lower + below / 2)).sum(axis=1) / (above.sum(axis=1) * below.sum(axis=1))
    return area


def of_site_probe(probe: SiteProbe, sites: Ints, groups: Ints) -> Redrawn:
    """The mean AUROC over folds (of sites against the rest within a fold) in every draw."""
    _, place = np.unique(groups, return_inverse=True)
    folds = [np.flatnonzero(probe.fold == fold) for fold in np.unique(probe.fold[probe.fold >= 0])]
    classes = range(probe.scores.shape[1])

    def redrawn(times: NDArray[np.int64]) -> Floats:
        values = np.empty(len(times))
        for start in range(0, len(times), _DRAWS_AT_ONCE):
            part = times[start : start + _DRAWS_AT_ONCE]
            areas = []
            for rows in folds:
                weights, truth, scores = part[:, place[rows]], sites[rows], probe.scores[rows]
                if len(classes) == 2:
                    areas.append(weighted_auroc(scores[:, 1], truth == 1, weights))
                else:
                    each = [weighted_auroc(scores[:, site], truth == site, weights) for site in classes]
                    areas.append(np.mean(each, axis=0))
            values[start : start + len(part)] = _mean_of_known(np.array(areas))
        return values

    return redrawn


def of_site_transfer(found: SiteTransfer, labels: Ints, sites: Ints, groups: Ints) -> dict[int, Redrawn]:
    """Balanced accuracy at each left-out site in every draw; a class that was not drawn is left out."""

    def at(site: int) -> Redrawn:
        _, place = np.unique(groups, return_inverse=True)
        here = sites == site
        present = np.unique(labels[here])
        shape = (int(place.max()) + 1, len(present))
        count, right = np.zeros(shape), np.zeros(shape)
        cell = place[here], np.searchsorted(present, labels[here])
        np.add.at(count, cell, 1)
        np.add.at(right, cell, found.predicted[here] == labels[here])

        def redrawn(times: NDArray[np.int64]) -> Floats:
            with np.errstate(invalid="ignore"):
                return _mean_of_known((times @ right / (times @ count)).T)

        return redrawn

    return {site: at(site) for site in found.per_site}


def worst_of(parts: dict[int, Redrawn]) -> Redrawn:
    """The lowest of several measures in every draw."""
    return lambda times: np.fmin.reduce([part(times) for part in parts.values()])


def mean_of(parts: dict[int, Redrawn]) -> Redrawn:
    """The mean of several measures in every draw."""
    return lambda times: _mean_of_known(np.array([part(times) for part in parts.values()]))


def _mean_of_known(values: Floats) -> Floats:
    """Mean over rows of what is not NaN; NaN where nothing is."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    result: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return result
