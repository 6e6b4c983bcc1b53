"""Pages on all encoders, from stored files: how alike they are, which to use; and attention on tiles."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import read_note, read_plain_text
from histobench.report.image_source import ImageSource, finder
from histobench.report.inventory import Inventory
from histobench.report.payload import packed, rounded, write_payload
from histobench.report.thumbnails import Cache, Pictures
from histobench.roi.comparison.choice import CHOICE_FILE
from histobench.roi.comparison.ranking_shift import ranking_shifts, shift_grid
from histobench.roi.comparison.similarity_table import HEADINGS, SIMILARITY_FILE, clustered, read_similarities
from histobench.roi.metrics.metric_catalogue import described
from histobench.roi.result_options import MEASURES, CompareOptions
from histobench.roi.results.layout import TaskFiles
from histobench.roi.task_catalogue import FINE_TUNE

log = logging.getLogger(__name__)
#: Most pictures of tiles with the most attention in one report.
MOST_TILES = 4000
#: Cells along the longer side of a map of attention, and most maps in one report.
CELLS, MOST_MAPS = 48, 2000
#: Levels of a map: even steps of the logarithm, from a tenth of the patient's mean to ten times that.
LEVELS = 8


def write_encoder_pages(site: Path, results_dir: Path, inventory: Inventory) -> dict[str, bool]:
    """Write the data of the pages that the results folder has files for; which of them there are."""
    shifts = _ranking_shifts(inventory)
    if shifts:
        write_payload(site, "shift", shifts)
    alike = similarity_payload(results_dir)
    choice = read_note(results_dir / CHOICE_FILE) or {}
    if alike:
        write_payload(site, "similarity", alike)
    if choice:
        write_payload(site, "choice", choice | {"metricLabel": described(str(choice.get("metric"))).label})
    return {"similarity": bool(alike), "choice": bool(choice), "shift": bool(shifts)}


def _ranking_shifts(inventory: Inventory) -> list[dict[str, Any]]:
    """Frozen against fine-tuned networks, as `histobench compare --task Fine-tune` prints them."""
    try:
        shifts = ranking_shifts(inventory.runs, CompareOptions())
    except HistobenchError as error:
        if any(run.task == FINE_TUNE for run in inventory.runs):
            log.warning("no page on fine-tuning in the report: %s", error)
        return []
    return [
        asdict(shift_grid(shift)) | {"title": f"{shift.dataset}: {described(shift.metric).title}"}
        for shift in shifts
        if shift.shifts
    ]


def similarity_payload(results_dir: Path) -> list[dict[str, Any]]:
    """For each dataset and measure the encoders in the order of their clusters, with a matrix of values."""
    found = read_similarities(results_dir / SIMILARITY_FILE)
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


def write_top_tiles(
    site: Path, inventory: Inventory, sources: Mapping[str, ImageSource], cache: Cache
) -> list[int]:
    """Write the tiles with the most attention of each patient, with pictures where there is a source.

    Tiles with coordinates also have a map of each slide. Returns the runs that have such tiles.
    """
    shown = []
    drawn = 0
    pictures = Pictures(site, "tiles", cache, finder(sources), most=MOST_TILES)
    for number, run in enumerate(inventory.runs):
        path = TaskFiles.beside(run.path).top_tiles
        if not path.is_file():
            continue
        dataset = inventory.datasets[inventory.dataset_of[number]]
        patients: dict[str, list[list[Any]]] = {}
        for row in csv.DictReader(read_plain_text(path).splitlines()):
            name = row["img_name"]
            tile = [name, float(row["attention"]), pictures.address(dataset, name)]
            patients.setdefault(row["patient"], []).append(tile)
        maps = attention_maps(TaskFiles.beside(run.path).attention) if drawn < MOST_MAPS else {}
        drawn += sum(map(len, maps.values()))
        content = [{"patient": p, "tiles": t, "maps": maps.get(p, [])} for p, t in patients.items()]
        write_payload(site, f"tiles/{number}", content)
        shown.append(number)
    return shown


def attention_maps(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The attention on the slides of each patient; patients without coordinates of tiles have no map."""
    maps: dict[str, list[dict[str, Any]]] = {}
    if not path.is_file():
        return maps
    try:
        with np.load(path, allow_pickle=False) as box:
            found = {name: box[name] for name in box.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise HistobenchError(f"{path} is damaged; run the task again") from error
    if "coords" not in found:
        return maps
    patient_of, slide_of = found["patient"], found["slide"]
    # 1 is what every tile would have if all of the patient's had the same.
    relative = found["attention"].astype(np.float64) * np.bincount(patient_of)[patient_of]
    known = np.flatnonzero(np.isfinite(found["coords"]).all(axis=1))
    order = known[np.lexsort((slide_of[known], patient_of[known]))]
    keys = np.stack([patient_of[order], slide_of[order]])
    starts = np.flatnonzero((np.diff(keys, axis=1) != 0).any(axis=0)) + 1
    for rows in np.split(order, starts) if len(order) else ():
        cells = attention_cells(found["coords"][rows].astype(np.float64), relative[rows])
        about = {"slide": str(found["slides"][slide_of[rows[0]]]), "tiles": len(rows)}
        mine = maps.setdefault(str(found["patients"][patient_of[rows[0]]]), [])
        mine.append({**about, "cells": packed(cells)})
    return maps


def attention_cells(coords: NDArray[np.float64], relative: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Tiles [n, 2] as cells [rows, columns]: the level of their mean attention, and 0 where no tile is."""
    from scipy.spatial import cKDTree

    low, extent = coords.min(axis=0), np.ptp(coords, axis=0)
    step = 0.0
    if len(coords) > 1:  # tiles of one slide may be on several grids: how far apart are they as a rule?
        some = coords[:: max(1, len(coords) // 2000)]
        step = float(np.median(cKDTree(coords).query(some, k=2, p=np.inf)[0][:, 1]))
    side = max(step, float(extent.max()) / (CELLS - 1)) or 1.0
    place = np.rint((coords - low) / side).astype(np.int64)
    columns, rows = (place.max(axis=0) + 1).tolist()
    flat = place[:, 1] * columns + place[:, 0]
    counts = np.bincount(flat, minlength=rows * columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(flat, weights=relative, minlength=rows * columns) / counts
        level = np.floor((np.log10(mean) + 1) / 2 * LEVELS) + 1
    cells = np.where(counts > 0, np.clip(np.nan_to_num(level, neginf=1.0), 1, LEVELS), 0)
    return cells.reshape(rows, columns).astype(np.uint8)
