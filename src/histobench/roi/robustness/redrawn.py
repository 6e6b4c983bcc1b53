"""Measures that a classifier gives, in every draw of groups: AUROC over folds, accuracy at each site."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import product

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.robustness.clustering import Clustered, ClusteringScore
from histobench.roi.robustness.confounding import Schedule, Tested
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


def of_clustering(found: ClusteringScore, labels: Ints, sites: Ints, groups: Ints) -> Redrawn:
    """The clustering score in every draw: the clusters are kept, their images count as often as drawn.

    A combination of which a label or site was not drawn is left out of that draw.
    """
    _, place = np.unique(groups, return_inverse=True)

    def part(each: Clustered) -> Redrawn:
        owner, inside = np.unique(place[each.rows], return_inverse=True)
        # Which of the two labels and of the two sites an image has, as one of four cells.
        kinds = [np.unique(names[each.rows], return_inverse=True)[1] for names in (labels, sites)]
        cell = 2 * kinds[0] + kinds[1]

        def redrawn(times: NDArray[np.int64]) -> Floats:
            scores = []
            for clusters in each.clusters:
                most = int(clusters.max()) + 1
                counts = np.zeros((len(owner), most * 4))
                np.add.at(counts, (inside, clusters * 4 + cell), 1)
                drawn = (times[:, owner] @ counts).reshape(len(times), most, 2, 2)
                by_label, by_site = drawn.sum(axis=3), drawn.sum(axis=2)
                scores.append(_rand_index(by_label) - _rand_index(by_site))
            result: Floats = np.mean(scores, axis=0)
            return result

        return redrawn

    return mean_of(dict(enumerate(map(part, found.per_combination.values()))))


def _rand_index(table: Floats) -> Floats:
    """Adjusted Rand index [draws] of clusters and two kinds, from counts [draws, clusters, 2].

    NaN where one of the kinds is missing.
    """
    together = _choose_two(table).sum(axis=(1, 2))
    clusters, kinds = (table.sum(axis=axis) for axis in (2, 1))
    alike = _choose_two(clusters).sum(axis=1), _choose_two(kinds).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = alike[0] * alike[1] / _choose_two(kinds.sum(axis=1))
        index: Floats = (together - expected) / ((alike[0] + alike[1]) / 2 - expected)
    index[(kinds == 0).any(axis=1)] = np.nan
    return index


def _choose_two(counts: Floats) -> Floats:
    return counts * (counts - 1) / 2


def of_schedule(
    found: Schedule, labels: Ints, sites: Ints, groups: Ints, value: Callable[[Floats], float]
) -> Redrawn:
    """`value` of the accuracies [steps, repeats] in every draw; NaN where it is not defined.

    The probes are kept, their test images count as often as drawn. Each class at each site keeps its share of
    the test images, which is balanced by design and not by chance; a repeat without such a cell in a draw is
    left out of that draw.
    """
    _, place = np.unique(groups, return_inverse=True)

    def accuracies(times: NDArray[np.int64], each: Tested) -> Floats:
        owner, inside = np.unique(place[each.rows], return_inverse=True)
        shares = []
        for label, site in product(found.labels, found.sites):
            class_, here = labels[each.rows] == label, sites[each.rows] == site
            here &= class_
            count = np.bincount(inside[here], minlength=len(owner))
            right = np.stack(
                [np.bincount(inside[here], weights=row[here], minlength=len(owner)) for row in each.right]
            )
            with np.errstate(invalid="ignore"):
                cell = (times[:, owner] @ right.T) / (times[:, owner] @ count)[:, None]
            shares.append(cell * here.sum() / class_.sum())
        result: Floats = np.sum(shares, axis=0) / len(found.labels)
        return result  # [draws, steps]

    def redrawn(times: NDArray[np.int64]) -> Floats:
        drawn = np.stack([accuracies(times, each) for each in found.tested], axis=2)
        values = np.full(len(times), np.nan)
        for row, one in enumerate(drawn):
            known = np.isfinite(one).all(axis=0)
            if known.any():
                with suppress(HistobenchError):
                    values[row] = value(one[:, known])
        return values

    return redrawn


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
