"""Every measure of robustness of one encoder by one site column, with intervals over groups.

What cannot be measured on a set says why; the rest is measured all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from histobench.core.errors import HistobenchError
from histobench.core.threads import one_thread
from histobench.roi.robustness.indices import (
    PUBLISHED_K,
    IndexEvidence,
    candidates_for,
    choose_k,
    chosen_without,
    cross_site_margin,
    index_without,
    margin_aware_index,
    margins_without,
    robustness_index,
    sums_without,
    worst_relatives,
)
from histobench.roi.robustness.leaving_out import (
    Measure,
    NothingToCompareError,
    Range,
    Units,
    measured,
    site_probe_without,
    units_of,
)
from histobench.roi.robustness.site_neighbours import Floats, Ints, TypedNeighbours, find_neighbours
from histobench.roi.robustness.site_probes import (
    FitSites,
    FitWithout,
    leave_one_site_out,
    mean_of_known,
    site_probe,
)

#: Nearest relatives of each type that CRoMa averages.
MARGIN_NEIGHBOURS = 5
#: More pairs of classes and sites than this are not searched one by one.
_MOST_SUBSETS = 400
#: No index where fewer images, or a smaller share of them, have a neighbour that tells class from site.
LEAST_COUNTED, LEAST_SUPPORT = 10, 0.05
#: No index where both kinds of neighbor are possible for a smaller share of the images than this.
LEAST_POSSIBLE = 0.5
#: Classifiers are trained without so many groups, or blocks of groups, in turn; fewer with many images.
_REFITS, _REFITS_OF_MANY, _MANY = 60, 20, 5000
#: Leaving out overstates what another k changes, which comes in jumps: so much of it makes intervals that
#: cover 97 to 100 % (benchmarks/studies/robustness_coverage.py).
_JUMP = 0.5
_SMALL = 2**22  # numbers
#: With more sites than this they are not trained anew: a group is then a small part of every training set.
_MOST_REFITTED_SITES = 20


@dataclass(frozen=True)
class Tissue:
    """What is known of the images: whole numbers [n] from 0 on, and what the numbers stand for."""

    labels: Ints
    sites: Ints
    groups: Ints
    classes: tuple[str, ...]
    site_names: tuple[str, ...]


@dataclass(frozen=True)
class Pack:
    """All measures by name, and what stands behind them (plain JSON values)."""

    measures: Mapping[str, Measure]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RobustnessResult:
    """The pack by one site column, and what it was measured on."""

    column: str
    pack: Pack
    tissue: Tissue
    images: str  # names the images, their labels, sites and groups
    confounding: float  # Cramer's V of label and site; NaN where there is none
    caveats: tuple[str, ...]
    reason: str = ""  # why the column has no number for any encoder; empty where it has some


def measure_robustness(
    features: NDArray[np.floating],
    tissue: Tissue,
    protocols: Mapping[str, FitWithout],
    *,
    k: int | None = None,
    at_many_sites: Mapping[str, FitSites] | None = None,
) -> Pack:
    """The pack of features [n, d]; `protocols` are used for leaving one site out.

    Protocols that are in `at_many_sites` do that for all sites at once where there are many.

    Without `k` it is the one whose majority vote has the best balanced accuracy. What is left out for
    the intervals depends on the groups alone, so two encoders on the same images are paired.

    Raises
    ------
    NothingToCompareError
        The images do not come from two sites, or not from two classes.
    """
    if not tissue.site_names:
        raise NothingToCompareError("no image names its site; robustness compares sites")
    if len(tissue.site_names) < 2:
        raise NothingToCompareError("there is only one site; robustness compares sites")
    if len(np.unique(tissue.labels)) < 2:
        raise NothingToCompareError("there is only one class; robustness compares classes with sites")
    work = PackWork(np.ascontiguousarray(features), tissue)
    work.indices(k)
    work.paired_index()
    with ExitStack() as stack:
        if features.size < _SMALL:
            # Threads of the many small operations of these fits would mostly wait for each other.
            stack.enter_context(one_thread())
            stack.enter_context(threadpool_limits(1, "blas"))
        work.probe()
        for name, protocol in protocols.items():
            work.new_site(name, protocol, (at_many_sites or {}).get(name))
    return Pack(work.measures, work.details)


class PackWork:
    """The measures of one encoder so far; each method adds some."""

    def __init__(self, features: NDArray[np.floating], tissue: Tissue) -> None:
        self.features, self.tissue = features, tissue
        self.units = units_of(tissue.groups)
        most = _REFITS if len(features) <= _MANY else _REFITS_OF_MANY
        self.refit_units = units_of(tissue.groups, most=most)
        # Choosing k again without a unit looks at every list of neighbours.
        self.index_units = self.units if len(features) <= _MANY else self.refit_units
        self.measures: dict[str, Measure] = {}
        self.details: dict[str, Any] = {}

    def add(self, name: str, value: float, without: Floats, *, within: Range = "share") -> None:
        """Keep a measure with its interval."""
        self.measures[name] = measured(value, without, self.units, within=within)

    @contextmanager
    def attempt(self, *names: str) -> Iterator[None]:
        """Do a part; what stands in its way becomes the reason of its measures."""
        try:
            yield
        except HistobenchError as error:
            for name in names:
                self.measures.setdefault(name, Measure(None, reason=str(error)))

    def indices(self, k: int | None) -> None:
        """RI with its own k and the published ones, MaRI, CRoMa: one search of neighbours."""
        t = self.tissue
        candidates = candidates_for(len(t.labels)) if k is None else (k,)
        widest = max(*candidates, *PUBLISHED_K.values())
        data = (self.features, t.labels, t.sites, t.groups)
        near = find_neighbours(*data, k=widest, m=MARGIN_NEIGHBOURS, units=self.units.of_image)

        with self.attempt("robustness_index", "margin_aware_index"):
            best, scores = choose_k(near, t.labels, candidates)
            self.details["k"] = best
            self.details["vote_balanced_accuracy_by_k"] = {str(size): score for size, score in scores.items()}
            again = chosen_without(near, t.labels, candidates, self.index_units.of_image)
            at = partial(robustness_index, near, t.labels, t.sites)
            self._evidence("robustness_index", near, at(k=best), again, lambda size: at(k=size).value)
            for published in sorted(set(PUBLISHED_K.values())):
                name = f"robustness_index_k{published}"
                if published < len(t.labels):
                    found = robustness_index(near, t.labels, t.sites, k=published)
                    self._evidence(name, near, found)
                else:
                    self.measures[name] = Measure(None, reason=f"there are only {len(t.labels)} images")
            weighted = partial(margin_aware_index, near, self.features, t.labels, t.sites)
            found = weighted(k=best)
            self.details["tau"] = found.tau
            self._evidence("margin_aware_index", near, found, again, lambda size: weighted(k=size).value)

        with self.attempt("croma_median", "croma_worst_tenth", "croma_share_below"):
            margins = cross_site_margin(near)
            self.details["margin_neighbours"] = margins.m
            self.details["worst_images"] = worst_relatives(near, margins.values)
            left = margins_without(near, margins, self.units.of_image)
            self.add("croma_median", margins.median, left["median"], within="contrast")
            self.add("croma_worst_tenth", margins.tail_mean, left["tail"], within="contrast")
            self.add("croma_share_below", margins.share_below, left["below"])

    def _evidence(
        self,
        name: str,
        near: TypedNeighbours,
        found: IndexEvidence,
        chosen: Ints | None = None,
        value_at: Callable[[int], float] = lambda k: float("nan"),
    ) -> None:
        """An index at its k; `chosen` [units] is the k without each unit, where k was chosen by the data.

        What another k changes is taken from the index of all images, `value_at` that k.
        """
        t, units = self.tissue, self.units if chosen is None else self.index_units

        def without() -> Floats:
            sums = sums_without(near, found, self.features, t.labels, t.sites, t.groups, units.of_image)
            left = index_without(*sums)
            if chosen is not None:
                moves = {int(k): _JUMP * (value_at(int(k)) - found.value) for k in np.unique(chosen)}
                left = np.clip(left + np.array([moves[int(k)] for k in chosen]), 0.0, 1.0)
            return left

        self._index(name, found, without, units)

    def _index(self, name: str, found: IndexEvidence, without: Callable[[], Floats], units: Units) -> None:
        """An index with its interval, where enough images have a neighbour that tells class from site."""
        self.details.setdefault("support", {})[name] = found.support
        if (settled := self._settled) is not None:
            self.measures[name] = Measure(None, reason=settled)
        elif found.counted < LEAST_COUNTED or found.support < LEAST_SUPPORT:
            reason = (
                f"only {found.counted} of {len(found.so)} images have a neighbor of either the same class or "
                f"the same site among the first {found.k} (needed: {LEAST_COUNTED}, and {LEAST_SUPPORT:.0%})"
            )
            self.measures[name] = Measure(None, reason=reason)
        else:
            self.measures[name] = measured(found.value, without(), units)

    @cached_property
    def _settled(self) -> str | None:
        """Why an index of neighbours would say little about the encoder; None where it does say something."""
        t = self.tissue
        so, os = possible_neighbours(t.labels, t.sites, t.groups)
        for found, kind in ((so, "of its class at another site"), (os, "of another class at its site")):
            if not found.any():
                return f"no image has one {kind} in another group; the index says nothing then"
        both = float((so & os).mean())
        self.details["both_kinds_possible"] = both
        if both < LEAST_POSSIBLE:
            return (
                f"groups, classes and sites leave only {both:.0%} of the images with both kinds of neighbor "
                f"(an index needs {LEAST_POSSIBLE:.0%})"
            )
        return None

    def paired_index(self) -> None:
        """RI within each pair of classes at each pair of sites, counts pooled, at the k of the whole set."""
        t, k = self.tissue, self.details.get("k")
        name = "robustness_index_paired"
        subsets = crossed_pairs(t.labels, t.sites)
        if k is None or not subsets or len(subsets) > _MOST_SUBSETS:
            why = "no two classes share two sites" if not subsets else f"{len(subsets)} pairs are too many"
            self.measures[name] = Measure(None, reason=why if k is not None else "no k could be chosen")
            return
        so, os = np.zeros(len(t.labels)), np.zeros(len(t.labels))
        count, left = self.units.count, np.zeros((2, self.units.count))
        for two_labels, two_sites in subsets:
            rows = np.flatnonzero(np.isin(t.labels, two_labels) & np.isin(t.sites, two_sites))
            labels, sites, groups = t.labels[rows], t.sites[rows], t.groups[rows]
            inside, units = np.unique(self.units.of_image[rows], return_inverse=True)
            x = self.features[rows]
            near = find_neighbours(x, labels, sites, groups, k=k, m=1, units=units)
            part = robustness_index(near, labels, sites, k=k)
            so[rows] += part.so
            os[rows] += part.os
            sums = sums_without(near, part, x, labels, sites, groups, units)
            for place, (all_of_it, without) in enumerate(zip((part.so, part.os), sums, strict=True)):
                each = np.full(count, all_of_it.sum())
                each[inside] = without
                left[place] += each
        self.details["paired_subsets"] = len(subsets)
        self._index(name, IndexEvidence(so, os, k), lambda: index_without(left[0], left[1]), self.units)

    def probe(self) -> None:
        """How well the site can be read from the features."""
        t = self.tissue
        with self.attempt("site_probe_auroc"):
            found = site_probe(self.features, t.sites, t.groups)
            self.details["site_probe"] = {"per_fold": found.per_fold, "skipped_folds": found.skipped_folds}
            self.add("site_probe_auroc", found.auroc, site_probe_without(found, t.sites, self.units))

    def new_site(self, name: str, protocol: FitWithout, fit_sites: FitSites | None = None) -> None:
        """Balanced accuracy at a site that was not trained on: mean over the sites, and the worst."""
        t, units = self.tissue, self.refit_units
        with self.attempt(f"new_site_{name}_mean", f"new_site_{name}_worst"):
            refit = len(t.site_names) <= _MOST_REFITTED_SITES
            data = (self.features, t.labels, t.sites, t.groups, units.of_image)
            found = leave_one_site_out(*data, protocol, refit=refit, fit_sites=fit_sites)
            without = np.array(list(found.without.values()))
            self.measures[f"new_site_{name}_mean"] = measured(found.mean, mean_of_known(without), units)
            self.measures[f"new_site_{name}_worst"] = measured(found.worst, np.fmin.reduce(without), units)
            per_site = {}
            for site, value in found.per_site.items():
                each = measured(value, found.without[site], units)
                bounds = {"balanced_accuracy": value, "low": each.low, "high": each.high}
                per_site[t.site_names[site]] = {**bounds, "images": int((t.sites == site).sum())}
            left_out = [t.site_names[s] for s in np.unique(t.sites) if int(s) not in found.per_site]
            self.details.setdefault("new_site", {})[name] = {"per_site": per_site, "left_out": left_out}


def crossed_pairs(labels: Ints, sites: Ints) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Every two labels that share two sites, with each two of these sites."""
    sites_of = {label: set(sites[labels == label].tolist()) for label in np.unique(labels).tolist()}
    return [
        (two_labels, two_sites)
        for two_labels in combinations(sites_of, 2)
        for two_sites in combinations(sorted(sites_of[two_labels[0]] & sites_of[two_labels[1]]), 2)
    ]


def possible_neighbours(
    labels: Ints, sites: Ints, groups: Ints
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For which images [n] there is an SO, and for which an OS image outside of their own group.

    >>> one_group_per_site = np.array([0, 0, 1, 1])
    >>> possible_neighbours(np.array([0, 1, 0, 1]), one_group_per_site, one_group_per_site)
    (array([ True,  True,  True,  True]), array([False, False, False, False]))
    """
    import pandas as pd

    def alike(*keys: Ints) -> Ints:
        """How many images agree in the keys [n] with each."""
        table = pd.DataFrame(dict(enumerate(keys)))
        return table.groupby(list(table.columns))[0].transform("size").to_numpy(dtype=np.int64)

    def outside(*keys: Ints) -> Ints:
        return alike(*keys) - alike(*keys, groups)

    both = outside(labels, sites)
    return outside(labels) > both, outside(sites) > both
