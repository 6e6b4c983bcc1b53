"""Carries out a plan: what is done is skipped, what fails does not stop the rest."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.files import write_json
from histobench.roi.data.check import Finding, structure_findings
from histobench.roi.data.class_map import one_label_each
from histobench.roi.data.prompts import read_prompts
from histobench.roi.data.readers import is_results
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.data.sites import GROUP_LABEL
from histobench.roi.data.source import DatasetSource
from histobench.roi.data.split import check_learnt, split_words
from histobench.roi.encoders.own_name import check_labels, is_computed, label_of
from histobench.roi.encoders.registry import check_distinct_weights, require_encoders
from histobench.roi.options import DatasetEntry, Plan
from histobench.roi.plan.notes import LEAST_IMAGES, Speed, write_dataset_notes, write_speeds
from histobench.roi.plan.plan_outcome import EncoderFailure, PlanOutcome
from histobench.roi.plan.planner import plan_values, recipe_of, tasks_for, units_of
from histobench.roi.task_catalogue import (
    CLASS,
    DEFAULT_TASKS,
    PATIENT,
    ROBUSTNESS,
    UNTRAINED,
    ZERO_SHOT,
    canonical_task,
)
from histobench.roi.units.local_engine import LocalEngine
from histobench.roi.units.roi_run import EVALUATED, REPORT, RoiRun
from histobench.roi.units.status import check_free, differences
from histobench.roi.units.unchanged import take_over
from histobench.work.engines import Display, Engine
from histobench.work.run_folder import DONE, FAILED

log = logging.getLogger(__name__)


def load_datasets(plan: Plan) -> dict[str, RoiDataset]:
    """Read every dataset of the plan, before anything expensive starts."""
    return {entry.name: _checked(plan, entry) for entry in plan.datasets}


def _checked(plan: Plan, entry: DatasetEntry) -> RoiDataset:
    _check_apart(plan.results, Path(entry.source))
    dataset = DatasetSource.of(entry, plan).load()
    tasks = tasks_for(plan, dataset)
    over_splits = plan.scheme is not None
    untrained = set(tasks) <= set(UNTRAINED) and not over_splits
    for split in ("test",) if untrained else ("train", "test"):
        if not dataset.splits.get(split):
            without = f"; without training images the tasks are {', '.join(UNTRAINED)}"
            raise HistobenchError(
                f"{entry.name} has no {split} images: mark some as {split} in {entry.source}, or give split "
                f"(e.g. 0.7/0.1/0.2) where nothing is marked{without if split == 'train' else ''}"
            )
    if tasks != tuple(dict.fromkeys(map(canonical_task, plan.tasks))):
        log.warning("%s has no training images: the tasks are %s", entry.name, ", ".join(tasks))
    computed = next(filter(is_computed, plan.encoders), None)
    if dataset.pool and computed is not None:
        raise HistobenchError(
            f"{entry.name}: there are no images for {computed}: `pool` and tasks of Patho-Bench are for "
            "features of another tool (`features`)"
        )
    check_learnt(dataset)
    if len(dataset.classes) == 1 and plan.target == CLASS and set(tasks) != {ROBUSTNESS}:
        only = dataset.classes[0]
        raise HistobenchError(f"{entry.name}: all images are of one class ({only}); two are needed")
    found: dict[str, list[Finding]] = {}
    for finding in sorted(structure_findings(dataset), key=lambda finding: finding.level):  # errors first
        if finding.kind in _TOLD:
            found.setdefault(finding.kind, []).append(finding)
    for kind, (first, *others) in found.items():
        if kind == "group in two splits" and first.level == "error" and not (untrained or over_splits):
            raise HistobenchError(
                f"{entry.name}: {first.message}; keep a patient or slide in one split "
                "(`histobench data check` lists all)"
            )
        more = f" (and {len(others)} more: `histobench data check`)" if others else ""
        log.warning("%s: %s%s", entry.name, first.message, more)
    return dataset


def _check_apart(results: Path, source: Path) -> None:
    """Refuse to write results among the images of a folder; a folder of their own inside it is left out."""
    place = results.resolve()
    is_inside = source.is_dir() and place.is_relative_to(source.resolve())
    if is_inside and place.is_dir() and any(place.iterdir()) and not is_results(place):
        raise HistobenchError(
            f"`results` {results} is a folder of images of `data` {source}; give a new folder, such as "
            f"{source / 'results'}"
        )


#: What `data check` finds without opening an image, and nothing later in a run tells.
_TOLD = ("groups", "group in two splits", "empty class", "small test set")


def run_plan(
    plan: Plan,
    *,
    engine: Engine | None = None,
    display: Display | None = None,
    retry_failed: bool = False,
    keep_going: bool = False,
) -> PlanOutcome:
    """Extract what is missing, then evaluate what is missing; failures are collected.

    With `retry_failed` the run that was begun last goes on: what failed in it, and what it has not done.
    An encoder that cannot be made is an error before any work; with `keep_going` the others are run.
    """
    engine = engine or LocalEngine()
    loaded: dict[str, RoiDataset] = {}
    # Found out now for all encoders together; one at a time each would look right.
    check_labels(plan.encoders)
    if plan.weights and not Path(plan.weights).expanduser().exists():
        raise HistobenchError(f"`weights` {plan.weights} does not exist")
    check_distinct_weights(plan.encoders, plan.weights)
    engine.check()
    # The weights are on disk before work is sent to nodes, which may have no way to the internet.
    require_encoders(unresolved_encoders(plan), keep_going=keep_going)
    values = plan_values(plan, engine.name)
    check_free(plan.results, values)
    if retry_failed:
        folder = _last_run(plan, values)
    else:
        loaded = load_datasets(plan)
        check_prompts(plan, loaded)
        check_patients(plan, loaded)
        write_dataset_notes(plan)
        is_local = engine.name == "local"
        units = units_of(plan, loaded, full_paths=not is_local)
        before = RoiRun.latest(plan.results)
        folder = RoiRun.create(plan.results, values, units)
        if is_local:
            take_over(folder, before, loaded)
    with folder.driven():
        finished = engine.run(folder, display or Display())
    if not finished:
        return PlanOutcome(plan.results, folder, finished=False)
    note_speeds(folder, plan.results)
    outcome = outcome_of(folder, plan.results)
    for entry in plan.datasets if loaded else ():
        if entry.split and (words := split_words(loaded[entry.name])):
            outcome.splits.append(f"{entry.name}: {words}")
        note = next(iter(loaded[entry.name].notes), "")
        # What was taken for the patient without being asked for, and is not called "group".
        found = entry.group_column is None and "(groups) from" in note and not note.endswith("from 'group'")
        if found or "patient/" in note:
            outcome.splits.append(note)
    return outcome


def unresolved_encoders(plan: Plan, *, download: bool = True) -> dict[str, str]:
    """Why each encoder of a plan cannot be made; empty texts for those that can."""
    return {name: recipe_of(plan, name).unresolved(download=download) for name in plan.encoders}


def check_prompts(plan: Plan, datasets: Mapping[str, RoiDataset]) -> None:
    """Read the prompt files that the plan needs: an error in one is found before any work."""
    if ZERO_SHOT in map(canonical_task, plan.tasks) and plan.target == CLASS:
        for entry in plan.datasets:
            if entry.prompts is not None:
                read_prompts(entry.prompts, datasets[entry.name].classes)


def check_patients(plan: Plan, datasets: Mapping[str, RoiDataset]) -> None:
    """A patient with two labels is found before any work, where patients are to be evaluated."""
    if PATIENT not in map(canonical_task, plan.tasks) or plan.target != CLASS:
        return
    for name, dataset in datasets.items():
        for images in dataset.splits.values():
            texts = [dict(image.sites).get(GROUP_LABEL) or dataset.classes[image.label] for image in images]
            classes = sorted(set(texts))
            owners = [image.group or f"image {number}" for number, image in enumerate(images)]
            try:
                one_label_each(owners, list(map(classes.index, texts)), classes)
            except HistobenchError as error:
                raise HistobenchError(f"{name}: {error}, or leave out the task {PATIENT}") from error


def outcome_of(folder: RoiRun, results: Path) -> PlanOutcome:
    folder.refresh()
    outcome = PlanOutcome(results, folder)
    outputs = (folder.output(unit.id) or {} for unit in folder.units())
    by_default = tuple(map(canonical_task, folder.plan.get("tasks", ()))) == DEFAULT_TASKS
    cpus = sorted({str(output["cpu"]) for output in outputs if "cpu" in output})
    if len(cpus) > 1:
        log.warning("CPUs of several kinds: %s; numbers can differ in their last bits", ", ".join(cpus))
        write_json(results / "cpus.json", cpus)
    for unit in folder.units():
        if unit.kind in ("compare", REPORT):  # what is missing of these is made where all is put together
            continue
        note = folder.output(unit.id)
        if note is None:
            _add(outcome.failures, EncoderFailure(folder.title(unit), "not finished; run again"))
        elif note["state"] == FAILED and unit.kind in ("features", *EVALUATED, "splits"):
            place = ": splits" if unit.kind == "splits" else ""
            _add(outcome.failures, EncoderFailure(f"{note['job']}{place}", note["reason"]))
        elif note["state"] == DONE and unit.kind in EVALUATED:
            # Zero-shot is one of the default tasks; most encoders and datasets have no texts for it.
            if note["outcome"] == "skipped" and not (by_default and unit.spec["task"] == ZERO_SHOT):
                title = f"{folder.title(unit)}: {unit.spec['task']}"
                _add(outcome.skipped, EncoderFailure(title, note["reason"]))
            outcome.evaluated += note["outcome"] == "evaluated"
            outcome.unchanged += note["outcome"] == "unchanged"
        elif note["state"] == DONE and unit.kind == "splits":
            for split, record in note["splits"].items():
                outcome.evaluated += len(record["evaluated"])
                outcome.unchanged += len(record["unchanged"])
                for task, reason in record["failed"].items():
                    _add(outcome.failures, EncoderFailure(f"{folder.title(unit)} x {split}: {task}", reason))
    return outcome


def note_speeds(folder: RoiRun, results: Path) -> None:
    """Note how fast the encoders of a run were, where that was measured on enough images."""
    for unit in folder.units():
        note = (folder.output(unit.id) or {}) if unit.kind == "features" else {}
        enough = note.get("state") == DONE and note["computed"] >= LEAST_IMAGES
        if enough and note["seconds"] and note["device"]:
            speed = Speed(note["computed"], round(note["seconds"], 3), note["device"])
            write_speeds(results, {label_of(unit.encoder): speed})


def _add(failures: list[EncoderFailure], failure: EncoderFailure) -> None:
    if failure not in failures:
        failures.append(failure)


def _last_run(plan: Plan, values: dict[str, object]) -> RoiRun:
    folder = RoiRun.latest(plan.results)
    if folder is None:
        raise HistobenchError(f"there is no run in {plan.results} to continue; leave out `retry_failed`")
    if differing := differences(values, folder.plan):
        raise HistobenchError(
            f"the last run in {plan.results} was of another plan ({', '.join(differing)} differ): leave out "
            "`retry_failed`; finished work is not repeated"
        )
    folder.forget_failures()
    return folder
