"""The units that evaluate: tasks on the feature files of one encoder, and the same over many splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from histobench.core.devices import cpu_kind
from histobench.core.errors import HistobenchError
from histobench.core.files import await_file, read_note
from histobench.roi.comparison.bootstrap_intervals import write_all_intervals
from histobench.roi.data.source import DatasetSource
from histobench.roi.encoders.registry import EncoderRecipe
from histobench.roi.evaluation.context import rows_of
from histobench.roi.evaluation.evaluation_request import FILE, EvaluationRequest, ImageRequest
from histobench.roi.evaluation.evaluation_run import EvaluationOutcome, evaluate, evaluate_on_images
from histobench.roi.evaluation.over_splits import evaluate_over_splits
from histobench.roi.features.feature_file import FeatureSet, load
from histobench.roi.options import Options, Scheme, Settings
from histobench.roi.results.layout import stored_in
from histobench.roi.results.reader import load_runs, results_files
from histobench.work.run_folder import RunFolder, Unit


def evaluate_units(
    folder: RunFolder, units: Sequence[Unit], features: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Tasks of one encoder, dataset and preset; `features` is the output of its feature files."""
    job = folder.title(units[0])
    request = _request(units[0], tuple(unit.spec["task"] for unit in units), features)
    _note(folder, units, evaluate(request, resume=True, on_task=lambda task: say(f"{job}: {task}")))


def evaluate_on_network(folder: RunFolder, unit: Unit, say: Callable[[str], None]) -> None:
    spec, job = unit.spec, folder.title(unit)
    request = ImageRequest(
        task=spec["task"],
        data=DatasetSource.from_note(spec["source"]).load(),
        recipe=EncoderRecipe(**spec["recipe"]),
        settings=Settings(**spec["settings"]),
        **_asked(unit),
    )
    _note(folder, [unit], evaluate_on_images(request, on_task=lambda task: say(f"{job}: {task}")))


def _note(folder: RunFolder, units: Sequence[Unit], done: EvaluationOutcome) -> None:
    job = folder.title(units[0])
    for unit in units:
        task = unit.spec["task"]
        if task in done.failed:
            folder.fail(unit, done.failed[task], job=f"{job}: {task}")
        elif task in done.skipped:
            folder.finish(unit, outcome="skipped", reason=done.skipped[task])
        else:
            state = "unchanged" if task in done.unchanged else "evaluated"
            place = done.results_dir / task
            if results_files(place):
                write_all_intervals(load_runs(place), unit.spec["n_bootstrap"])
            known = {"place": str(place), "digest": (read_note(place / FILE) or {}).get("digest")}
            folder.finish(unit, files=stored_in(place), outcome=state, cpu=cpu_kind(), **known)


def evaluate_splits(
    folder: RunFolder, unit: Unit, features: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    every = evaluate_over_splits(
        _request(unit, tuple(unit.spec["tasks"]), features),
        Scheme(**unit.spec["scheme"]),
        resume=True,
        on_split=lambda split, count: say(f"{folder.title(unit)}: {split.name} of {count} splits"),
    )
    splits = {
        part.results_dir.name: {
            "evaluated": sorted({row.task for row in part.rows}),
            "unchanged": list(part.unchanged),
            "failed": part.failed,
        }
        for part in every
    }
    folder.finish(unit, splits=splits)


def _request(unit: Unit, tasks: tuple[str, ...], features: Mapping[str, Any]) -> EvaluationRequest:
    spec, files = unit.spec, features["extracted"]
    test = _features(files, "test")
    return EvaluationRequest(
        tasks=tasks,
        train=rows_of(test, np.arange(0)) if spec.get("untrained") else _features(files, "train"),
        test=test,
        val=_features(files, "val") if "val" in files else None,
        device=spec["device"],
        weights=spec["weights"],
        **_asked(unit),
    )


def _asked(unit: Unit) -> dict[str, Any]:
    """What requests for features and for images have in common."""
    spec, options = unit.spec, dict(unit.spec["options"])
    prompts = options.pop("zeroshot_prompt_file")
    options |= {name: tuple(options[name]) for name in ("n_shot", "n_way")}
    return {
        "results_dir": Path(spec["results_dir"]),
        "dataset": unit.dataset,
        "encoder": spec["label"],
        "preset": spec["preset"],
        "seed": spec["seed"],
        "options": Options(**options, zeroshot_prompt_file=Path(prompts) if prompts else None),
    }


def _features(files: Mapping[str, Any], split: str) -> FeatureSet:
    if split not in files:
        raise HistobenchError(f"none of the {split} images could be read; `histobench data check` says why")
    await_file(files[split]["path"])
    features = load(files[split]["path"])
    if features.metadata.get("fingerprint") != files[split]["fingerprint"]:
        raise HistobenchError(
            f"{files[split]['path']} was replaced during this run by another run on other images of the "
            "same name; run again, or give each its own `results`"
        )
    return features
