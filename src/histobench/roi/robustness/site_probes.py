"""What a classifier can read from the features: the site (it should not), and the label at a new site."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.robustness.site_neighbours import Floats, Ints

_FOLDS, _SEED, _MAX_ITER = 5, 42, 1000
#: Predicts the labels of new features after seeing training features, and once more without each unit of the
#: training rows: (x, y, x_new, unit of each row or -1, number of units) -> labels [n], labels [units, n].
FitWithout = Callable[[NDArray[np.floating], Ints, NDArray[np.floating], Ints, int], tuple[Ints, Ints]]

#: The same for many sites at once: (features, labels, training rows [sites, n], rows to predict of each site)
#: -> labels of these, or None where it cannot.
FitSites = Callable[[NDArray[np.floating], Ints, NDArray[np.bool_], list[Ints]], list[Ints] | None]


@dataclass(frozen=True)
class SiteProbe:
    """How well the site can be read: AUROC per fold (one against the rest, macro), .5 where it cannot."""

    per_fold: tuple[float, ...]
    skipped_folds: int
    scores: Floats  # [n, sites], the out-of-fold probability of each site; NaN where a fold was skipped
    fold: Ints  # [n], the fold an image was tested in; -1 where that fold was skipped

    @property
    def auroc(self) -> float:
        """Mean over the folds."""
        return float(np.mean(self.per_fold))


def site_probe(features: NDArray[np.floating], sites: Ints, groups: Ints) -> SiteProbe:
    """Cross-validated logistic regression of the site, whole groups held out.

    As PathoROB does it, with two differences: the scaler is fitted on the training folds only, and an AUROC
    below .5 stays what it is. Folds in which a site is missing from either side are skipped.
    """
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedGroupKFold

    classes = int(sites.max()) + 1
    if classes < 2:
        raise HistobenchError("there is only one site; the site probe needs two")
    folds = min(_FOLDS, *(len(np.unique(groups[sites == site])) for site in np.unique(sites)))
    if folds < 2:
        raise HistobenchError("a site has one group only; the site probe needs two groups at each site")
    scores = np.full((len(features), classes), np.nan)
    tested_in = np.full(len(features), -1, dtype=np.int64)
    areas: list[float] = []
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=_SEED)
    for train, test in splitter.split(features, sites, groups):
        if len(np.unique(sites[train])) < classes or len(np.unique(sites[test])) < classes:
            continue
        shares = _classifier().fit(features[train], sites[train]).predict_proba(features[test])
        scores[test], tested_in[test] = shares, len(areas)
        truth, guess = sites[test], shares[:, 1] if classes == 2 else shares
        areas.append(float(roc_auc_score(truth, guess, multi_class="ovr", labels=np.arange(classes))))
    if not areas:
        raise HistobenchError("no fold has every site on both sides; the site probe needs more groups")
    return SiteProbe(tuple(areas), folds - len(areas), scores, tested_in)


def _classifier() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=_MAX_ITER))


@dataclass(frozen=True)
class SiteTransfer:
    """Balanced accuracy at each site after training on all others; `predicted` [n] are the labels given.

    `without` is the accuracy at each site where a unit is neither trained on nor tested [units]; NaN where it
    was all the site had.
    """

    per_site: dict[int, float]
    predicted: Ints  # -1 where a site could not be tested
    without: dict[int, Floats]

    @property
    def worst(self) -> float:
        """The site at which the encoder serves worst."""
        return min(self.per_site.values())

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.per_site.values())))


def leave_one_site_out(
    features: NDArray[np.floating],
    labels: Ints,
    sites: Ints,
    groups: Ints,
    units: Ints,
    fit: FitWithout,
    *,
    refit: bool = True,
    fit_sites: FitSites | None = None,
) -> SiteTransfer:
    """Train on all sites but one, test on that one, for every site, and again without each unit [n].

    Without `refit` a unit is no longer tested, but the classifiers stay; `fit_sites` then does the work of
    `fit` for all sites at once. Groups that also appear at the
    left-out site are not trained on. Balanced accuracy is over the classes that the site has; sites with a
    class that no other site shows are left out.
    """
    predicted = np.full(len(labels), -1, dtype=np.int64)
    per_site: dict[int, float] = {}
    without: dict[int, Floats] = {}
    count = int(units.max()) + 1
    parts: list[tuple[int, NDArray[np.bool_], NDArray[np.bool_]]] = []
    for site in np.unique(sites):
        test = sites == site
        train = ~test & ~np.isin(groups, groups[test])
        if np.isin(np.unique(labels[test]), labels[train]).all():
            parts.append((int(site), train, test))
    at_once: list[Ints] | None = None
    if parts and fit_sites is not None and not refit:
        trains = np.stack([train for _, train, _ in parts])
        at_once = fit_sites(features, labels, trains, [np.flatnonzero(test) for _, _, test in parts])
    for place, (site, train, test) in enumerate(parts):
        if at_once is not None:
            full = at_once[place]
            left = np.tile(full, (count, 1))
        else:
            trained = units[train] if refit else np.full(int(train.sum()), -1)
            full, left = fit(features[train], labels[train], features[test], trained, count)
        predicted[test] = full
        truth = labels[test]
        everyone = np.ones((1, len(truth)), dtype=bool)
        per_site[site] = float(_balanced(truth, (full == truth)[None], everyone)[0])
        without[site] = _balanced(truth, left == truth, units[test][None, :] != np.arange(count)[:, None])
    if not per_site:
        raise HistobenchError("no site can be left out: each has a class that no other site shows")
    return SiteTransfer(per_site, predicted, without)


def _balanced(truth: Ints, right: NDArray[np.bool_], counted: NDArray[np.bool_]) -> Floats:
    """Balanced accuracy [b] of images [n] that are `right` [b, n], over those that are `counted` [b, n]."""
    recalls = []
    for label in np.unique(truth):
        here = counted[:, truth == label]
        size = here.sum(axis=1)
        hits = (here & right[:, truth == label]).sum(axis=1)
        recalls.append(np.where(size > 0, hits / np.maximum(size, 1), np.nan))
    return mean_of_known(np.array(recalls))


def mean_of_known(values: Floats) -> Floats:
    """Mean over rows of what is not NaN; NaN where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=0))
