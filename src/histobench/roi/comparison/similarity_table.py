"""Stored similarities of encoders: the record, its file, clusters and tables; no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json
from histobench.roi.comparison.grids import Grid
from histobench.roi.result_options import MEASURES

#: In a results folder; the report shows it.
SIMILARITY_FILE = "similarity.json"


@dataclass(frozen=True)
class Similarity:
    """One measure of two encoders, with its 95% interval over groups."""

    dataset: str
    measure: str  # cka, neighbors or errors
    first: str
    second: str
    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


def read_similarities(path: Path) -> list[Similarity]:
    """What `histobench similarity` stored; nothing where there is no such file."""
    if not path.is_file():
        return []
    try:
        return [Similarity(**row) for row in parse_json(read_plain_text(path))["similarity"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise HistobenchError(
            f"{path} is not a file of `histobench similarity` ({type(error).__name__}); run it again"
        ) from error


#: One joint of the tree: four places along the encoders (0, 1, ...), and their four distances.
Branch = tuple[list[float], list[float]]


def clustered(
    found: Sequence[Similarity], *, dataset: str, measure: str = "cka"
) -> tuple[list[str], list[Branch]]:
    """The encoders in the order of the leaves of average linkage, and the branches of the tree.

    The distance of two encoders is one minus their value, at least 0; a pair without a value counts as 0.
    """
    from scipy.cluster.hierarchy import dendrogram, linkage
    from scipy.spatial.distance import squareform

    rows = [each for each in found if (each.dataset, each.measure) == (dataset, measure)]
    names = list(dict.fromkeys(name for each in rows for name in (each.first, each.second)))
    if len(names) < 2:
        raise HistobenchError(f"{dataset}: no {measure} of two encoders or more")
    place = {name: index for index, name in enumerate(names)}
    distance = np.ones((len(names), len(names)))
    np.fill_diagonal(distance, 0.0)
    for each in rows:
        one, two = place[each.first], place[each.second]
        distance[one, two] = distance[two, one] = max(0.0, 1.0 - (each.value or 0.0))
    tree = dendrogram(linkage(squareform(distance), "average", optimal_ordering=True), no_plot=True)
    # scipy puts the leaves at 5, 15, 25, ...
    branches = [
        ([x / 10 - 0.5 for x in xs], list(map(float, ys)))
        for xs, ys in zip(tree["icoord"], tree["dcoord"], strict=True)
    ]
    return [names[leaf] for leaf in tree["leaves"]], branches


HEADINGS = {"cka": "CKA", "neighbors": "shared neighbors", "errors": "shared errors (kappa)"}


def similarity_grid(found: Sequence[Similarity]) -> list[Grid]:
    grids = []
    for dataset in dict.fromkeys(each.dataset for each in found):
        pairs: dict[tuple[str, str], dict[str, Similarity]] = {}
        for each in found:
            if each.dataset == dataset:
                pairs.setdefault((each.first, each.second), {})[each.measure] = each
        highest = {names: max(-1.0, *(m.value or -1.0 for m in own.values())) for names, own in pairs.items()}
        rows = tuple(
            (" / ".join(names), *(_cell(measures.get(measure)) for measure in MEASURES))
            for names, measures in sorted(pairs.items(), key=lambda item: -highest[item[0]])
        )
        title = f"{dataset}: how alike encoders are on the test images"
        note = "1: the same; 0: as by chance. 95% intervals by the jackknife over groups of images"
        grids.append(Grid(title, ("encoders", *HEADINGS.values()), rows, (note,)))
    return grids


def _cell(each: Similarity | None) -> str:
    if each is None or each.value is None:
        return "-"
    text = f"{each.value:.3f}"
    return text if each.low is None else f"{text} [{each.low:.3f}, {each.high:.3f}]"
