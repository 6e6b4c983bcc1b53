"""Every measure of robustness of one encoder by one site column, with intervals over groups.

What cannot be measured on a set says why; the rest is measured all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.robustness.clustering import clustering_score
from histobench.roi.robustness.confounding import Schedule, apd, confounding_schedule, nipd
from histobench.roi.robustness.indices import (
    PUBLISHED_K,
    Evidence,
    candidates_for,
    choose_k,
    cross_site_margin,
    margin_aware_index,
    robustness_index,
)
from histobench.roi.robustness.intervals import (
    Redrawn,
    draw_groups,
    interval,
    of_evidence,
    of_mean,
    of_quantile,
    tail_of,
)
from histobench.roi.robustness.neighbours import Floats, Ints, find_neighbours
from histobench.roi.robustness.probes import FitPredict, leave_one_site_out, site_probe
from histobench.roi.robustness.redrawn import (
    mean_of,
    of_clustering,
    of_schedule,
    of_site_probe,
    of_site_transfer,
    worst_of,
)
from histobench.roi.robustness.worst import worst_relatives

#: Nearest relatives of each type that CRoMa averages.
MARGIN_NEIGHBOURS = 5
#: More pairs of classes and sites than this are not searched one by one.
_MOST_SUBSETS = 400
#: More draws than this in which a value is not defined, and the others do not speak for them.
_MOST_UNDEFINED = 0.05
_SLOW = "left out because it is slow; `histobench robustness --slow` computes it from the same features"


@dataclass(frozen=True)
class Measure:
    """A value with its interval over groups, or the reason why there is none; `draws` [draws] for pairing."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    draws: Floats | None = None


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


def measure_robustness(
    features: NDArray[np.floating],
    tissue: Tissue,
    protocols: Mapping[str, FitPredict],
    *,
    k: int | None = None,
    slow: bool = False,
    draws: int = 2000,
    seed: int = 0,
) -> Pack:
    """The pack of features [n, d]; `protocols` are used for leaving one site out.

    Without `k` it is the one whose majority vote has the best balanced accuracy. With `slow` clusters and the
    label-site schedule are measured as well. The draws of groups depend on the seed and the number of groups
    alone, so those of two encoders on the same images are paired.
    """
    if not tissue.site_names:
        raise HistobenchError("no image names its site; robustness compares sites")
    if len(tissue.site_names) < 2:
        raise HistobenchError("there is one site only; robustness compares sites")
    if len(np.unique(tissue.labels)) < 2:
        raise HistobenchError("there is one class only; robustness compares classes with sites")
    work = _Work(np.ascontiguousarray(features), tissue, draw_groups(tissue.groups, draws=draws, seed=seed))
    work.indices(k)
    work.paired_index()
    work.probe()
    for name, protocol in protocols.items():
        work.new_site(name, protocol)
    work.clusters(slow)
    work.schedule(slow)
    return Pack(work.measures, work.details)


def with_interval(
    value: float,
    redrawn: Redrawn,
    times: NDArray[np.int64],
    *,
    one_group: str = "no interval: there is one group only",
) -> Measure:
    """A measure with its interval and draws; `one_group` is the reason where nothing can be drawn."""
    if times.shape[1] < 2:
        return Measure(value, reason=one_group)
    draws = redrawn(times)
    undefined = float(np.mean(~np.isfinite(draws)))
    if undefined > _MOST_UNDEFINED:
        return Measure(
            value, reason=f"no interval: the value is not defined in {undefined:.0%} of the draws of groups"
        )
    found = interval(value, lambda _: draws, times)
    return Measure(value, found.low, found.high, None, draws)


class _Work:
    """The measures so far."""

    def __init__(self, features: NDArray[np.floating], tissue: Tissue, times: NDArray[np.int64]) -> None:
        self.features, self.tissue, self.times = features, tissue, times
        self.measures: dict[str, Measure] = {}
        self.details: dict[str, Any] = {}

    def add(self, name: str, value: float, redrawn: Redrawn) -> None:
        """Keep a measure with its interval; a value that is not defined says so."""
        if not np.isfinite(value):
            self.measures[name] = Measure(None, reason="no image has a neighbour that tells class from site")
            return
        self.measures[name] = with_interval(value, redrawn, self.times)

    def attempt(self, names: tuple[str, ...], measured: Callable[[], None]) -> None:
        """Do a part; what stands in its way becomes the reason of its measures."""
        try:
            measured()
        except HistobenchError as error:
            for name in names:
                self.measures.setdefault(name, Measure(None, reason=str(error)))

    def indices(self, k: int | None) -> None:
        """RI with its own k and the published ones, MaRI, CRoMa: one search of neighbours."""
        t = self.tissue
        candidates = candidates_for(len(t.labels)) if k is None else (k,)
        widest = max(*candidates, *PUBLISHED_K.values())
        sizes = (*candidates, *PUBLISHED_K.values())
        near = find_neighbours(
            self.features, t.labels, t.sites, t.groups, k=widest, m=MARGIN_NEIGHBOURS, sizes=sizes
        )

        def chosen() -> None:
            best, scores = choose_k(near, t.labels, candidates)
            self.details["k"] = best
            self.details["vote_balanced_accuracy_by_k"] = {str(size): score for size, score in scores.items()}
            self._evidence("robustness_index", robustness_index(near, t.labels, t.sites, k=best))
            for published in sorted(set(PUBLISHED_K.values())):
                name = f"robustness_index_k{published}"
                if published < len(t.labels):
                    found = robustness_index(near, t.labels, t.sites, k=published)
                    self._evidence(name, found)
                else:
                    self.measures[name] = Measure(None, reason=f"there are only {len(t.labels)} images")
            found = margin_aware_index(near, self.features, t.labels, t.sites, k=best)
            self.details["tau"] = found.tau
            self._evidence("margin_aware_index", found)

        self.attempt(("robustness_index", "margin_aware_index"), chosen)

        def margins() -> None:
            found = cross_site_margin(near)
            self.details["margin_neighbours"] = found.m
            self.details["worst_images"] = worst_relatives(
                self.features, t.labels, t.sites, t.groups, found.values
            )
            self.add("croma_median", found.median, of_quantile(found.values, t.groups, 0.5))
            self.add("croma_worst_tenth", found.tail_mean, tail_of(found.values, t.groups))
            below = (found.values <= 0).astype(np.float64)
            self.add("croma_share_below", found.share_below, of_mean(below, t.groups))

        self.attempt(("croma_median", "croma_worst_tenth", "croma_share_below"), margins)

    def _evidence(self, name: str, found: Evidence) -> None:
        if (settled := _settled(self.tissue)) is not None:
            self.measures[name] = Measure(None, reason=settled)
            return
        self.add(name, found.value, of_evidence(found, self.tissue.groups))
        self.details.setdefault("support", {})[name] = found.support

    def paired_index(self) -> None:
        """RI within each pair of classes at each pair of sites, counts pooled, at the k of the whole set."""
        t, k = self.tissue, self.details.get("k")
        name = "robustness_index_paired"
        subsets = [
            rows
            for labels in combinations(np.unique(t.labels), 2)
            for sites in combinations(np.unique(t.sites), 2)
            if _crossed(t, rows := np.flatnonzero(np.isin(t.labels, labels) & np.isin(t.sites, sites)))
        ]
        if k is None or not subsets or len(subsets) > _MOST_SUBSETS:
            why = "no two classes share two sites" if not subsets else f"{len(subsets)} pairs are too many"
            self.measures[name] = Measure(None, reason=why if k is not None else "no k could be chosen")
            return
        so, os = np.zeros(len(t.labels)), np.zeros(len(t.labels))
        for rows in subsets:
            labels, sites, groups = t.labels[rows], t.sites[rows], t.groups[rows]
            near = find_neighbours(self.features[rows], labels, sites, groups, k=k, m=1, sizes=(k,))
            part = robustness_index(near, labels, sites, k=k)
            so[rows] += part.so
            os[rows] += part.os
        self.details["paired_subsets"] = len(subsets)
        self._evidence(name, Evidence(so, os, k))

    def probe(self) -> None:
        """How well the site can be read from the features."""
        t = self.tissue

        def measured() -> None:
            found = site_probe(self.features, t.sites, t.groups)
            self.details["site_probe"] = {"per_fold": found.per_fold, "skipped_folds": found.skipped_folds}
            self.add("site_probe_auroc", found.auroc, of_site_probe(found, t.sites, t.groups))

        self.attempt(("site_probe_auroc",), measured)

    def new_site(self, name: str, protocol: FitPredict) -> None:
        """Balanced accuracy at a site that was not trained on: mean over the sites, and the worst."""
        t = self.tissue

        def measured() -> None:
            found = leave_one_site_out(self.features, t.labels, t.sites, t.groups, protocol)
            parts = of_site_transfer(found, t.labels, t.sites, t.groups)
            self.add(f"new_site_{name}_mean", found.mean, mean_of(parts))
            self.add(f"new_site_{name}_worst", found.worst, worst_of(parts))
            per_site = {}
            for site, value in found.per_site.items():
                # Drawn from one group all draws are alike, and those without it say nothing.
                alone = len(np.unique(t.groups[t.sites == site])) < 2
                each = Measure(value) if alone else with_interval(value, parts[site], self.times)
                bounds = {"balanced_accuracy": value, "low": each.low, "high": each.high}
                per_site[t.site_names[site]] = {**bounds, "images": int((t.sites == site).sum())}
            left_out = [t.site_names[s] for s in np.unique(t.sites) if int(s) not in found.per_site]
            self.details.setdefault("new_site", {})[name] = {"per_site": per_site, "left_out": left_out}

        self.attempt((f"new_site_{name}_mean", f"new_site_{name}_worst"), measured)

    def clusters(self, slow: bool) -> None:
        """Whether clusters follow class or site."""
        if not slow:
            self.measures["clustering_score"] = Measure(None, reason=_SLOW)
            return

        t = self.tissue

        def measured() -> None:
            found = clustering_score(self.features, t.labels, t.sites)
            self.add("clustering_score", found.value, of_clustering(found, t.labels, t.sites, t.groups))
            self.details["clustering_combinations"] = len(found.per_combination)

        self.attempt(("clustering_score",), measured)

    def schedule(self, slow: bool) -> None:
        """APD and nIPD of the label-site schedule."""
        if not slow:
            self.measures |= {name: Measure(None, reason=_SLOW) for name in ("apd", "nipd")}
            return
        t = self.tissue

        def measured() -> None:
            found = confounding_schedule(self.features, t.labels, t.sites, t.groups)
            self.details["schedule"] = {
                "classes": [t.classes[label] for label in found.labels],
                "sites": [t.site_names[site] for site in found.sites],
                "slides_per_cell": found.slides_per_cell,
                "cramers_v": found.cramers_v.tolist(),
                "balanced_accuracy": found.accuracies.mean(axis=1).tolist(),
                "sd_over_repeats": found.accuracies.std(axis=1).tolist(),
            }
            self.attempt(("apd",), lambda: drop("apd", found, apd))
            area = partial(nipd, cramers_v=found.cramers_v, chance=0.5)
            self.attempt(("nipd",), lambda: drop("nipd", found, area))

        def drop(name: str, found: Schedule, value: Callable[[Floats], float]) -> None:
            self.add(name, value(found.accuracies), of_schedule(found, t.labels, t.sites, t.groups, value))

        self.attempt(("apd", "nipd"), measured)


def _settled(tissue: Tissue) -> str | None:
    """Why an index of neighbours would be the same for every encoder; None where it would not."""
    cells = {*zip(tissue.labels.tolist(), tissue.sites.tolist(), strict=True)}
    if len({label for label, _ in cells}) == len(cells):
        return "no class comes from two sites: the index would be 0 for every encoder"
    if len({site for _, site in cells}) == len(cells):
        return "no two classes come from one site: the index would be 1 for every encoder"
    return None


def _crossed(tissue: Tissue, rows: Ints) -> bool:
    return len({(tissue.labels[row], tissue.sites[row]) for row in rows}) == 4
