"""The units that make features: prepare a dataset, compute shards of rows, write feature files."""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from histobench.core.devices import cpu_kind, device_name, resolve_device
from histobench.core.errors import HistobenchError
from histobench.core.files import patience
from histobench.core.folders import cache_dir
from histobench.core.progress import Progress
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.own_name import is_computed, names_features
from histobench.roi.encoders.registry import EncoderRecipe
from histobench.roi.features.cache.content_hashes import Keys
from histobench.roi.features.cache.row_cache import RowCache
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
from histobench.roi.units.planned_images import order_of, read_images, read_keys, write_images, write_keys
from histobench.roi.units.unchanged import inputs_of, stamp_of
from histobench.work.run_folder import DONE, FOUND, RunFolder, Unit, write_lines

#: Shards of one unit: some seconds of work, which is what a lost machine costs.
SHARDS_PER_UNIT = {"cuda": 8}
#: Encoders of one unit have together no more weights than this, for they are on the device at once.
PARAMETERS = 1_200_000_000


def prepare(folder: RunFolder, unit: Unit, dataset: RoiDataset, progress: Progress) -> Extractor | None:
    """Decide how the features of a dataset are computed, and list what is missing as units.

    Where one process does all units, it is returned with the networks, for `compute_shards`.
    """
    spec = unit.spec
    recipes = [EncoderRecipe(**recipe) for recipe in spec["recipes"]]
    settings = Settings(**spec["settings"])
    alone = folder.engine == "local"
    inputs = inputs_of(dataset, spec) if alone else ""  # now: what changes later is not what was used
    job = Extractor(
        dataset,
        recipes,
        Path(spec["save_dir"]),
        settings,
        root=cache_of(folder, settings),
        progress=progress,
        keep=alone,
        tolerant=True,
    )
    try:
        plan = job.plan()
        images = folder.part("images") / f"{unit.id}.jsonl"
        begins = write_images(images, (shard.keys for shard in plan.shards), plan.refs)
        keys = folder.part("images") / f"{unit.id}.keys"
        digest = write_keys(keys, plan.contents)
        listed = folder.part(FOUND) / f"{unit.id}.jsonl"
        write_lines(listed, shard_units(unit, plan, begins, together=alone))
        folder.finish(
            unit,
            files=[images, keys, listed],
            encoders=[asdict(encoder) for encoder in plan.encoders],
            failures=dict(plan.failures),
            unreadable={str(path): why for path, why in plan.unreadable.items()},
            order=order_of(dataset),
            digest=digest,
            device=plan.device,
            device_kind=device_kind(plan.device),
            threads=None if alone else plan.threads,
            versions=versions(),
            inputs=inputs,
        )
    except BaseException:
        job.close()
        raise
    if alone and plan.shards:
        return job
    job.close()
    return None


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
        row = 0
        while row < len(plan.shards):
            positions = [position for position in plan.shards[row].encoders if position in team]
            end = row + 1
            while (
                end < min(len(plan.shards), row + size)
                and plan.shards[end].encoders == plan.shards[row].encoders
            ):
                end += 1
            if positions:
                shards = plan.shards[row:end]
                spec = {
                    "prepare": unit.id,
                    "encoders": positions,
                    "begin": begins[row],
                    "end": begins[end],
                    "sizes": [len(shard.keys) for shard in shards],
                    "shards": [row, end],
                    # How far the fast path is from the plain one is measured on an encoder's first images.
                    "first": [position for position in positions if position not in started],
                }
                started.update(positions)
                names = ", ".join(plan.encoders[position].asked for position in positions)
                units.append(Unit("shards", unit.dataset, names, spec, (unit.id,)))
            row = end
    return units


def _teams(encoders: Sequence[PlannedEncoder]) -> list[set[int]]:
    """Encoders that see the same pixels, as many together as one device may be asked to hold."""
    teams: list[tuple[str, int, set[int]]] = []
    for position, encoder in enumerate(encoders):
        for number, (pixels, parameters, members) in enumerate(teams):
            if pixels == encoder.pixels and parameters + encoder.parameters <= PARAMETERS:
                teams[number] = (pixels, parameters + encoder.parameters, members | {position})
                break
        else:
            teams.append((encoder.pixels, encoder.parameters, {position}))
    return [members for _, _, members in teams]


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
    try:
        return PlannedEncoder.from_note(prepared["encoders"][place])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise HistobenchError(f"{prepared['unit']} does not describe encoder {place}; run again") from error


def compute_shards(
    folder: RunFolder,
    prepared: Mapping[str, Any],
    units: Sequence[Unit],
    work: Extractor | DeviceRunner,
    progress: Progress,
) -> None:
    """Compute the rows of units that are not in the cache; note what became of each unit.

    `work` is what has planned them in this process, else encoders that were made for them.
    """
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
                _planned(prepared, place).asked: runner.failures[place]
                for place in unit.spec["encoders"]
                if place in runner.failures
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
    images = read_images(folder.part("images") / f"{spec['prepare']}.jsonl", spec["begin"], spec["end"])
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
    """Write the feature files of one encoder from the cache."""
    asked = unit.spec["asked"]
    if not is_computed(asked):
        _write_other_features(folder, unit, prepare_unit, data)
        return
    if asked in prepared["failures"]:
        raise HistobenchError(prepared["failures"][asked])
    every = [_planned(prepared, place) for place in range(len(prepared.get("encoders", ())))]
    named = [(place, encoder) for place, encoder in enumerate(every) if encoder.asked == asked]
    if not named:
        raise HistobenchError(f"{prepared['unit']} does not describe {asked}; run again")
    place, planned = named[0]
    dataset, settings = data(), Settings(**prepare_unit.spec["settings"])
    listed = folder.part("images") / f"{prepare_unit.id}.keys"
    contents = read_keys(listed, dataset, prepared["order"], prepared["digest"])
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
        planned,
        cache,
        contents,
        problems,
        save_dir=Path(prepare_unit.spec["save_dir"]),
        settings=settings,
    )
    found = _extraction_note(
        written,
        computed=sum(int(note.get("computed", {}).get(str(place), 0)) for note in shards),
        seconds=sum(float(note.get("seconds", {}).get(str(place), 0.0)) for note in shards),
        device=next((str(note["device"]) for note in shards if "device" in note), ""),
    )
    folder.finish(unit, files=[item.path for item in written], **found)


def _write_other_features(
    folder: RunFolder, unit: Unit, prepare_unit: Unit, data: Callable[[], RoiDataset]
) -> None:
    """Feature files of features that another tool computed, or of several encoders side by side."""
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
        parts = [
            {split: Path(note["path"]) for split, note in output["extracted"].items()} for output in outputs
        ]
        written = combine_features(asked, parts, Path(spec["save_dir"]))
    note = _extraction_note(written, computed=0, seconds=0.0, device="")
    folder.finish(unit, files=[item.path for item in written], **note)


def _extraction_note(
    written: Sequence[Extraction], *, computed: int, seconds: float, device: str
) -> dict[str, Any]:
    return {
        "encoder": written[0].asked,
        "extracted": {
            item.split: {
                "path": str(item.path),
                "fingerprint": item.fingerprint,
                "stamp": stamp_of(item.path),
            }
            for item in written
        },
        "computed": computed,
        "seconds": seconds,
        "device": device,
    }


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
    device = str(prepared.get("device"))
    kind = device_kind(_resolved(device if device.partition(":")[0] == "cpu" else None))
    planned = str(prepared.get("device_kind"))
    # Earlier versions did not note the instructions of a CPU.
    if kind != planned and not (planned == f"cpu {platform.machine()}" and kind.startswith(planned)):
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


def _resolved(device: str | None) -> str:
    return resolve_device((device or "").partition(",")[0] or None)
