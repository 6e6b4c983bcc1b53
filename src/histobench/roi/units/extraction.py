"""The units that make features: prepare a dataset, compute shards of rows, write feature files."""

from __future__ import annotations

import json
import platform
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from histobench.core.devices import cpu_kind, device_name, resolve_device
from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, patience, patiently, read_bytes
from histobench.core.folders import cache_dir
from histobench.core.plain_data import parse_json
from histobench.core.progress import Progress
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset
from histobench.roi.encoders.own_name import is_computed, names_features
from histobench.roi.encoders.registry import EncoderRecipe
from histobench.roi.features.cache.content_hashes import Contents, Keys
from histobench.roi.features.cache.row_cache import KEY_BYTES, RowCache
from histobench.roi.features.feature_extraction import Extractor
from histobench.roi.features.fingerprint import versions
from histobench.roi.features.inference.device_runner import DeviceRunner
from histobench.roi.features.inference.shards import Shard
from histobench.roi.features.loading.loader import useful_workers
from histobench.roi.features.multi_device import planned_runner
from histobench.roi.features.shard_plan import (
    Extraction,
    ExtractionPlan,
    PlannedEncoder,
    problems_of,
    write_splits,
)
from histobench.roi.options import Settings
from histobench.roi.units.unchanged import inputs_of, order_of, stamp_of
from histobench.work.run_folder import DONE, FOUND, RunFolder, Unit, write_lines

#: Shards of one unit: some seconds of work, which is what a lost machine costs.
SHARDS_PER_UNIT = {"cuda": 8}
#: Encoders of one unit have together no more weights than this, for they are on the device at once.
PARAMETERS = 1_200_000_000


def prepare(folder: RunFolder, unit: Unit, dataset: RoiDataset, progress: Progress) -> Extractor | None:
    """Plan the features of a dataset and list what is missing as units; one that computes all is returned."""
    spec, alone = unit.spec, folder.engine == "local"
    recipes = [EncoderRecipe(**recipe) for recipe in spec["recipes"]]
    settings, place = Settings(**spec["settings"]), Path(spec["save_dir"])
    inputs = inputs_of(dataset, spec) if alone else ""  # now: what changes later is not what was used
    how: dict[str, Any] = {"root": cache_of(folder, settings), "progress": progress}
    job = Extractor(dataset, recipes, place, settings, **how, keep=alone, tolerant=True)
    keeps = False
    try:
        plan = job.plan()
        images = folder.path / "images" / f"{unit.id}.jsonl"
        begins = write_images(images, (shard.keys for shard in plan.shards), plan.refs)
        keys = folder.path / "images" / f"{unit.id}.keys"
        with atomic_path(keys) as temporary:
            temporary.write_bytes(plan.contents.keys.data.data)
        listed = folder.path / FOUND / f"{unit.id}.jsonl"
        write_lines(listed, shard_units(unit, plan, begins, together=alone))
        folder.finish(
            unit,
            files=[images, keys, listed],
            encoders=[asdict(encoder) for encoder in plan.encoders],
            failures=dict(plan.failures),
            unreadable={str(path): why for path, why in plan.unreadable.items()},
            order=order_of(dataset),
            device=plan.device,
            device_kind=device_kind(plan.device),
            threads=None if alone else plan.threads,
            versions=versions(),
            inputs=inputs,
        )
        keeps = alone and bool(plan.shards)
    finally:
        if not keeps:
            job.close()
    return job if keeps else None


def cache_of(folder: RunFolder, settings: Settings) -> Path:
    """Return the folder of the cache; without one, rows are kept in the run until it ends."""
    return folder.path / "cache" if settings.no_cache else cache_dir()


def shard_units(
    unit: Unit, plan: ExtractionPlan, begins: Sequence[int], *, together: bool = False
) -> list[Unit]:
    """The shards of a plan, some of them to a unit, for encoders that share the decoding: all `together`?"""
    size = SHARDS_PER_UNIT.get(plan.device.partition(":")[0], 1)
    units: list[Unit] = []
    started: set[int] = set()
    for team in [set(range(len(plan.encoders)))] if together else _teams(plan.encoders):
        for encoders, alike in groupby(range(len(plan.shards)), lambda row: plan.shards[row].encoders):
            rows = list(alike)
            positions = [position for position in encoders if position in team]
            names = ", ".join(plan.encoders[position].asked for position in positions)
            for row in rows[::size] if positions else ():
                end = min(row + size, rows[-1] + 1)
                spec = {
                    "prepare": unit.id,
                    "encoders": positions,
                    "begin": begins[row],
                    "end": begins[end],
                    "sizes": [len(shard.keys) for shard in plan.shards[row:end]],
                    "shards": [row, end],
                    # How far the fast path is from the plain one is measured on an encoder's first images.
                    "first": [position for position in positions if position not in started],
                }
                started.update(positions)
                units.append(Unit("shards", unit.dataset, names, spec, (unit.id,)))
    return units


def _teams(encoders: Sequence[PlannedEncoder]) -> list[set[int]]:
    """Encoders that see the same pixels, as many together as one device may be asked to hold."""
    teams: list[set[int]] = []
    for position, encoder in enumerate(encoders):
        for team in teams:
            others = [encoders[member] for member in team]
            parameters = sum(other.parameters for other in others) + encoder.parameters
            if others[0].pixels == encoder.pixels and parameters <= PARAMETERS:
                team.add(position)
                break
        else:
            teams.append({position})
    return teams


def open_runner(
    folder: RunFolder, prepared: Mapping[str, Any], unit: Unit, asked: Mapping[str, Any]
) -> DeviceRunner:
    """Make the encoders of a unit ready on this machine's device; `asked` is the spec that was prepared."""
    check_machine(prepared)
    encoders = {place: _planned(prepared, place) for place in unit.spec["encoders"]}
    for encoder in encoders.values():  # its file is run: no output may name another one than the plan
        if encoder.recipe is None or asdict(encoder.recipe) not in asked["recipes"]:
            raise HistobenchError(f"{encoder.asked} is not in the plan of this run; start a new run")
    settings = Settings(**{**asked["settings"], "on_bad_image": "skip"})
    return planned_runner(
        encoders,
        root=cache_of(folder, settings),
        settings=settings,
        workers=useful_workers(settings.num_workers, on_cpu=prepared["device"].startswith("cpu")),
        threads=int(prepared["threads"] or torch.get_num_threads()),
    )


def _planned(prepared: Mapping[str, Any], place: int) -> PlannedEncoder:
    return PlannedEncoder.from_note(prepared["encoders"][place])


def compute_shards(
    folder: RunFolder,
    prepared: Mapping[str, Any],
    units: Sequence[Unit],
    work: Extractor | DeviceRunner,
    progress: Progress,
) -> None:
    """Compute missing rows of units by `work`: what has planned them in this process, or their encoders."""
    runner = work.runner if isinstance(work, Extractor) else work
    for state in runner.states.values():
        state.cache.refresh()
    before = runner.seconds
    refs: dict[bytes, ImageRef] = {}
    keys_of: dict[str, list[bytes]] = {}
    lacking: dict[str, list[Shard]] = {}
    for unit in units:
        shards = _shards_of(folder, unit, work, refs)
        keys_of[unit.id] = [key for shard in shards for key in shard.keys]
        lacking[unit.id] = runner.lacking(shards)
    every = [shard for shards in lacking.values() for shard in shards]
    if isinstance(work, Extractor):
        bad = work.compute(every)
    else:
        first = {place for unit in units for place in unit.spec["first"]} - runner.failures.keys()
        with _measuring(runner, {place: _planned(prepared, place) for place in first}):
            bad = runner.run(every, refs, stop_at_bad=False, progress=progress) if every else {}
    # Of several devices that share the images only the first is timed.
    is_timed = not isinstance(work, Extractor) or len(work.settings.devices) == 1
    for number, unit in enumerate(units):
        places = [place for place in unit.spec["encoders"] if place not in runner.failures]
        caches = {place: runner.states[place].cache for place in places}
        lost = [key for key in keys_of[unit.id] if any(key not in cache for cache in caches.values())]
        if lost and not isinstance(work, Extractor):
            reason = bad.get(lost[0], "its row is not in the cache")
            name = refs[lost[0]].name
            folder.fail(unit, f"{len(lost)} images could not be used, the first is {name}: {reason}")
            continue
        folder.finish(
            unit,
            files=sorted({path for cache in caches.values() for path in cache.files_of(keys_of[unit.id])}),
            # Found while others were decoded only, or perhaps only now: no cache keeps them.
            bad={key.hex(): bad[key] for key in lost if key in bad},
            failures={
                _planned(prepared, place).asked: why
                for place, why in runner.failures.items()
                if place in unit.spec["encoders"]
            },
            computed={
                str(place): sum(len(shard.keys) for shard in lacking[unit.id] if place in shard.encoders)
                for place in places
            },
            # Those of all units that were computed together are noted with the first.
            seconds={str(p): 0.0 if number else runner.seconds[p] - before[p] for p in places},
            host=socket.gethostname(),
            device=device_name(runner.device) if is_timed else "",
        )


@contextmanager
def _measuring(runner: DeviceRunner, encoders: Mapping[int, PlannedEncoder]) -> Iterator[None]:
    """How far the fast path is from the plain one is kept where every reader looks."""
    for place, planned in encoders.items():
        if "exactness" not in planned.record:
            runner.states[place].record.pop("exactness", None)
            runner.states[place].job = planned.job
    try:
        yield
    finally:
        for state in runner.states.values():
            state.record.setdefault("exactness", {})
            state.job = ""


def _shards_of(
    folder: RunFolder, unit: Unit, work: Extractor | DeviceRunner, refs: dict[bytes, ImageRef]
) -> list[Shard]:
    """The shards of a unit; where its images are is added to `refs`, unless `work` knows it."""
    spec, places = unit.spec, tuple(unit.spec["encoders"])
    if isinstance(work, Extractor):
        begin, end = spec["shards"]
        return [Shard(shard.keys, places) for shard in work.planned.shards[begin:end]]
    images = read_images(folder.path / "images" / f"{spec['prepare']}.jsonl", spec["begin"], spec["end"])
    refs |= dict(images)
    keys = iter([key for key, _ in images])
    return [Shard(tuple(islice(keys, size)), places) for size in spec["sizes"]]


def write_feature_files(
    folder: RunFolder,
    unit: Unit,
    prepared: Mapping[str, Any],
    prepare_unit: Unit,
    data: Callable[[], RoiDataset],
) -> None:
    asked = unit.spec["asked"]
    if not is_computed(asked):
        _write_other_features(folder, unit, prepare_unit, data)
        return
    if asked in prepared["failures"]:
        raise HistobenchError(prepared["failures"][asked])
    places = [place for place, each in enumerate(prepared["encoders"]) if each["asked"] == asked]
    if not places:
        raise HistobenchError(f"{prepared['unit']} does not describe {asked}; run again")
    place, planned = places[0], _planned(prepared, places[0])
    dataset, settings = data(), Settings(**prepare_unit.spec["settings"])
    contents = read_keys(folder.path / "images" / f"{prepare_unit.id}.keys", dataset, prepared["order"])
    shards = [
        folder.output(shard.id) or {}
        for shard in folder.found_by(prepare_unit.id)
        if place in shard.spec["encoders"]
    ]
    for note in shards:
        if asked in note.get("failures", {}):
            raise HistobenchError(note["failures"][asked])
    cache = RowCache(cache_of(folder, settings), planned.description)
    bad = {bytes.fromhex(key): why for note in shards for key, why in note.get("bad", {}).items()}
    problems = problems_of(
        contents,
        {Path(path): why for path, why in prepared["unreadable"].items()},
        {**cache.bad, **{key: why for key, why in bad.items() if key not in cache}},
    )
    readable = Keys(contents.keys.data[contents.readable])
    end = time.monotonic() + patience()
    stops = bool(problems) and settings.on_bad_image == "stop"
    while missing := len({key for key in readable if key not in cache and key not in bad}):
        # What a shard says that it has written may not be visible here yet.
        if stops or time.monotonic() > end or any(note.get("state") != DONE for note in shards):
            break
        time.sleep(1.0)
        cache.refresh()
    if missing and not stops:
        why = next((f": {note['reason']}" for note in shards if note.get("reason")), " yet")
        raise HistobenchError(f"{missing} images are not computed{why}; run again with `retry_failed`")
    written = write_splits(
        planned, cache, contents, problems, save_dir=Path(prepare_unit.spec["save_dir"]), settings=settings
    )
    _finish(
        folder,
        unit,
        written,
        computed=sum(int(note.get("computed", {}).get(str(place), 0)) for note in shards),
        seconds=sum(float(note.get("seconds", {}).get(str(place), 0.0)) for note in shards),
        device=next((str(note["device"]) for note in shards if "device" in note), ""),
    )


def _write_other_features(
    folder: RunFolder, unit: Unit, prepare_unit: Unit, data: Callable[[], RoiDataset]
) -> None:
    from histobench.roi.features.elsewhere import combine_features, import_features

    spec, asked = prepare_unit.spec, unit.spec["asked"]
    if names_features(asked):
        skip = spec["settings"]["on_bad_image"] == "skip"
        written, _ = import_features(data(), asked, Path(spec["save_dir"]), skip_missing=skip)
    else:
        outputs = [folder.output(part) or {} for part in unit.spec["parts"]]
        for output in outputs:
            if output.get("state") != DONE:
                reason = output.get("reason", "its features are missing")
                raise HistobenchError(f"a part of the combination failed: {reason}")
        files = [output["extracted"].items() for output in outputs]
        parts = [{split: Path(note["path"]) for split, note in each} for each in files]
        written = combine_features(asked, parts, Path(spec["save_dir"]))
    _finish(folder, unit, written, computed=0, seconds=0.0, device="")


def _finish(folder: RunFolder, unit: Unit, written: Sequence[Extraction], **measured: Any) -> None:
    extracted = {
        item.split: {"path": str(item.path), "fingerprint": item.fingerprint, "stamp": stamp_of(item.path)}
        for item in written
    }
    files = [item.path for item in written]
    folder.finish(unit, files=files, encoder=written[0].asked, extracted=extracted, **measured)


def check_versions(prepared: Mapping[str, Any]) -> None:
    """Refuse to add to what another version has made; a dataset prepared by this process says nothing."""
    here, there = versions(), prepared.get("versions", {})
    for package in ("histobench", "torch") if there else ():
        if here.get(package) != there.get(package):
            raise HistobenchError(
                f"{socket.gethostname()} has {package} {here.get(package)}, but this run was planned with "
                f"{there.get(package)}: install the same version on every node, or start a new run"
            )


def check_machine(prepared: Mapping[str, Any]) -> None:
    """Refuse to add to features from another version, or from another kind of device."""
    check_versions(prepared)
    kind = device_kind(resolve_device("cpu" if str(prepared.get("device")).startswith("cpu") else None))
    planned = str(prepared.get("device_kind"))
    if kind != planned:
        raise HistobenchError(
            f"{socket.gethostname()} has {kind}, but this run was planned on {planned}: features differ "
            "in their last bits; ask for nodes of one kind (Slurm: constraint=...), or start a new run"
        )


def device_kind(device: str) -> str:
    """Return what has to be the same for the same bits: the name of the GPU, or the kind of CPU."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return f"cpu {cpu_kind()}"
    return device_name(device) if kind == "cuda" else f"{kind} {platform.machine()}"


def write_images(path: Path, shards: Iterable[Sequence[bytes]], refs: Mapping[bytes, ImageRef]) -> list[int]:
    """Write one line per shard; gives the byte at which every one begins, and the end of the file."""
    begins, place = [0], 0
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        for keys in shards:
            place += handle.write(json.dumps([[key.hex(), *refs[key]] for key in keys]).encode() + b"\n")
            begins.append(place)
    return begins


def read_images(path: Path, begin: int, end: int) -> list[tuple[bytes, ImageRef]]:
    def read() -> bytes:
        with open(path, "rb") as handle:
            handle.seek(begin)
            return handle.read(end - begin)

    images = [image for line in patiently(read, announced=True).splitlines() for image in parse_json(line)]
    return [(bytes.fromhex(key), ImageRef(*rest)) for key, *rest in images]


def read_keys(path: Path, dataset: RoiDataset, order: str) -> Contents:
    """The content hash of every image; a dataset that is no longer the planned one is refused."""
    if order_of(dataset) != order:
        raise HistobenchError(
            f"{dataset.name} has changed since this run was planned (images, labels or groups); run again"
        )
    data = patiently(lambda: read_bytes(path), announced=True)
    count = sum(len(dataset.splits.get(split, ())) for split in SPLITS)
    if len(data) != KEY_BYTES * count:
        raise HistobenchError(f"{path} is damaged; start a new run")
    return Contents(dataset, Keys(np.frombuffer(data, np.uint8).reshape(count, KEY_BYTES)))
