"""The data of the robustness part of a dataset page: every encoder by every site column."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.robustness import RobustnessTable, robustness_tables
from histobench.roi.results.robustness_files import StoredRobustness, load_robustness
from histobench.roi.robustness.pairs import SEVERAL

log = logging.getLogger(__name__)

#: Measures in the order of the page: name, label, whether less is better.
MEASURES = (
    ("robustness_index", "Robustness index", False),
    ("margin_aware_index", "Margin-aware index", False),
    ("croma_median", "Cross-site margin, median", False),
    ("croma_worst_tenth", "Cross-site margin, worst tenth", False),
    ("croma_share_below", "Share of images nearer to the site", True),
    ("site_probe_auroc", "Site probe, AUROC", True),
    ("new_site_linear_probe_mean", "Linear probe at a new site, mean", False),
    ("new_site_linear_probe_worst", "Linear probe at a new site, worst", False),
    ("new_site_knn_mean", "KNN at a new site, mean", False),
    ("new_site_knn_worst", "KNN at a new site, worst", False),
    ("new_site_prototype_mean", "Prototypes at a new site, mean", False),
    ("new_site_prototype_worst", "Prototypes at a new site, worst", False),
    ("clustering_score", "Clustering score", False),
    ("apd", "APD", False),
    ("nipd", "nIPD", False),
)


def stored_tables(results_dir: Path) -> list[RobustnessTable]:
    """The robustness tables below a folder; a damaged file is told and does not stop the report."""
    try:
        return robustness_tables(load_robustness(results_dir))
    except HistobenchError as error:
        log.warning("no robustness in the report: %s", error)
        return []


def robustness_payload(dataset: str, tables: Sequence[RobustnessTable]) -> list[dict[str, Any]]:
    """One entry per site column (and set of images) of a dataset; values are [value, low, high]."""
    return [
        {
            "column": table.column,
            "encoders": [pack.encoder for pack in table.packs],
            "images": table.packs[0].content["num_samples"],
            "groups": table.packs[0].content["num_groups"],
            "sites": table.packs[0].content["sites"],
            "confounding": table.packs[0].content["label_site_cramers_v"],
            "caveats": list(
                dict.fromkeys(
                    text
                    for pack in table.packs
                    for text in pack.content["additional_info"].get("caveats", ())
                )
            ),
            "measures": [
                {
                    "name": name,
                    "label": label,
                    "lower": lower,
                    "values": [_value(p, name) for p in table.packs],
                }
                for name, label, lower in (*MEASURES, *_pair_measures(table))
                if any(pack.value(name) is not None for pack in table.packs)
            ],
        }
        for table in tables
        if table.dataset == dataset
    ]


def _pair_measures(table: RobustnessTable) -> list[tuple[str, str, bool]]:
    """The measures of registered pairs: over all pairs of views, then by what differs."""
    names = dict.fromkeys(name for pack in table.packs for name in pack.content["measures"])
    return [
        (name, _pair_label(name), False)
        for name in sorted(names, key=lambda name: ("_other_" in name, name != "pair_score"))
        if name.startswith("pair_")
    ]


def _pair_label(name: str) -> str:
    """
    >>> _pair_label("pair_top10_other_stain")
    'Partner among the first 10, other stain'
    """
    what, _, other = name.removeprefix("pair_").partition("_other_")
    words = {"cosine": "Cosine", "score": "Score"}.get(what) or f"Partner among the first {what[3:]}"
    return f"{words}, {'several differ' if other == SEVERAL else f'other {other}'}" if other else words


def _value(pack: StoredRobustness, name: str) -> list[float | None]:
    found = pack.content["measures"].get(name) or {}
    return [found.get("value"), found.get("low"), found.get("high")]
