"""The data of a dataset page: classes, example images, leakage findings and learning curves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from histobench.report.image_source import ImageSource
from histobench.report.inventory import Inventory
from histobench.report.robustness_page import robustness_payload
from histobench.report.table import TableResult
from histobench.roi.comparison.robustness_tables import RobustnessTable
from histobench.roi.data.check import check_dataset
from histobench.roi.data.roi_dataset import SPLITS

#: Settings that have a place on a learning curve.
_FEW_SHOT = re.compile(r"^(?P<way>\d+)way_(?P<x>\d+)shot$")
_SHARE = re.compile(r"^(?P<way>)(?P<x>[\d.]+)pct$")
#: Datasets above this many images are checked only when asked for: every image is read.
MOST_CHECKED = 1000
_SHOWN_FINDINGS = 100
_EXAMPLES = 8


def dataset_payload(
    index: int,
    inventory: Inventory,
    results: Sequence[TableResult],
    source: ImageSource | None,
    *,
    robustness: Sequence[RobustnessTable] = (),
    thorough: bool = False,
) -> dict[str, Any]:
    """Everything about one dataset that is not a table of the leaderboard."""
    members = [result for result in results if result.dataset_index == index]
    sets = [shown.images for result in members for shown in result.image_sets.values()]
    images = max(sets, key=lambda images: len(images.names), default=None)
    test = [] if images is None else np.bincount(images.labels, minlength=len(images.classes)).tolist()
    return {
        "classes": [] if images is None else list(images.classes),
        "images": None if images is None else images.key,
        "counts": {"test": test} | _split_counts(source, images.classes if images else ()),
        "numTrain": next(
            (
                run.info["num_train"]
                for run, d in zip(inventory.runs, inventory.dataset_of, strict=True)
                if d == index and isinstance(run.info.get("num_train"), int)
            ),
            None,
        ),
        "examples": []
        if images is None
        else [np.flatnonzero(images.labels == k)[:_EXAMPLES].tolist() for k in range(len(images.classes))],
        "findings": _findings(source, thorough),
        "fewShot": _curve(inventory, members, _FEW_SHOT),
        "efficiency": _curve(inventory, members, _SHARE),
        "robustness": robustness_payload(inventory.datasets[index], robustness),
    }


def _split_counts(source: ImageSource | None, classes: Sequence[str]) -> dict[str, list[int]]:
    """Images per class of the other splits; empty where labels and classes do not meet."""
    data = None if source is None else source.dataset
    if data is None or data.target is not None:
        return {}
    by_id = dict(zip(map(str, range(len(classes))), classes, strict=True))  # a CSV may list ids
    names = [name if name in classes else by_id.get(name, "") for name in data.classes]
    if set(names) != set(classes):
        return {}
    counts = {}
    for split in SPLITS:
        if split != "test" and data.splits.get(split):
            found = Counter(names[image.label] for image in data.splits[split])
            counts[split] = [found[name] for name in classes]
    return counts


def _findings(source: ImageSource | None, thorough: bool) -> dict[str, Any]:
    if source is None or source.reading is None:
        return {"checked": False, "why": "the dataset was not given (`histobench report --images`)"}
    total = sum(map(len, source.reading.dataset.splits.values()))
    if total > MOST_CHECKED and not thorough:
        why = f"{total:,} images are too many for a quick report; `histobench data check` looks at all"
        return {"checked": False, "why": why}
    items = [
        {"level": finding.level, "kind": finding.kind, "message": source.without_folders(finding.message)}
        for finding in check_dataset(source.reading, on_bad_image="skip").found
        if finding.kind not in ("missing file", "left out")
    ]
    return {"checked": True, "images": total, "total": len(items), "items": items[:_SHOWN_FINDINGS]}


def _curve(
    inventory: Inventory, members: Sequence[TableResult], settings: re.Pattern[str]
) -> list[dict[str, Any]]:
    """One point per run whose setting has a place on the curve."""
    points: list[dict[str, Any]] = []
    for result in members:
        board = inventory.boards[result.board]
        where = settings.match(board.setting)
        if where is None:
            continue
        for number in next(iter(result.cells.values()), {}):
            summary: Mapping[str, Any] = result.episodes.get(number) or {}
            values = {
                metric: [cells[number].value, cells[number].low, cells[number].high]
                for metric, cells in result.cells.items()
                if cells[number].value is not None
            }
            points.append(
                {
                    "run": number,
                    "way": where["way"],
                    "x": float(where["x"]),
                    "preset": board.preset,
                    "values": values,
                    "spread": {metric: row[1] for metric, row in summary.items() if metric in values},
                }
            )
    return points
