"""Takes over from the last run in a results folder what still holds, before anything is started."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_note
from histobench.roi.data.image_ref import locate
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset
from histobench.roi.encoders.own_name import is_computed
from histobench.roi.encoders.registry import EncoderRecipe
from histobench.roi.evaluation.evaluation_request import FILE, damaged_in
from histobench.roi.features.fingerprint import LIBRARIES, fingerprint, versions
from histobench.roi.task_catalogue import ZERO_SHOT
from histobench.work.run_folder import DONE, RunFolder, Unit


def inputs_of(dataset: RoiDataset, spec: Mapping[str, Any]) -> str:
    """Return a digest of what features depend on besides the spec of their unit.

    It is empty where only the computation can say. Images are known by size, times and inode.
    """
    settings = spec["settings"]
    try:
        known = [EncoderRecipe(**recipe).zoo_identity() for recipe in spec["recipes"]]
        if not known or None in known or settings["recheck"] != "auto" or settings["no_cache"]:
            return ""
        stamps = hashlib.sha256()
        for ref in (locate(image.path) for images in dataset.splits.values() for image in images):
            stamps.update(repr((ref.file, ref.stamp())).encode())
    except (HistobenchError, OSError):  # without weights or files: the extraction says what is wrong
        return ""
    chosen = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "ATEN_CPU_CAPABILITY")}
    devices = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
    machine = [platform.node(), platform.machine(), chosen, devices]
    return fingerprint([known, order_of(dataset), stamps.hexdigest(), machine, versions(*LIBRARIES)])


def order_of(dataset: RoiDataset) -> str:
    """A digest of all that a dataset says about its images, in their order."""
    digest = hashlib.sha256(json.dumps([dataset.name, list(dataset.classes)]).encode())
    for split in SPLITS:
        for image in dataset.splits.get(split, ()):
            said = [split, str(image.path), image.label, image.name, image.group, list(image.sites)]
            said += [image.target, image.place] if image.target or image.place else []
            digest.update(json.dumps(said).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def stamp_of(path: Path | str) -> list[int]:
    stat = os.stat(path)
    return [stat.st_size, stat.st_mtime_ns]


def take_over(folder: RunFolder, before: RunFolder | None, datasets: Mapping[str, RoiDataset]) -> None:
    """Note the units as done that the run `before` has done with the same inputs and intact files."""
    if before is None:
        return
    before.refresh()
    taken: set[str] = set()
    for unit in folder.units():
        note = before.output(unit.id)
        if note is None or note["state"] != DONE or not _holds(unit, note, taken, datasets):
            continue
        if unit.kind == "prepare" and not _are_written(folder, before, unit):
            continue
        kept = {key: value for key, value in note.items() if key not in ("state", "unit", "files")}
        if unit.kind == "features":
            kept |= {"computed": 0, "seconds": 0.0}
        if kept.get("outcome") == "evaluated":
            kept["outcome"] = "unchanged"
        # What a dataset was prepared for is done: the files of that are not needed any more.
        folder.finish(unit, files=map(Path, note["files"] if unit.kind != "prepare" else ()), **kept)
        taken.add(unit.id)


def _are_written(folder: RunFolder, before: RunFolder, prepare: Unit) -> bool:
    for unit in folder.units():
        if unit.kind == "features" and prepare.id in unit.needs and is_computed(unit.spec["asked"]):
            note = before.output(unit.id) or {}
            known = ((Path(each["path"]), each["stamp"]) for each in note.get("extracted", {}).values())
            intact = (path.exists() and stamp_of(path) == stamp for path, stamp in known)
            if note.get("state") != DONE or not all(intact):
                return False
    return True


def _holds(unit: Unit, note: Mapping[str, Any], taken: set[str], datasets: Mapping[str, RoiDataset]) -> bool:
    if unit.kind == "prepare":
        inputs = note.get("inputs")
        if not inputs or note["failures"]:
            return False
        return bool(inputs == inputs_of(datasets[unit.dataset], unit.spec))
    if not unit.needs or not taken.issuperset(unit.needs):
        return False
    if unit.kind == "features":  # those of other tools are read again
        return is_computed(unit.spec["asked"])
    if unit.kind == "compare":  # whoever reads the tables compares them with the results
        return True
    if unit.kind != "evaluate":
        return False
    if unit.spec["task"] == ZERO_SHOT and unit.spec["options"]["zeroshot_prompt_file"]:
        return False  # the text of the prompts may have changed
    if note["outcome"] == "skipped":
        return True
    finished = read_note(Path(note["place"]) / FILE) or {}
    known = finished.get("digest") is not None and finished["digest"] == note["digest"]
    return known and not damaged_in(Path(note["place"]), finished)
