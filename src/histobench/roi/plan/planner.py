"""A plan as units of work: what is to be done, before anything is known about the images."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from histobench.core.devices import device_name
from histobench.core.errors import HistobenchError
from histobench.core.text import check_plain_name
from histobench.roi.data.image import open_rgb
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.data.sites import FOLDS, is_place
from histobench.roi.data.source import DatasetSource
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.own_name import combined_parts, is_computed, label_of
from histobench.roi.encoders.registry import EncoderRecipe, get_spec
from histobench.roi.options import GIVEN_FOLDS, DatasetEntry, Options, Plan, Scheme
from histobench.roi.plan.notes import read_speeds
from histobench.roi.task_catalogue import DEFAULT_TASKS, FINE_TUNE, ON_IMAGES, UNTRAINED, canonical_task
from histobench.roi.units.roi_run import EVALUATED, REPORT
from histobench.work.run_folder import Unit

#: Floating-point operations per second of a typical device, for the estimate of a dry run.
TYPICAL_FLOPS = {"cuda": 120e12, "cpu": 0.08e12, "mps": 4e12}
BYTES_PER_VALUE = 4


@dataclass(frozen=True)
class ExtractionEstimate:
    dataset: DatasetEntry
    encoder: str
    images: int
    seconds: float | None  # None: nothing is known of the encoder's cost
    megabytes: float | None


def results_folder(plan: Plan, dataset: str, encoder: str, preset: str) -> Path:
    """Where the results of one combination go.

    >>> results_folder(Plan((), (), Path("r")), "crc", "virchow2@cls", "uni").as_posix()
    'r/crc/virchow2@cls/uni'
    """
    return encoder_folder(plan.results / dataset, encoder) / preset


def encoder_folder(folder: Path, encoder: str) -> Path:
    safe = label_of(encoder).replace("/", "_").replace("\\", "_").replace(":", "_")
    return folder / check_plain_name(safe, what="encoder")


def features_folder(plan: Plan, entry: DatasetEntry) -> Path:
    """Where the feature files of a dataset go; each division by another seed has files of its own.

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
    speed = TYPICAL_FLOPS.get(device.split(":")[0], TYPICAL_FLOPS["cpu"])
    found = []
    for entry in plan.datasets:
        images = sum(map(len, datasets[entry.name].splits.values()))
        for encoder, known in specs.items():
            seconds = megabytes = None
            if known is not None:
                spec, sized = known
                megabytes = images * spec.dim * BYTES_PER_VALUE / 1e6
                if spec.cost is not None and spec.cost.gflops:
                    # Known at the own size of the encoder; it grows at least with the number of pixels.
                    gigaflops = spec.cost.gflops * (sized.transform.crop / spec.transform.crop) ** 2
                    seconds = images * gigaflops * 1e9 / speed
            found.append(ExtractionEstimate(entry, encoder, images, seconds, megabytes))
    return found


def _spec_of(encoder: str, size: int | None) -> tuple[EncoderSpec, EncoderSpec] | None:
    """The entry of the zoo at its own size and at that of the plan, if there is one."""
    try:
        spec = get_spec(encoder)
        return spec, spec.with_size(size)
    except HistobenchError:
        return None


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
    from histobench.roi.features.inference.device_runner import seconds_per_image

    known = read_speeds(plan.results)
    each = {}
    for encoder in {job.encoder for job in jobs}:
        speed = known.get(label_of(encoder))
        if speed and speed.device == device_name(device):
            each[encoder] = 1 / speed.images_per_second
        elif any(job.encoder == encoder and job.seconds is None for job in jobs):
            with contextlib.suppress(HistobenchError):  # said by the run itself
                each[encoder] = seconds_per_image(recipe_of(plan, encoder).build(), device)
    return [
        replace(job, seconds=job.images * each[job.encoder]) if job.encoder in each else job for job in jobs
    ]


def tasks_for(plan: Plan, dataset: RoiDataset) -> tuple[str, ...]:
    """The tasks of a plan on one dataset: those without training where a test of robustness names none."""
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
        name, dataset = entry.name, datasets[entry.name]
        both = list(product(plan.encoders, plan.presets))
        specs = {each: _evaluation(plan, entry, *each) for each in both}
        images = {"source": DatasetSource.of(entry, plan).as_note(), "settings": asdict(plan.settings)}
        for (encoder, preset), task in product(both, filter(ON_IMAGES.__contains__, every)):
            seconds = network_seconds(task, costs.get((name, encoder)) or 0.0, plan.options)
            spec = {
                **specs[encoder, preset],
                **images,
                "recipe": asdict(recipe_of(plan, encoder)),
                "task": task,
            }
            units.append(Unit("network", name, encoder, spec, seconds=seconds))
        if not tasks:
            continue
        recipes = [asdict(recipe_of(plan, encoder)) for encoder in filter(is_computed, plan.encoders)]
        spec = {**images, "recipes": recipes, "save_dir": str(features_folder(plan, entry))}
        prepare = Unit("prepare", name, "", spec)
        features: dict[str, Unit] = {}
        by_label = {label_of(each): each for each in plan.encoders} | {each: each for each in plan.encoders}
        for encoder in plan.encoders:  # the parts of a combination come before it
            spec = {"asked": encoder, "prepare": prepare.id}
            joined = [features[by_label[part]].id for part in combined_parts(encoder)]
            spec |= {"parts": joined} if joined else {}
            cost = costs.get((name, encoder), 0.0)
            features[encoder] = Unit("features", name, encoder, spec, (prepare.id, *joined), cost)
        units += [prepare, *features.values()]
        scheme = plan.scheme or given_scheme(dataset)
        for encoder, preset in both:
            spec, needs = specs[encoder, preset], (features[encoder].id,)
            if not dataset.splits.get("train"):
                spec["untrained"] = True
            units += [Unit("evaluate", name, encoder, {**spec, "task": task}, needs) for task in tasks]
            if scheme is not None:
                splits = {**spec, "tasks": list(tasks), "scheme": asdict(scheme)}
                units.append(Unit("splits", name, encoder, splits, needs))
    units += comparison_units(units, plan.results)
    # The last unit waits for all comparisons, and for what is compared by itself.
    last = tuple(unit.id for unit in units if unit.kind in ("compare", "splits"))
    return [*units, Unit(REPORT, "", "", {}, last)]


def given_scheme(dataset: RoiDataset) -> Scheme | None:
    """The scheme of data that says itself what is train and test in several folds."""
    image = next((images[0] for images in dataset.splits.values() if images), None)
    return GIVEN_FOLDS if image is not None and len(dict(image.sites).get(FOLDS, "")) > 1 else None


def with_full_paths(plan: Plan) -> Plan:
    """The same plan for workers that are elsewhere."""
    files = ("source", "class2id", "prompts")
    entries = tuple(
        replace(entry, **{name: path.absolute() for name in files if (path := getattr(entry, name))})
        for entry in plan.datasets
    )
    weights = plan.weights and str(Path(plan.weights).expanduser().absolute())
    return replace(plan, datasets=entries, results=plan.results.absolute(), weights=weights)


def plan_values(plan: Plan, engine: str) -> dict[str, Any]:
    """A plan as plain values, to be written down and compared; where jobs are queued is no part of it."""
    values = {**plan.values(), "datasets": [asdict(entry) for entry in plan.datasets]}
    del values["slurm"], values["slurm_cpu"]
    return {**_plain(values), "engine": engine}


def recipe_of(plan: Plan, encoder: str) -> EncoderRecipe:
    return EncoderRecipe(encoder, plan.size, plan.weights, plan.allow_revision)


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


def _evaluation(plan: Plan, entry: DatasetEntry, encoder: str, preset: str) -> dict[str, Any]:
    return {
        "preset": preset,
        "results_dir": str(results_folder(plan, entry.name, encoder, preset)),
        "label": label_of(encoder),
        "seed": plan.seed,
        "device": plan.settings.devices[0],
        "weights": plan.weights,
        "n_bootstrap": plan.n_bootstrap,
        "options": _plain(asdict(replace(plan.options, zeroshot_prompt_file=entry.prompts))),
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
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
