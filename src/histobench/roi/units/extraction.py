"""The units that make features: prepare a dataset, compute shards of rows, write feature files."""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from histobench.core.devices import cpu_kind, device_name, resolve_device
from histobench.core.errors import DiskFullError, HistobenchError
from histobench.core.files import patience
from histobench.core.folders import cache_dir
from histobench.core.progress import Progress
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset, listing
from histobench.roi.data.source import DatasetSource
from histobench.roi.encoders.own_name import is_computed, names_features
from histobench.roi.features.cache.row_cache import RowCache
from histobench.roi.features.feature_extraction import extract, plan_extraction
from histobench.roi.features.fingerprint import versions
from histobench.roi.features.inference.device_runner import PRECISION
from histobench.roi.features.inference.planned_runner import PlannedRunner
from histobench.roi.features.inference.shards import Shard
from histobench.roi.features.loading.loader import useful_workers
from histobench.roi.features.loading.local_copies import LocalCopies
from histobench.roi.features.settings import EncoderRecipe
from histobench.roi.features.shard_plan import (
    Extraction,
    ExtractionPlan,
    PlannedEncoder,
    problems_of,
    write_features,
)
from histobench.roi.options import Settings
from histobench.roi.units.planned_images import order_of, read_images, read_keys, write_images, write_keys
from histobench.roi.units.unchanged import inputs_of, stamp_of
from histobench.work.run_folder import DONE, FOUND, RunFolder, Unit, write_lines

#: Shards of one unit: some seconds of work, which is what a lost machine costs.
SHARDS_PER_UNIT = {"cuda": 8}
#: Encoders of one unit have together no more weights than this, for they are on the device at once.
PARAMETERS = 1_200_000_000


def prepare(folder: RunFolder, unit: Unit, progress: Progress) -> None:
    """Decide how the features of a dataset are computed, and list what is missing as units.

    With `whole` in its spec everything is computed and written at once, by this process.
    """
    spec = unit.spec
    recipes = [EncoderRecipe(**recipe) for recipe in spec["recipes"]]
    if not recipes:  # every feature comes from elsewhere
        folder.finish(unit, failures={}, extractions={}, versions=versions())
        return
    dataset = DatasetSource.from_note(spec["source"]).load()
    if spec["whole"]:
        inputs = inputs_of(dataset, spec)  # now: what changes from here on is not what was used
        _extract_whole(folder, unit, dataset, recipes, progress, inputs)
        return
    plan = plan_extraction(dataset, recipes, Path(spec["save_dir"]), Settings(**spec["settings"]))
    images = folder.part("images") / f"{unit.id}.jsonl"
    begins = write_images(images, (shard.keys for shard in plan.shards), plan.refs)
    keys = folder.part("images") / f"{unit.id}.keys"
    digest = write_keys(keys, dataset, plan.keys)
    listed = folder.part(FOUND) / f"{unit.id}.jsonl"
    write_lines(listed, shard_units(unit, plan, begins))
    folder.finish(
        unit,
        files=[images, keys, listed],
        encoders=[encoder.as_note() for encoder in plan.encoders],
        failures=dict(plan.failures),
        unreadable={str(path): why for path, why in plan.unreadable.items()},
        order=order_of(dataset),
        digest=digest,
        device=plan.device,
        device_kind=device_kind(plan.device),
        threads=plan.threads,
        versions=versions(),
    )


def shard_units(unit: Unit, plan: ExtractionPlan, begins: Sequence[int]) -> list[Unit]:
    """The shards of a plan, some of them to a unit, for encoders that share the decoding."""
    size = SHARDS_PER_UNIT.get(plan.device.partition(":")[0], 1)
    units: list[Unit] = []
    started: set[int] = set()
    for team in _teams(plan.encoders):
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
                    # How far the fast path is from the plain one is measured on an encoder's first images.
                    "first": [position for position in positions if position not in started],
                }
                started.update(positions)
                names = ", ".join(plan.encoders[position].facts.asked for position in positions)
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
    prepared: Mapping[str, Any], unit: Unit, asked: Mapping[str, Any]
) -> tuple[PlannedRunner, dict[int, str]]:
    """The encoders of a unit, ready on this machine's device; and why some of them cannot be made here.

    These keep no other one; where none can be made, that is raised. `asked` is the spec that was prepared.
    """
    check_machine(prepared)
    places = list(unit.spec["encoders"])
    try:
        return _runner(prepared, places, asked), {}
    except HistobenchError:
        failed: dict[int, str] = {}
        for place in places if len(places) > 1 else ():
            try:
                _runner(prepared, [place], asked).close()
            except HistobenchError as error:
                failed[place] = str(error)
        well = [place for place in places if place not in failed]
        if not failed or not well:
            raise
        return _runner(prepared, well, asked), failed


def _runner(prepared: Mapping[str, Any], places: Sequence[int], asked: Mapping[str, Any]) -> PlannedRunner:
    """Encoders by their places in the plan, with its decisions."""
    encoders = [_planned(prepared, place) for place in places]
    for encoder in encoders:  # its file is run: no output may name another one than the plan
        if asdict(encoder.recipe) not in asked["recipes"]:
            raise HistobenchError(f"{encoder.recipe.name} is not in the plan of this run; start a new run")
    settings = Settings(**{**asked["settings"], "on_bad_image": "skip"})
    return PlannedRunner(
        [encoder.recipe for encoder in encoders],
        [encoder.description for encoder in encoders],
        [{"exactness": {}, **encoder.record} for encoder in encoders],
        root=cache_dir(),
        settings=settings,
        workers=_workers(settings, prepared["device"]),
        threads=int(prepared["threads"]),
    )


def _planned(prepared: Mapping[str, Any], place: int) -> PlannedEncoder:
    try:
        return PlannedEncoder.from_note(prepared["encoders"][place])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise HistobenchError(f"{prepared['unit']} does not describe encoder {place}; run again") from error


def compute_shards(
    folder: RunFolder,
    prepared: Mapping[str, Any],
    runner: PlannedRunner,
    unit: Unit,
    progress: Progress,
    copies: LocalCopies | None,
) -> dict[str, Any]:
    """Compute the rows of a unit that are not in the cache; what is noted of it, with the files they are in.

    Images are read from `copies` on this machine's own disk, where there are to be any.
    """
    spec = unit.spec
    images = read_images(folder.part("images") / f"{spec['prepare']}.jsonl", spec["begin"], spec["end"])
    keys, refs = [key for key, _ in images], dict(images)
    for state in runner.states:
        state.cache.refresh()
    before = runner.seconds
    shards, start = [], 0
    for size in spec["sizes"]:
        part = tuple(keys[start : start + size])
        lacking = [
            number
            for number, state in enumerate(runner.states)
            if not all(key in state.cache for key in part)
        ]
        if lacking:
            shards.append(Shard(part, tuple(lacking)))
        start += size
    for number, place in enumerate(spec["encoders"]):
        state, planned = runner.states[number], _planned(prepared, place)
        if place in spec["first"] and "exactness" not in planned.record:
            state.record.pop("exactness", None)
            state.job = planned.job  # what is measured is kept where every reader looks
    if shards and copies is not None:
        refs = copies.refs(keys, refs)  # of the whole unit: other encoders have units of the same images
    bad = runner.run(shards, refs, known_bad=False, progress=progress) if shards else {}
    for state in runner.states:
        state.record.setdefault("exactness", {})
        state.job = ""
    lost = [key for key in keys if any(key not in state.cache for state in runner.states)]
    if lost:
        reason = bad.get(lost[0], "its row is not in the cache")
        raise HistobenchError(
            f"{len(lost)} images could not be used, the first is {refs[lost[0]].name}: {reason}"
        )
    return {
        "files": sorted({path for state in runner.states for path in state.cache.files_of(keys)}),
        "computed": {
            str(place): sum(len(shard.keys) for shard in shards if number in shard.encoders)
            for number, place in enumerate(spec["encoders"])
        },
        "seconds": {
            str(place): runner.seconds[number] - before[number]
            for number, place in enumerate(spec["encoders"])
        },
        "host": socket.gethostname(),
        "device": device_name(runner.device),
        "not_staged": copies.reason if copies is not None else "",
    }


def write_feature_files(
    folder: RunFolder, unit: Unit, prepared: Mapping[str, Any], prepare_unit: Unit
) -> None:
    """Write the feature files of one encoder from the cache."""
    asked = unit.spec["asked"]
    if not is_computed(asked):
        _write_other_features(folder, unit, prepare_unit)
        return
    if asked in prepared["failures"]:
        raise HistobenchError(prepared["failures"][asked])
    if prepare_unit.spec["whole"]:
        written = prepared.get("extractions", {}).get(asked)
        if written is None:
            raise HistobenchError(f"{prepared['unit']} does not describe {asked}; run again")
        folder.finish(unit, files=[Path(file["path"]) for file in written["extracted"].values()], **written)
        return
    every = [_planned(prepared, place) for place in range(len(prepared.get("encoders", ())))]
    named = [(place, encoder) for place, encoder in enumerate(every) if encoder.recipe.name == asked]
    if not named:
        raise HistobenchError(f"{prepared['unit']} does not describe {asked}; run again")
    place, planned = named[0]
    spec = prepare_unit.spec
    dataset = DatasetSource.from_note(spec["source"]).load()
    listed = folder.part("images") / f"{prepare_unit.id}.keys"
    keys = read_keys(listed, dataset, prepared["order"], prepared["digest"])
    cache = RowCache(cache_dir(), planned.description)
    problems = problems_of(
        dataset, keys, {Path(path): why for path, why in prepared["unreadable"].items()}, cache.bad
    )
    if problems and spec["settings"]["on_bad_image"] == "stop":
        raise HistobenchError(
            f"{listing(problems.values())}\n  `on_bad_image` skip leaves such images out; "
            "what has been computed is kept"
        )
    shards = [
        folder.output(shard.id) or {}
        for shard in folder.found_by(prepare_unit.id)
        if place in shard.spec["encoders"]
    ]
    end = time.monotonic() + patience()
    while missing := sum(key not in cache for key in dict.fromkeys(keys.values())):
        # What a shard says that it has written may not be visible here yet.
        if time.monotonic() > end or any(note.get("state") != DONE for note in shards):
            break
        time.sleep(1.0)
        cache.refresh()
    if missing:
        why = next((f": {note['reason']}" for note in shards if note.get("reason")), " yet")
        raise HistobenchError(f"{missing} images are not computed{why}; run again with `retry_failed`")
    record = cache.decision(PRECISION) | cache.decision(planned.job)
    written_sets = [
        write_features(
            planned.facts,
            cache,
            dataset,
            split,
            keys,
            problems,
            save_dir=Path(spec["save_dir"]),
            generation=cache.generation,
            precision=str(record.get("precision", planned.description["precision"])),
            exactness=record.get("exactness"),
        )
        for split in SPLITS
        if dataset.splits.get(split)
    ]
    found = _extraction_note(
        written_sets,
        computed=sum(int(note.get("computed", {}).get(str(place), 0)) for note in shards),
        seconds=sum(float(note.get("seconds", {}).get(str(place), 0.0)) for note in shards),
        device=next((str(note["device"]) for note in shards if "device" in note), ""),
    )
    folder.finish(unit, files=[item.path for item in written_sets], **found)


def _write_other_features(folder: RunFolder, unit: Unit, prepare_unit: Unit) -> None:
    """Feature files of features that another tool computed, or of several encoders side by side."""
    from histobench.roi.features.elsewhere import combine_features, import_features

    spec, asked = prepare_unit.spec, unit.spec["asked"]
    if names_features(asked):
        dataset = DatasetSource.from_note(spec["source"]).load()
        skip = spec["settings"]["on_bad_image"] == "skip"
        written, _ = import_features(dataset, asked, Path(spec["save_dir"]), skip_missing=skip)
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


def _extract_whole(
    folder: RunFolder,
    unit: Unit,
    dataset: RoiDataset,
    recipes: Sequence[EncoderRecipe],
    progress: Progress,
    inputs: str,
) -> None:
    """All encoders in one pass over the images; if one of them is at fault, each alone."""
    failures: dict[str, str] = {}
    done = _extracted(unit, dataset, recipes, progress, failures if len(recipes) == 1 else None)
    if done is None:
        done = []
        for recipe in recipes:
            done += _extracted(unit, dataset, [recipe], progress, failures) or []
    device = unit.spec["settings"]["device"]
    # Of several devices that share the images only the first is timed.
    timed = "" if device and "," in device else device_name(_resolved(device))
    extractions = {}
    for recipe in recipes:
        written = [item for item in done if item.asked == recipe.name]
        if written:
            extractions[recipe.name] = _extraction_note(
                written,
                computed=sum(item.computed for item in written),
                seconds=max(item.forward_seconds for item in written),  # those of all splits together
                device=timed,
            )
    folder.finish(unit, failures=failures, extractions=extractions, inputs=inputs)


def _extracted(
    unit: Unit,
    dataset: RoiDataset,
    recipes: Sequence[EncoderRecipe],
    progress: Progress,
    failures: dict[str, str] | None,
) -> list[Extraction] | None:
    """What was extracted; None where it failed, which is added to `failures`."""
    try:
        return extract(
            dataset,
            list(recipes),
            Path(unit.spec["save_dir"]),
            **unit.spec["settings"],
            progress=progress,
        )
    except DiskFullError:
        raise
    except HistobenchError as error:
        if failures is not None:
            failures[recipes[0].name] = str(error)
        return None


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


def _workers(settings: Settings, device: str) -> int:
    return useful_workers(settings.num_workers, on_cpu=device.startswith("cpu"))
