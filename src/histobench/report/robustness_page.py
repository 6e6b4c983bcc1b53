"""The data of the robustness page: every table, accuracy site by site, stress curves, worst images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from histobench.core.files import read_plain_text
from histobench.core.plain_data import read_json
from histobench.report.image_source import ImageSource, finder
from histobench.report.payload import rounded, write_payload
from histobench.report.thumbnails import Cache, Pictures
from histobench.roi.comparison.robustness_tables import RobustnessTable
from histobench.roi.results.robustness_files import StoredRobustness
from histobench.roi.robustness.registered_pairs import SEVERAL
from histobench.roi.task_catalogue import ROBUSTNESS

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
)


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
            "caveats": list(table.caveats),
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


FOLDER = "robustness"
STRESS = "stress.json"
#: Measures of a stressed image in the order of the page.
_STRESSED = ("accuracy_drop", "flip_rate", "cosine")


def write_robustness_page(
    site: Path,
    tables: Sequence[RobustnessTable],
    results_dir: Path,
    sources: Mapping[str, ImageSource],
    cache: Cache,
) -> bool:
    """Write `robustness`; False where there is nothing to show."""
    stress = stress_payload(results_dir)
    if not tables and not stress:
        return False
    pictures = Pictures(site, FOLDER, cache, finder(sources))
    entries = []
    for dataset in dict.fromkeys(table.dataset for table in tables):
        own = [table for table in tables if table.dataset == dataset]
        for table, entry in zip(own, robustness_payload(dataset, own), strict=True):
            entries.append(
                {
                    "dataset": dataset,
                    **entry,
                    "perSite": _per_site(table),
                    "worst": {pack.encoder: _worst(pack.content, dataset, pictures) for pack in table.packs},
                }
            )
    write_payload(site, "robustness", {"tables": entries, "stress": stress})
    return True


def stress_payload(results_dir: Path) -> list[dict[str, Any]]:
    """Every stress file below a folder."""
    found = []
    for path in sorted(results_dir.rglob(f"{ROBUSTNESS}/{STRESS}")):
        content = read_json(read_plain_text(path), where=str(path))
        changes = [
            {
                "name": name,
                "family": change["family"],
                "strength": change["strength"],
                **{key: _bounds(change[key]) for key in _STRESSED},
            }
            for name, change in content["changes"].items()
        ]
        found.append(
            {
                "dataset": content["dataset"],
                "encoder": content["encoder"],
                "images": content["num_samples"],
                "groups": content["num_groups"],
                "clean": rounded(content["clean_accuracy"]),
                "changes": changes,
            }
        )
    return found


def board_index(tables: Sequence[RobustnessTable]) -> dict[str, Any] | None:
    """The robustness index as the leaderboard shows it: that of the page, by encoder, with its interval.

    Only where there is one set of images and one site column: a mean over several has no interval, and
    encoders that were measured on different images cannot be ranked.
    """
    known = [
        table for table in tables if any(pack.value("robustness_index") is not None for pack in table.packs)
    ]
    if len(known) != 1:
        return None
    (table,) = known
    values = {
        pack.encoder: _bounds(pack.content["measures"]["robustness_index"])
        for pack in table.packs
        if pack.value("robustness_index") is not None
    }
    return {"dataset": table.dataset, "column": table.column, "values": values}


def _per_site(table: RobustnessTable) -> dict[str, list[dict[str, Any]]]:
    """Protocol -> for each site its number of images and every encoder's accuracy there."""
    shown: dict[str, list[dict[str, Any]]] = {}
    parts = [pack.content["details"].get("new_site") or {} for pack in table.packs]
    for protocol in dict.fromkeys(name for part in parts for name in part):
        sites = dict.fromkeys(
            site for part in parts for site in (part.get(protocol) or {}).get("per_site") or {}
        )
        for site in sites:
            each = [((part.get(protocol) or {}).get("per_site") or {}).get(site) for part in parts]
            images = next(found["images"] for found in each if found)
            values = [_bounds(found, "balanced_accuracy") if found else [None] * 3 for found in each]
            shown.setdefault(protocol, []).append({"site": site, "images": images, "values": values})
    return shown


def _worst(content: Mapping[str, Any], dataset: str, pictures: Pictures) -> list[dict[str, Any]]:
    def shown(image: Mapping[str, Any]) -> dict[str, Any]:
        name = str(image["image"])
        return {
            "label": str(image["label"]),
            "site": str(image["site"]),
            "distance": rounded(image.get("distance")),
            "picture": pictures.address(dataset, name),
            "name": Path(name).name,
        }

    return [
        {
            "margin": rounded(each["margin"]),
            **{part: shown(each[part]) for part in ("image", "same_site", "same_class")},
        }
        for each in content["details"].get("worst_images") or ()
    ]


def _bounds(found: Mapping[str, Any], value: str = "value") -> list[float | None]:
    return [rounded(found[value]), rounded(found["low"]), rounded(found["high"])]
