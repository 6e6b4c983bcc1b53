"""Do clusters of the features follow the biology or the site?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.robustness.site_neighbours import Ints

_SEED, _MOST_CLUSTERS, _RUNS = 1337, 30, 50


def crossed_pairs(labels: Ints, sites: Ints) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Every two labels that share two sites, with each two of these sites."""
    classes, class_of = np.unique(labels, return_inverse=True)
    places, place_of = np.unique(sites, return_inverse=True)
    shown = np.zeros((len(classes), len(places)), dtype=bool)
    shown[class_of, place_of] = True
    return [
        ((int(classes[first]), int(classes[second])), (int(places[one]), int(places[other])))
        for first, second in combinations(range(len(classes)), 2)
        for one, other in combinations(np.flatnonzero(shown[first] & shown[second]), 2)
    ]


@dataclass(frozen=True)
class Clustered:
    """Two labels at two sites: their images (rows of the features) and the clusters of each run [runs, n]."""

    rows: Ints
    clusters: Ints
    score: float  # mean over runs of ARI(clusters, label) - ARI(clusters, site)


@dataclass(frozen=True)
class ClusteringScore:
    """Per pair of labels and pair of sites what the clusters follow."""

    per_combination: dict[tuple[int, int, int, int], Clustered]

    @property
    def value(self) -> float:
        """Mean over the combinations, between -1 (site) and 1 (biology)."""
        return float(np.mean([found.score for found in self.per_combination.values()]))


def clustering_score(
    features: NDArray[np.floating],
    labels: Ints,
    sites: Ints,
    *,
    runs: int = _RUNS,
    most_clusters: int = _MOST_CLUSTERS,
) -> ClusteringScore:
    """PathoROB's score: k-means on unit vectors, the number of clusters chosen by the cosine silhouette.

    For each pair of labels and pair of sites whose four cells all have images, which are not all the same.
    """
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    scores = {}
    for two_labels, two_sites in crossed_pairs(labels, sites):
        rows = np.flatnonzero(np.isin(labels, two_labels) & np.isin(sites, two_sites))
        if len(np.unique(unit[rows], axis=0)) > 1:
            scores[*two_labels, *two_sites] = _clustered(unit, labels, sites, rows, runs, most_clusters)
    if not scores:
        raise HistobenchError("no two classes share two sites; clusters cannot be compared with both")
    return ClusteringScore(scores)


def _clustered(
    unit: NDArray[np.floating], labels: Ints, sites: Ints, rows: Ints, runs: int, most_clusters: int
) -> Clustered:
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score

    count = _clusters(unit[rows], most_clusters)
    clusters = np.empty((runs, len(rows)), dtype=np.int64)
    scores = []
    for run in range(runs):
        found = KMeans(count, init="random", n_init=5, random_state=_SEED + run).fit_predict(unit[rows])
        scores.append(adjusted_rand_score(labels[rows], found) - adjusted_rand_score(sites[rows], found))
        clusters[run] = found
    return Clustered(rows, clusters, float(np.mean(scores)))


def _clusters(unit: NDArray[np.floating], most: int) -> int:
    """The number of clusters with the best silhouette (cosine)."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    best, chosen = -np.inf, 2
    # Copies are one place: there cannot be more clusters than places.
    for count in range(2, min(most, len(unit) - 1, len(np.unique(unit, axis=0))) + 1):
        found = KMeans(count, init="random", n_init=20, random_state=_SEED).fit_predict(unit)
        if len(np.unique(found)) < 2:
            continue
        score = silhouette_score(unit, found, metric="cosine")
        if score > best:
            best, chosen = score, count
    return chosen
