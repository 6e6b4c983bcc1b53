"""A plan as units of work: what is to be done, before anything is known about the images."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.text import check_plain_name
from histobench.roi.data.image import open_rgb
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.data.sites import FOLDS, is_place
from histobench.roi.data.source import DatasetSource
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.own_name import combined_parts, is_computed, label_of
from histobench.roi.options import GIVEN, DatasetEntry, Options, Plan
from histobench.roi.task_catalogue import DEFAULT_TASKS, FINE_TUNE, ON_IMAGES, UNTRAINED, canonical_task
from histobench.roi.units.roi_run import EVALUATED, REPORT
from histobench.work.run_folder import Unit

# A plan broken into jobs, with an estimate of what they cost.

#: Floating-point operations per second of a typical device, for the estimate of a dry run.
TYPICAL_FLOPS = {"cuda": 120e12, "cpu": 0.08e12, "mps": 4e12}
BYTES_PER_VALUE = 4


@dataclass(frozen=True)
class ExtractionEstimate:
    """One encoder over one dataset."""

    dataset: DatasetEntry
    encoder: str
    images: int
    seconds: float | None  # None: nothing is known of the encoder's cost
    megabytes: float | None


def results_folder(plan: Plan, dataset: str, encoder: str, preset: str) -> Path:
    """Where the results of one combination go.

    >>> from histobench.roi.options import Plan
    >>> results_folder(Plan((), (), Path("r")), "crc", "virchow2@cls", "uni").as_posix()
    'r/crc/virchow2@cls/uni'
    """
    safe = label_of(encoder).replace("/", "_").replace("\\", "_").replace(":", "_")
    return plan.results / dataset / check_plain_name(safe, what="encoder") / preset


def features_folder(plan: Plan, entry: DatasetEntry) -> Path:
    """Where the feature files of a dataset go; each division by another seed has files of its own.

    >>> from histobench.roi.options import DatasetEntry, Options, Plan
    >>> divided = DatasetEntry("d", Path("d"), split="0.8/0.2")
    >>> features_folder(Plan((divided,), (), Path("r"), seed=3), divided).as_posix()
    'r/features/seed-3'
    """
    folder = plan.results / "features"
    return folder / f"seed-{plan.seed}" if entry.split and plan.seed else folder


def extraction_estimates(
    plan: Plan, datasets: dict[str, RoiDataset], device: str
) -> list[ExtractionEstimate]:
    """Every extraction of the plan, in order, with what it would cost on a typical device of this kind."""
    specs = {encoder: _spec_of(encoder, plan.size) for encoder in filter(is_computed, plan.encoders)}
    return [
        _job(entry, encoder, specs[encoder], sum(map(len, datasets[entry.name].splits.values())), device)
        for entry in plan.datasets
        for encoder in specs
    ]


def _spec_of(encoder: str, size: int | None) -> tuple[EncoderSpec, EncoderSpec] | None:
    """The zoo entry at its own size and at that of the plan; None for the user's own encoder."""
    from histobench.roi.encoders.registry import get_spec

    try:
        spec = get_spec(encoder)
        return spec, spec.with_size(size)
    except HistobenchError:
        return None


def _job(
    entry: DatasetEntry,
    encoder: str,
    specs: tuple[EncoderSpec, EncoderSpec] | None,
    images: int,
    device: str,
) -> ExtractionEstimate:
    if specs is None:  # nothing is known before it is built
        return ExtractionEstimate(entry, encoder, images, None, None)
    spec, sized = specs
    megabytes = images * spec.dim * BYTES_PER_VALUE / 1e6
    if spec.cost is None or not spec.cost.gflops:
        return ExtractionEstimate(entry, encoder, images, None, megabytes)
    # The cost is known at the encoder's own size and grows at least with the number of pixels.
    gigaflops = spec.cost.gflops * (sized.transform.crop / spec.transform.crop) ** 2
    speed = TYPICAL_FLOPS.get(device.split(":")[0], TYPICAL_FLOPS["cpu"])
    seconds = images * gigaflops * 1e9 / speed
    return ExtractionEstimate(entry, encoder, images, seconds, megabytes)


#: Seconds on two cores (2026-11): loading libraries; building one network; one task of one encoder, to which
#: come those per value of its features; intervals, tests and tables of one task of one encoder.
START, NETWORK, TASK, PER_VALUE, COMPARED = 4.0, 1.5, 0.3, 5e-8, 0.2


def estimated_seconds(
    plan: Plan, datasets: Mapping[str, RoiDataset], jobs: Sequence[ExtractionEstimate]
) -> dict[str, float]:
    """Estimate the seconds of each part of a run from empty caches; tasks on images are parts by name."""
    parts = {"start": START + NETWORK * len({job.encoder for job in jobs}), "features": 0.0}
    on_features = on_tables = 0.0
    for name, dataset in datasets.items():
        own = [job for job in jobs if job.dataset.name == name]
        tasks = tasks_for(plan, dataset)
        for task in filter(ON_IMAGES.__contains__, tasks):
            each = (
                network_seconds(task, job.seconds or 0.0, plan.options, _tiles_per_image(dataset, job, plan))
                for job in own
            )
            parts[task] = parts.get(task, 0.0) + sum(each)
        if count := sum(task not in ON_IMAGES for task in tasks) * len(plan.presets):
            parts["features"] += sum(job.seconds or 0.0 for job in own)
            images = sum(map(len, dataset.splits.values()))
            for encoder in plan.encoders:
                known = _spec_of(encoder, plan.size) if is_computed(encoder) else None
                on_features += count * (TASK + PER_VALUE * images * (known[0].dim if known else 1024))
        on_tables += len(tasks) * len(plan.presets) * len(plan.encoders) * COMPARED
    return {**parts, "tasks": on_features, "statistics": on_tables}


def _tiles_per_image(dataset: RoiDataset, job: ExtractionEstimate, plan: Plan) -> float:
    """The mean number of tiles that the first images of a dataset are cut into for their masks."""
    images = [image for part in dataset.splits.values() for image in part[:8] if image.mask is not None]
    if not images:
        return 1.0
    specs = _spec_of(job.encoder, plan.size)
    side = specs[1].transform.crop if specs else plan.size or 224
    counts = []
    for image in images:
        with contextlib.suppress(HistobenchError):  # reported by the run itself
            width, height = open_rgb(image.path).size
            counts.append(-(-height // side) * -(-width // side))
    return sum(counts) / len(counts) if counts else 1.0


def with_measured(plan: Plan, jobs: Sequence[ExtractionEstimate], device: str) -> list[ExtractionEstimate]:
    """Fill in what was measured in the results folder before, or is measured now where nothing is known."""
    from histobench.core.devices import device_name
    from histobench.roi.encoders.registry import EncoderRecipe
    from histobench.roi.features.inference.device_runner import seconds_per_image
    from histobench.roi.plan.speeds import read_speeds

    name = device_name(device)
    each = {
        encoder: 1 / speed.images_per_second
        for encoder in {job.encoder for job in jobs}
        if (speed := read_speeds(plan.results).get(label_of(encoder))) and speed.device == name
    }
    for job in jobs:
        if job.seconds is None and job.encoder not in each:
            recipe = EncoderRecipe(job.encoder, plan.size, plan.weights, plan.allow_revision)
            with contextlib.suppress(HistobenchError):  # said by the run itself
                each[job.encoder] = seconds_per_image(recipe.build(), device)
    return [
        replace(job, seconds=job.images * each[job.encoder]) if job.encoder in each else job for job in jobs
    ]


def tasks_for(plan: Plan, dataset: RoiDataset) -> tuple[str, ...]:
    """The tasks of a plan on one dataset.

    Where a dataset has sites and no training images, as a test of robustness has, and the plan names no
    tasks, these are the ones that need no training.
    """
    tasks = tuple(dict.fromkeys(map(canonical_task, plan.tasks)))
    if tasks != DEFAULT_TASKS or dataset.splits.get("train"):
        return tasks
    columns = {column for images in dataset.splits.values() for image in images for column, _ in image.sites}
    return UNTRAINED if any(map(is_place, columns)) else tasks


def units_of(plan: Plan, datasets: Mapping[str, RoiDataset], *, full_paths: bool) -> list[Unit]:
    """The units of a plan in the order in which one worker does them; preparing a dataset finds more."""
    if full_paths:
        plan = with_full_paths(plan)
    costs = {
        (job.dataset.name, job.encoder): job.seconds
        for job in extraction_estimates(plan, dict(datasets), plan.settings.device or "cuda")
    }
    units: list[Unit] = []
    for entry in plan.datasets:
        every = tasks_for(plan, datasets[entry.name])
        tasks = tuple(task for task in every if task not in ON_IMAGES)
        units += [
            Unit(
                "network",
                entry.name,
                encoder,
                {**_evaluation(plan, entry, encoder, preset), **_network(plan, entry, encoder), "task": task},
                seconds=network_seconds(task, costs.get((entry.name, encoder)) or 0.0, plan.options),
            )
            for encoder in plan.encoders
            for preset in plan.presets
            for task in every
            if task in ON_IMAGES
        ]
        if not tasks:
            continue
        prepare = Unit("prepare", entry.name, "", _extraction(plan, entry))
        features = {
            encoder: Unit(
                "features",
                entry.name,
                encoder,
                {"asked": encoder, "prepare": prepare.id},
                (prepare.id,),
                costs.get((entry.name, encoder), 0.0),
            )
            for encoder in plan.encoders
        }
        for encoder in filter(combined_parts, plan.encoders):
            joined = [features[part].id for part in parts_in_plan(encoder, plan.encoders)]
            unit = features[encoder]
            spec = {**unit.spec, "parts": joined}
            features[encoder] = replace(unit, spec=spec, needs=(prepare.id, *joined))
        units += [prepare, *features.values()]
        for encoder in plan.encoders:
            for preset in plan.presets:
                spec = _evaluation(plan, entry, encoder, preset)
                if not datasets[entry.name].splits.get("train"):
                    spec["untrained"] = True
                needs = (features[encoder].id,)
                units += [
                    Unit("evaluate", entry.name, encoder, {**spec, "task": task}, needs) for task in tasks
                ]
                given = _gives_folds(datasets[entry.name])
                if plan.scheme or given:
                    scheme = [plan.splits, plan.folds, plan.repeats] if plan.scheme else [GIVEN, None, None]
                    splits = {**spec, "tasks": list(tasks), "scheme": scheme}
                    units.append(Unit("splits", entry.name, encoder, splits, needs))
    units += comparison_units(units, plan.results)
    # The last unit waits for all comparisons, and for what is compared by itself.
    last = tuple(unit.id for unit in units if unit.kind in ("compare", "splits"))
    return [*units, Unit(REPORT, "", "", {}, last)]


def _gives_folds(dataset: RoiDataset) -> bool:
    """Whether the data says itself what is train and test in several folds."""
    images = next((images for images in dataset.splits.values() if images), ())
    return bool(images) and len(dict(images[0].sites).get(FOLDS, "")) > 1


def parts_in_plan(name: str, encoders: Sequence[str]) -> list[str]:
    """The encoders of a plan that a combination is made of, by their names or labels."""
    by_label = {label_of(each): each for each in encoders} | {each: each for each in encoders}
    return [by_label[part] for part in combined_parts(name)]


def with_full_paths(plan: Plan) -> Plan:
    """The same plan for workers that are elsewhere."""
    entries = tuple(
        replace(
            entry,
            source=entry.source.absolute(),
            class2id=entry.class2id and entry.class2id.absolute(),
            prompts=entry.prompts and entry.prompts.absolute(),
        )
        for entry in plan.datasets
    )
    weights = plan.weights and str(Path(plan.weights).expanduser().absolute())
    return replace(plan, datasets=entries, results=plan.results.absolute(), weights=weights)


def plan_values(plan: Plan, engine: str) -> dict[str, Any]:
    """A plan as plain values, to be written down and compared; where jobs are queued is no part of it."""
    values = {**plan.values(), "datasets": [asdict(entry) for entry in plan.datasets]}
    del values["slurm"], values["slurm_cpu"]
    return {**_plain(values), "engine": engine}


def _extraction(plan: Plan, entry: DatasetEntry) -> dict[str, Any]:
    source = DatasetSource.of(entry, plan)
    return {
        "source": source.as_note(),
        "recipes": [_recipe(plan, encoder) for encoder in filter(is_computed, plan.encoders)],
        "save_dir": str(features_folder(plan, entry)),
        "settings": asdict(plan.settings),
    }


def _recipe(plan: Plan, encoder: str) -> dict[str, Any]:
    return {
        "name": encoder,
        "resize_size": plan.size,
        "weights": plan.weights,
        "allow_revision": plan.allow_revision,
    }


def network_seconds(task: str, one_pass: float, options: Options, tiles: float = 1.0) -> float:
    """The seconds of a task on images, about, from those of one pass of the network over them.

    >>> network_seconds("Fine-tune", 1.0, Options(tune_epochs=10, tune_rates=(1e-4,), tune_seeds=3))
    91.0
    >>> network_seconds("Segmentation", 1.0, Options(), tiles=4)
    8.0
    """
    one_pass *= tiles
    if task != FINE_TUNE:
        return 2 * one_pass  # the encoder, and the same network with random weights
    rates = len(options.tune_rates)
    trainings = options.tune_seeds + (rates if rates > 1 else 0)
    return one_pass * (1 + 3 * options.tune_epochs * trainings)  # gradients take twice as long as features


def _network(plan: Plan, entry: DatasetEntry, encoder: str) -> dict[str, Any]:
    """What a task on images needs besides: where these are, and the encoder."""
    source = DatasetSource.of(entry, plan).as_note()
    return {"source": source, "recipe": _recipe(plan, encoder), "settings": asdict(plan.settings)}


def _evaluation(plan: Plan, entry: DatasetEntry, encoder: str, preset: str) -> dict[str, Any]:
    options = replace(plan.options, zeroshot_prompt_file=entry.prompts)
    return {
        "preset": preset,
        "results_dir": str(results_folder(plan, entry.name, encoder, preset)),
        "label": label_of(encoder),
        "seed": plan.seed,
        "device": plan.settings.devices[0],
        "weights": plan.weights,
        "n_bootstrap": plan.n_bootstrap,
        "options": _plain(asdict(options)),
    }


def comparison_units(units: Sequence[Unit], results: Path) -> list[Unit]:
    """One unit for the evaluations of a dataset under one preset and task, over all encoders."""
    needs: dict[tuple[str, str, str, int], list[str]] = {}
    for unit in units:
        if unit.kind in EVALUATED:
            spec = unit.spec
            needs.setdefault((unit.dataset, spec["preset"], spec["task"], spec["seed"]), []).append(unit.id)
    return [
        Unit(
            "compare",
            dataset,
            "",
            {"preset": preset, "task": task, "seed": seed, "folder": str(results / dataset)},
            tuple(needed),
        )
        for (dataset, preset, task, seed), needed in needs.items()
    ]


def _plain(value: Any) -> Any:
    """Paths as text, tuples as lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
