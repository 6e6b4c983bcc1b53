"""Runs the asked tasks on features and writes what they give."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from histobench.core.claim import exclusive
from histobench.core.devices import resolve_device
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.tidy_rows import write_tidy_rows
from histobench.roi.encoders.own_name import UNCHECKED, is_computed
from histobench.roi.evaluation.context import Context, TaskResult, TaskSkippedError
from histobench.roi.evaluation.evaluation_request import EvaluationRequest, ImageRequest, is_recorded, record
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.features.feature_file import check_pair, fingerprint_of
from histobench.roi.predictions import TargetPredictions
from histobench.roi.presets import get_preset
from histobench.roi.results.episode_predictions import EpisodeFile, episode_file
from histobench.roi.results.layout import RunIdentity, TaskFiles, claim_place, place_of
from histobench.roi.results.robustness_files import write_robustness
from histobench.roi.results.writer import write_attention, write_episodes, write_examples, write_task
from histobench.roi.robustness.pack import RobustnessResult
from histobench.roi.task_catalogue import CLASS, ON_IMAGES, UNTRAINED, canonical_task, not_applicable

log = logging.getLogger(__name__)
C = TypeVar("C", bound=Context)


@dataclass(frozen=True)
class TaskRow:
    task: str
    setting: str
    metrics: dict[str, float | None]
    n: int
    caveats: tuple[str, ...] = ()  # what to keep in mind when reading these numbers


@dataclass(frozen=True)
class EvaluationOutcome:
    dataset: str
    encoder: str
    preset: str
    results_dir: Path
    rows: tuple[TaskRow, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()


def evaluate(
    request: EvaluationRequest, *, resume: bool = False, on_task: Callable[[str], None] = lambda _: None
) -> EvaluationOutcome:
    """Run every asked task and write its files; one that fails, or cannot be run, does not stop the others.

    With `resume`, a task that was finished with the same input is left alone. Results of another run (another
    seed, image size, encoder, ...) are never replaced: see `placement`.
    """
    from histobench.roi.evaluation.tasks import TASK_RUNNERS

    tasks = tuple(dict.fromkeys(map(canonical_task, request.tasks)))
    if len(request.train):
        check_pair(request.train, request.test)
        if request.val is not None:
            check_pair(request.train, request.val)
    context = Context(request, _classes(request), resolve_device(request.device))
    target = CLASS if request.test.target is None else request.test.target.kind
    on_images = "it works on images, not on stored features: use `histobench run`"
    reasons = {
        task: _not_run(task, request.preset, target) or (on_images if task in ON_IMAGES else "")
        for task in tasks
    }
    return _evaluated(context, reasons, TASK_RUNNERS, on_task, resume=resume)


def evaluate_on_images(
    asked: ImageRequest, *, on_task: Callable[[str], None] = lambda _: None
) -> EvaluationOutcome:
    """Run a task that works on images and write its files; one that was finished is left alone."""
    from histobench.roi.evaluation.tasks import IMAGE_RUNNERS

    task, target = asked.task, asked.data.target
    reason = _not_run(task, asked.preset, CLASS if target is None else target.kind)
    if not is_computed(asked.recipe.name):
        reason = "it needs an encoder that is computed from images"
    if reason:
        known = (asked.dataset, asked.encoder, asked.preset, asked.results_dir)
        return EvaluationOutcome(*known, (), skipped={task: reason})
    return _evaluated(ImageContext.of(asked), {task: ""}, IMAGE_RUNNERS, on_task, resume=True)


def _not_run(task: str, preset: str, target: str) -> str:
    if task in get_preset(preset).left_out:
        return f"the preset {preset} has no recipe for it"
    return not_applicable(task, target)


def _evaluated(
    context: C,
    reasons: Mapping[str, str],
    runners: Mapping[str, Callable[[C], Iterable[TaskResult | RobustnessResult]]],
    on_task: Callable[[str], None],
    *,
    resume: bool,
) -> EvaluationOutcome:
    request = context.request
    identity = _identity(request)
    known_by = _known_by(request, identity)
    rows: list[TaskRow] = []
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    unchanged: list[str] = []
    folders: list[Path] = []
    places: set[Path] = set()  # where anything of this evaluation is, from before included
    warned = request.split is not None  # 25 splits would say it 25 times; their files do
    for task, reason in reasons.items():
        if not reason and not len(request.train) and task not in UNTRAINED:
            reason = "there are no training images"
        if reason:
            skipped[task] = reason
            continue
        digest = context.digest(task)
        # Of two evaluations at once into one folder, the second finds the task done.
        with exclusive(request.results_dir / f".{task}.lock"):
            folder = place_of(request.results_dir, task, known_by)
            if resume and is_recorded(folder, task, digest):
                unchanged.append(task)
                places.add(folder)
                continue
            on_task(task)
            for caveat in () if warned else context.caveats:
                log.warning("%s: %s", identity.encoder if caveat == UNCHECKED else identity.dataset, caveat)
            warned = True
            try:
                for place, row in _written(task, runners[task](context), known_by, identity, context):
                    folder = place
                    rows.append(row)
                record(folder, task, digest)
                folders.append(folder)
            except TaskSkippedError as why:
                skipped[task] = str(why)
            except (HistobenchError, OSError) as error:
                failed[task] = str(error)
    for folder in places.union(folders):
        write_tidy_rows(folder)
    for folder in dict.fromkeys(folders):
        if folder != request.results_dir:
            log.warning("%s holds the results of another run; these are in %s", request.results_dir, folder)
    every = {*folders, *places}
    known = identity.dataset, identity.encoder, identity.preset
    place = every.pop() if len(every) == 1 else request.results_dir
    return EvaluationOutcome(*known, place, tuple(rows), skipped, failed, tuple(unchanged))


def _written(
    task: str,
    results: Iterable[TaskResult | RobustnessResult],
    known_by: Mapping[str, str],
    identity: RunIdentity,
    context: Context,
) -> Iterator[tuple[Path, TaskRow]]:
    """Write the results of a task one by one, and beside them what every episode or run predicted."""
    with ExitStack() as stack:
        file: EpisodeFile | None = None
        for result in results:
            folder = claim_place(context.request.results_dir, task, known_by)
            if file is None:
                file = stack.enter_context(episode_file(TaskFiles.of(folder, task).episode_predictions))
            row = _write(folder, task, result, identity, context)
            if isinstance(result, TaskResult) and result.episodes is not None:
                file.add(result.setting, result.episodes)
            yield folder, row


def _write(
    results_dir: Path,
    task: str,
    result: TaskResult | RobustnessResult,
    identity: RunIdentity,
    context: Context,
) -> TaskRow:
    if isinstance(result, RobustnessResult):
        for caveat in result.caveats:
            if caveat != UNCHECKED:  # said once for all tasks
                log.warning("%s: %s", task, caveat)
        write_robustness(results_dir, result, identity=identity)
        measured = {name: measure.value for name, measure in result.pack.measures.items()}
        return TaskRow(task, result.column, measured, len(result.tissue.labels), result.caveats)
    for warning in (*result.warnings, *result.notes) if context.request.split is None else ():
        log.warning("%s: %s", task, warning)
    caveats = (*(context.caveats if result.caveats is None else result.caveats), *result.warnings)
    said = {"warnings": [*caveats, *result.notes], "caveats": list(caveats)}
    about, known = context.info, result.predictions.info
    if isinstance(result.predictions, TargetPredictions):  # these say themselves what was held out
        also = {"chosen_by"} if "val_use" in known else set[str]()
        about = {key: value for key, value in about.items() if key not in {*known, *also}}
    files = write_task(
        results_dir,
        task,
        result.predictions,
        identity=identity,
        scores=result.scores,
        per_class=result.per_class,
        confusion_matrix=result.confusion_matrix,
        setting=result.setting,
        info={**about, **{key: texts for key, texts in said.items() if texts}},
    )
    if result.episode_metrics is not None:
        write_episodes(files, result.episode_metrics, info=known)
    if result.attention is not None:
        write_attention(files, result.attention)
    if result.sheet is not None:
        write_examples(files, result.sheet)
    values = {name: score.value for name, score in result.scores.items()}
    return TaskRow(task, result.setting, values, len(result.predictions), caveats)


def _classes(request: EvaluationRequest) -> tuple[str, ...]:
    highest = max(int(features.labels.max()) for features in request.features)
    stored = tuple(map(str, request.train.metadata.get("classes") or ()))
    classes = request.classes or stored
    if not classes:
        return tuple(map(str, range(highest + 1)))
    _check_class_map(classes, stored)
    if highest >= len(classes):
        raise HistobenchError(
            f"the features have label {highest}, but the class map ends at {len(classes) - 1} ({classes[-1]})"
        )
    return classes


def _check_class_map(given: tuple[str, ...], stored: tuple[str, ...]) -> None:
    """Other names for the same classes are fine; another order or number would put names on wrong labels."""
    if given == stored or all(name.isdecimal() for name in stored):
        return  # features that were extracted without a class map call their classes 0, 1, 2, ...
    if len(given) != len(stored) or set(given) == set(stored):
        raise HistobenchError(
            f"the class map ({', '.join(given)}) is not the one that the features were extracted with "
            f"({', '.join(stored)}): give the same file, or leave out `classes`"
        )
    names = ", ".join(given), ", ".join(stored)
    log.warning("the class map (%s) renames the classes of the features (%s)", *names)


def _identity(request: EvaluationRequest) -> RunIdentity:
    metadata = request.test.metadata
    return RunIdentity(
        dataset=request.dataset or str(metadata.get("dataset") or request.results_dir.name),
        encoder=request.encoder or str(metadata.get("encoder") or "unknown"),
        preset=request.preset,
        seed=request.seed,
        fingerprint=fingerprint_of(*request.features),
        description=request.description,
        size=str(metadata.get("size") or ""),
    )


def _known_by(request: EvaluationRequest, identity: RunIdentity) -> dict[str, str]:
    """What sets this run apart from others that may be put into the same folder."""
    is_named = request.encoder or request.test.metadata.get("encoder")
    return {
        **{name: str(getattr(identity, name)) for name in ("dataset", "encoder", "preset", "size", "seed")},
        "choose_by": request.options.choose_by if get_preset(request.preset).chooses else "",
        # Files of other tools do not say which encoder they are of.
        "features": "" if is_named else identity.fingerprint[:8],
    }
