"""Encoders side by side in robustness: every measure with its interval, and paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from histobench.core.files import write_json
from histobench.roi.comparison.grids import Grid, unchecked_words
from histobench.roi.data.sites import PAIR_COLUMN
from histobench.roi.encoders.own_name import UNCHECKED
from histobench.roi.results.robustness_files import StoredRobustness, load_robustness
from histobench.roi.robustness.leaving_out import METHOD, Range, columns_of
from histobench.statistics.jackknife import differences
from histobench.statistics.tests import holm

FILE = "robustness.json"
#: The share of images that have a neighbour which tells class from site: what the index rests on.
COUNTED = "support"
#: What the table shows, with its heading and whether more is better.
SHOWN = (
    ("robustness_index", "index", True),
    (COUNTED, "images counted", True),
    ("croma_median", "margin", True),
    ("site_probe_auroc", "site AUROC", False),
    ("new_site_linear_probe_mean", "new site", True),
    ("new_site_linear_probe_worst", "worst site", True),
)
#: The same for registered pairs.
_SHOWN_OF_PAIRS = (
    ("pair_cosine", "cosine", True),
    ("pair_top1", "top-1", True),
    ("pair_top10", "top-10", True),
    ("pair_score", "score", True),
)


@dataclass(frozen=True)
class PairedMeasure:
    """First minus second encoder in one measure, paired by group; `p_holm` over all pairs of encoders."""

    measure: str
    first: str
    second: str
    difference: float
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None


@dataclass(frozen=True)
class RobustnessTable:
    """The packs of one dataset and site column, best index first, with their differences."""

    dataset: str
    column: str
    packs: tuple[StoredRobustness, ...]
    pairs: tuple[PairedMeasure, ...]

    @property
    def reason(self) -> str:
        """Why no encoder has a number by this column; empty where that depends on the encoder."""
        return next((pack.reason for pack in self.packs), "")

    @property
    def caveats(self) -> tuple[str, ...]:
        """What to keep in mind when reading the numbers; names encoders that no one checked."""
        said = [(pack.encoder, pack.content["additional_info"].get("caveats", ())) for pack in self.packs]
        others = dict.fromkeys(text for _, texts in said for text in texts if text != UNCHECKED)
        return (*unchecked_words(said), *others)


def robustness_tables(packs: Sequence[StoredRobustness]) -> list[RobustnessTable]:
    """One table per dataset, site column and set of images; registered pairs after the sites."""
    alike: dict[tuple[str, str, str], list[StoredRobustness]] = {}
    for pack in packs:
        alike.setdefault((pack.dataset, pack.column, pack.images), []).append(pack)
    return [
        RobustnessTable(*key[:2], tuple(sorted(alike[key], key=_rank)), _pairs(alike[key]))
        for key in sorted(alike, key=lambda key: (key[0], key[1] == PAIR_COLUMN))
    ]


def summarise(results_dir: Path) -> tuple[RobustnessTable, ...]:
    """The tables of all packs below a folder, written to its `robustness.json` where there are any."""
    tables = tuple(robustness_tables(load_robustness(results_dir))) if results_dir.is_dir() else ()
    if tables:
        write_json(results_dir / FILE, {"tables": [_as_json(table) for table in tables]})
    return tables


def robustness_grid(table: RobustnessTable) -> Grid:
    first = table.packs[0].content
    shown = shown_measures(table)
    rows = tuple((pack.encoder, *(_cell(pack, name) for name, _, _ in shown)) for pack in table.packs)
    intervals = f"intervals: 95 %, {METHOD}"
    counted = (
        f"{first['num_samples']} images of {first['num_groups']} groups from {len(first['sites'])} sites"
    )
    about = f"{counted}; {intervals}; more is better except for site AUROC (.5: site not visible)"
    if table.column == PAIR_COLUMN and not table.reason:
        details = first["details"]
        about = (
            f"{details['places']} places in {len(first['sites'])} views, "
            f"{sum(details['pairs_of_views'].values())} pairs of views (median over these); "
            f"{first['num_groups']} groups; {intervals}; more is better"
        )
    notes = [
        *(() if table.reason else (about,)),  # the reason is one of the caveats
        *table.caveats,
        *(() if table.reason else _reasons(table)),
    ]
    header = ("encoder", *(heading for _, heading, _ in shown))
    what = "registered pairs" if table.column == PAIR_COLUMN else f"robustness by {table.column}"
    return Grid(f"{table.dataset}: {what}", header, rows, tuple(notes))


def shown_measures(table: RobustnessTable) -> tuple[tuple[str, str, bool], ...]:
    return _SHOWN_OF_PAIRS if table.column == PAIR_COLUMN else SHOWN


def _rank(pack: StoredRobustness) -> tuple[float, str]:
    # A high cosine alone may be an encoder to which everything looks alike.
    names = ("pair_score", "pair_top1") if pack.column == PAIR_COLUMN else ("robustness_index",)
    value = next((known for name in names if (known := pack.value(name)) is not None), None)
    return (np.inf if value is None else -value, pack.encoder)


def _pairs(packs: Sequence[StoredRobustness]) -> tuple[PairedMeasure, ...]:
    ranked = sorted(packs, key=_rank)
    left_out = {pack.path: pack.left_out() for pack in ranked}
    found: list[PairedMeasure] = []
    for name in dict.fromkeys(name for left in left_out.values() for name in left):
        known = [pack for pack in ranked if pack.value(name) is not None and name in left_out[pack.path]]
        if len(known) < 2:
            continue
        columns = np.stack([left_out[pack.path][name] for pack in known], axis=1)
        values = np.array([pack.value(name) for pack in known], dtype=np.float64)
        names = tuple(pack.encoder for pack in known)
        images, groups = known[0].content["num_samples"], known[0].content["num_groups"]
        sizes = np.full(groups, images / max(groups, 1))
        within: Range = "share" if ((values >= 0) & (values <= 1)).all() else "contrast"
        gaps = differences(columns_of(names, values, columns, sizes, within))
        corrected = holm(gaps.p_value)
        for k, (first, second) in enumerate(zip(gaps.first, gaps.second, strict=True)):
            bounds = (gaps.low[k], gaps.high[k], gaps.p_value[k], corrected[k])
            known_bounds = (float(number) if np.isfinite(number) else None for number in bounds)
            pair = names[first], names[second], float(gaps.difference[k])
            found.append(PairedMeasure(name, *pair, *known_bounds))
    return tuple(found)


def _cell(pack: StoredRobustness, name: str) -> str:
    if name == COUNTED:
        share = pack.content["details"].get("support", {}).get("robustness_index")
        return "-" if share is None else f"{share:.0%}"
    found = pack.content["measures"].get(name) or {}
    if found.get("value") is None:
        return "-"
    text = f"{found['value']:.3f}"
    return text if found.get("low") is None else f"{text} [{found['low']:.3f}, {found['high']:.3f}]"


def _reasons(table: RobustnessTable) -> list[str]:
    said = (
        (heading, (pack.content["measures"].get(name) or {}).get("reason"))
        for pack in table.packs
        for name, heading, _ in shown_measures(table)
    )
    return list(dict.fromkeys(f"{heading}: {reason}" for heading, reason in said if reason))


def index_words(table: RobustnessTable) -> list[str]:
    if table.reason:
        what = "for registered pairs" if table.column == PAIR_COLUMN else f"by {table.column}"
        return [f"No number {what}: {table.reason}."]
    if table.column == PAIR_COLUMN:
        return []
    shares: dict[str, list[str]] = {}
    reasons: dict[str, list[str]] = {}
    for pack in table.packs:
        found = pack.content["measures"].get("robustness_index") or {}
        if found.get("value") is not None:
            shares.setdefault(_cell(pack, COUNTED), []).append(pack.encoder)
        elif found.get("reason"):
            reasons.setdefault(found["reason"], []).append(pack.encoder)

    def named(text: str, encoders: list[str]) -> str:
        return text if len(encoders) == len(table.packs) else f"{text} ({', '.join(encoders)})"

    counted = ", ".join(named(share, encoders) for share, encoders in shares.items())
    return [
        *([f"Images counted in the index by {table.column}: {counted}."] if counted else []),
        *(f"No index by {table.column}{named('', names)}: {reason}." for reason, names in reasons.items()),
    ]


def _as_json(table: RobustnessTable) -> dict[str, Any]:
    return {
        "dataset": table.dataset,
        "column": table.column,
        "encoders": {
            pack.encoder: {
                "measures": pack.content["measures"],
                "k": pack.content["details"].get("k"),
                "file": pack.path.name,
            }
            for pack in table.packs
        },
        "differences": [asdict(pair) for pair in table.pairs],
    }
