"""Carries out a plan: what is done is skipped, what fails does not stop the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from histobench.core.device import resolve_device
from histobench.core.errors import HistobenchError
from histobench.core.progress import Progress
from histobench.roi.data.dataset import RoiDataset
from histobench.roi.encoders.own_name import check_labels, label_of
from histobench.roi.encoders.registry import check_distinct_weights
from histobench.roi.evaluation.over_splits import evaluate_over_splits
from histobench.roi.evaluation.request import EvaluationRequest, Options
from histobench.roi.evaluation.run import EvaluationOutcome, evaluate
from histobench.roi.features.extract import Extraction, extract
from histobench.roi.features.feature_file import load
from histobench.roi.features.feature_set import FeatureSet
from histobench.roi.features.settings import EncoderRecipe
from histobench.roi.plan.dataset_notes import write_dataset_notes
from histobench.roi.plan.jobs import features_folder, results_folder
from histobench.roi.plan.schema import DatasetEntry, Plan
from histobench.roi.plan.speeds import device_name, measured_speeds, write_speeds

Say = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """A job that could not be done, and why."""

    job: str
    reason: str


@dataclass
class PlanOutcome:
    """What was done, what was there already, and what failed."""

    results: Path
    evaluated: int = 0
    unchanged: int = 0
    failures: list[Failure] = field(default_factory=list)
    skipped: list[Failure] = field(default_factory=list)

    @property
    def has_results(self) -> bool:
        """Whether there is anything to compare."""
        return self.evaluated + self.unchanged > 0


def load_datasets(plan: Plan) -> dict[str, RoiDataset]:
    """Read every dataset of the plan, before anything expensive starts."""
    return {entry.name: _load(plan, entry) for entry in plan.datasets}


def _load(plan: Plan, entry: DatasetEntry) -> RoiDataset:
    dataset = entry.reading(plan.seed).load()
    for split in ("train", "test"):
        if not dataset.splits.get(split):
            raise HistobenchError(
                f"{entry.name} has no {split} images: mark some as {split} in {entry.source}, or give split "
                "(e.g. 0.7/0.1/0.2) where nothing is marked"
            )
    learnt = {image.label for image in dataset.splits["train"]}
    asked = {image.label for image in dataset.splits["test"]}
    unlearnt = [dataset.classes[label] for label in sorted(asked - learnt)]
    if unlearnt:
        raise HistobenchError(
            f"{entry.name}: {'class' if len(unlearnt) == 1 else 'classes'} {', '.join(unlearnt)} "
            f"{'has' if len(unlearnt) == 1 else 'have'} test images but no training images: every class of "
            "the test set needs some; move images in the table, or leave the class out"
        )
    return dataset


def run_plan(
    plan: Plan,
    *,
    progress: Progress,
    say: Say,
    before_extraction: Callable[[], None] = lambda: None,
    after_extraction: Callable[[], None] = lambda: None,
) -> PlanOutcome:
    """Extract what is missing, then evaluate what is missing; failures are collected.

    The two hooks let a display make room for the progress bar of the extraction.
    """
    outcome = PlanOutcome(plan.results)
    # Found out now for all encoders together; one at a time each would look right.
    check_labels(plan.encoders)
    check_distinct_weights(plan.encoders, plan.weights)
    datasets = load_datasets(plan)
    write_dataset_notes(plan)
    for entry in plan.datasets:
        before_extraction()
        extractions = _extract(plan, entry, datasets[entry.name], outcome, progress)
        after_extraction()
        _note_speeds(plan, extractions)
        for encoder in plan.encoders:
            files = {e.split: e for e in extractions if e.asked == encoder}
            if not files:
                continue  # its failure is on the list
            for preset in plan.presets:
                _evaluate(plan, entry, encoder, preset, files, outcome, say)
    return outcome


def _extract(
    plan: Plan, entry: DatasetEntry, dataset: RoiDataset, outcome: PlanOutcome, progress: Progress
) -> list[Extraction]:
    """All encoders in one pass over the images; if one of them is at fault, each alone."""
    folder = features_folder(plan, entry)
    try:
        return _extract_with(plan, dataset, plan.encoders, folder, progress)
    except HistobenchError as error:
        if len(plan.encoders) == 1:
            outcome.failures.append(Failure(f"{dataset.name} x {plan.encoders[0]}: features", str(error)))
            return []
    done: list[Extraction] = []
    for encoder in plan.encoders:
        try:
            done += _extract_with(plan, dataset, (encoder,), folder, progress)
        except HistobenchError as error:
            outcome.failures.append(Failure(f"{dataset.name} x {encoder}: features", str(error)))
    return done


def _note_speeds(plan: Plan, extractions: list[Extraction]) -> None:
    if plan.device and "," in plan.device:
        return  # several devices share the images, and only the first is timed
    write_speeds(plan.results, measured_speeds(extractions, device_name(resolve_device(plan.device))))


def _extract_with(
    plan: Plan, dataset: RoiDataset, encoders: tuple[str, ...], folder: Path, progress: Progress
) -> list[Extraction]:
    return extract(
        dataset,
        [EncoderRecipe(name, plan.size, plan.weights, plan.allow_revision) for name in encoders],
        folder,
        device=plan.device,
        batch_size=plan.images_per_step,
        num_workers=plan.num_workers,
        precision=plan.precision,
        compile=plan.compile,
        on_bad_image=plan.on_bad_image,
        recheck=plan.recheck,
        no_cache=plan.no_cache,
        progress=progress,
    )


def _evaluate(
    plan: Plan,
    entry: DatasetEntry,
    encoder: str,
    preset: str,
    files: dict[str, Extraction],
    outcome: PlanOutcome,
    say: Say,
) -> None:
    job = f"{entry.name} x {encoder} x {preset}"
    try:
        request = EvaluationRequest(
            tasks=plan.tasks,
            train=_features(files, "train"),
            test=_features(files, "test"),
            val=_features(files, "val") if "val" in files else None,
            results_dir=results_folder(plan, entry.name, encoder, preset),
            dataset=entry.name,
            encoder=label_of(encoder),
            preset=preset,
            seed=plan.seed,
            device=plan.device,
            weights=plan.weights,
            options=Options(
                n_neighbors=plan.n_neighbors,
                n_iter=plan.n_iter,
                n_shot=plan.n_shot,
                n_way=plan.n_way,
                zeroshot_prompt_file=entry.prompts,
                choose_by=plan.choose_by,
            ),
        )
        done = evaluate(request, resume=True, on_task=lambda task: say(f"{job}: {task}"))
    except HistobenchError as error:
        outcome.failures.append(Failure(job, str(error)))
        return
    _count(done, job, outcome)
    if plan.scheme is None:
        return
    try:
        every = evaluate_over_splits(
            request,
            plan.scheme,
            resume=True,
            on_split=lambda split, count: say(f"{job}: {split.name} of {count} splits"),
        )
    except HistobenchError as error:
        outcome.failures.append(Failure(f"{job}: splits", str(error)))
        return
    for part in every:
        _count(replace(part, skipped={}), f"{job} x {part.results_dir.name}", outcome)


def _count(done: EvaluationOutcome, job: str, outcome: PlanOutcome) -> None:
    outcome.evaluated += len({row.task for row in done.rows})
    outcome.unchanged += len(done.unchanged)
    outcome.failures += [Failure(f"{job}: {task}", reason) for task, reason in done.failed.items()]
    outcome.skipped += [Failure(f"{job}: {task}", reason) for task, reason in done.skipped.items()]


def _features(files: dict[str, Extraction], split: str) -> FeatureSet:
    if split not in files:
        raise HistobenchError(f"none of the {split} images could be read; `histobench data check` says why")
    features = load(files[split].path)
    if features.metadata.get("fingerprint") != files[split].fingerprint:
        raise HistobenchError(
            f"{files[split].path} was replaced while this run was at work, by another one with other images "
            "of the same name; run again, or give each its own --results"
        )
    return features
