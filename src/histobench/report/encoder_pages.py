"""Pages on all encoders, from stored files: how alike they are, which to use; and tiles of patients."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json
from histobench.report.image_source import ImageSource
from histobench.report.inventory import Inventory
from histobench.report.payload import rounded, write_payload
from histobench.report.thumbnails import Cache, thumbnail
from histobench.roi.comparison.choice import CHOICE_FILE
from histobench.roi.comparison.similarity_table import (
    HEADINGS,
    MEASURES,
    SIMILARITY_FILE,
    clustered,
    read_similarities,
)
from histobench.roi.results.layout import TaskFiles

log = logging.getLogger(__name__)
#: Most pictures of tiles with the most attention in one report.
MOST_TILES = 4000


def write_encoder_pages(site: Path, results_dir: Path) -> dict[str, bool]:
    """Write the data of the pages that the results folder has files for; which of them there are."""
    alike = similarity_payload(results_dir)
    choice = _stored(results_dir / CHOICE_FILE)
    if alike:
        write_payload(site, "similarity", alike)
    if choice:
        write_payload(site, "choice", choice)
    return {"similarity": bool(alike), "choice": bool(choice)}


def similarity_payload(results_dir: Path) -> list[dict[str, Any]]:
    """For each dataset and measure the encoders in the order of their clusters, with a matrix of values."""
    try:
        found = read_similarities(results_dir / SIMILARITY_FILE)
    except HistobenchError as error:
        log.warning("no page on similarity in the report: %s", error)
        return []
    tables = []
    for dataset in dict.fromkeys(each.dataset for each in found):
        for measure in MEASURES:
            pairs = {
                frozenset((each.first, each.second)): [rounded(v) for v in (each.value, each.low, each.high)]
                for each in found
                if (each.dataset, each.measure) == (dataset, measure)
            }
            if not pairs:
                continue
            names, branches = clustered(found, dataset=dataset, measure=measure)
            cells = [[pairs.get(frozenset((a, b)), [1.0, None, None]) for b in names] for a in names]
            tables.append(
                {
                    "dataset": dataset,
                    "measure": measure,
                    "label": HEADINGS[measure],
                    "encoders": names,
                    "cells": cells,
                    "branches": [[[rounded(value) for value in axis] for axis in each] for each in branches],
                }
            )
    return tables


def _stored(path: Path) -> dict[str, Any]:
    """The content of a stored JSON file; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        content = parse_json(read_plain_text(path))
    except (OSError, ValueError, RecursionError) as error:
        log.warning("left out: %s cannot be read (%s)", path.name, error)
        return {}
    return content if isinstance(content, dict) else {}


def write_top_tiles(
    site: Path, inventory: Inventory, sources: Mapping[str, ImageSource], cache: Cache
) -> list[int]:
    """Write the tiles with the most attention of each patient, with pictures where there is a source.

    Returns the runs that have such tiles.
    """
    shown = []
    pictures: dict[tuple[int, str], int] = {}
    for number, run in enumerate(inventory.runs):
        path = TaskFiles.beside(run.path).top_tiles
        if not path.is_file():
            continue
        dataset = inventory.dataset_of[number]
        source = sources.get(inventory.datasets[dataset])
        patients: dict[str, list[list[Any]]] = {}
        try:
            for row in csv.DictReader(read_plain_text(path).splitlines()):
                name = row["img_name"]
                picture = _picture(site, dataset, name, source, pictures, cache)
                patients.setdefault(row["patient"], []).append([name, float(row["attention"]), picture])
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("left out: the tiles of %s cannot be read (%s)", path.name, error)
            continue
        write_payload(site, f"tiles/{number}", [{"patient": p, "tiles": t} for p, t in patients.items()])
        shown.append(number)
    return shown


def _picture(
    site: Path,
    dataset: int,
    name: str,
    source: ImageSource | None,
    pictures: dict[tuple[int, str], int],
    cache: Cache,
) -> str:
    """The place of a tile's picture in the site; empty where it has none."""
    key = dataset, name
    if key not in pictures:
        path = source.path(name) if source is not None and len(pictures) < MOST_TILES else None
        content = thumbnail(path, cache) if path is not None else None
        if content is None:
            return ""
        pictures[key] = len(pictures)
        (site / "thumbs" / "tiles").mkdir(parents=True, exist_ok=True)
        (site / "thumbs" / "tiles" / f"{pictures[key]}.webp").write_bytes(content)
    return f"thumbs/tiles/{pictures[key]}.webp"
