"""Runs the asked tasks on features and writes what they give."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from histobench.core.device import resolve_device
from histobench.core.errors import HistobenchError, did_you_mean
from histobench.roi.evaluation.context import Context, TaskSkippedError
from histobench.roi.evaluation.request import EvaluationRequest
from histobench.roi.evaluation.task_result import TaskResult
from histobench.roi.features.feature_set import FeatureSet
from histobench.roi.features.store import check_pair
from histobench.roi.results.stored_run import RunIdentity
from histobench.roi.results.writer import write_episodes, write_task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """One line of the table of an evaluation."""

    task: str
    setting: str
    metrics: dict[str, float | None]
    n: int


@dataclass(frozen=True)
class EvaluationOutcome:
    """What was written, and what was left out and why."""

    dataset: str
    encoder: str
    preset: str
    results_dir: Path
    rows: tuple[Row, ...]
    skipped: dict[str, str] = field(default_factory=dict)


def evaluate(
    request: EvaluationRequest, on_task: Callable[[str], None] = lambda _: None
) -> EvaluationOutcome:
    """Run every asked task and write its files; a task that cannot be run is skipped with its reason.

    Everything is checked before the first task runs, so a typing error costs nothing.
    """
    from histobench.roi.evaluation.tasks import TASK_RUNNERS

    tasks = tuple(_canonical(name, TASK_RUNNERS) for name in request.tasks)
    check_pair(request.train, request.test)
    if request.val is not None:
        check_pair(request.train, request.val)
    classes = _classes(request)
    identity = _identity(request)
    context = Context(request, classes, resolve_device(request.device))
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for task in tasks:
        on_task(task)
        try:
            for result in TASK_RUNNERS[task](context):
                rows.append(_write(request.results_dir, task, result, identity, context))
        except TaskSkippedError as reason:
            skipped[task] = str(reason)
            log.warning("%s skipped: %s", task, reason)
    return EvaluationOutcome(
        identity.dataset, identity.encoder, identity.preset, request.results_dir, tuple(rows), skipped
    )


def _write(results_dir: Path, task: str, result: TaskResult, identity: RunIdentity, context: Context) -> Row:
    for warning in result.warnings:
        log.warning("%s: %s", task, warning)
    files = write_task(
        results_dir,
        task,
        result.predictions,
        identity=identity,
        scores=result.scores,
        per_class=result.per_class,
        confusion_matrix=result.confusion_matrix,
        setting=result.setting,
        info={**context.info, **({"warnings": list(result.warnings)} if result.warnings else {})},
    )
    if result.episode_metrics is not None:
        write_episodes(files, result.episode_metrics, info=result.predictions.info)
    values = {name: score.value for name, score in result.scores.items()}
    return Row(task, result.setting, values, len(result.predictions))


def _canonical(name: str, known: dict[str, Any]) -> str:
    by_lower = {task.lower(): task for task in known}
    try:
        return by_lower[name.lower()]
    except KeyError:
        raise HistobenchError(f"unknown task {name!r}; {did_you_mean(name, known)}") from None


def _classes(request: EvaluationRequest) -> tuple[str, ...]:
    sets = [features for features in (request.train, request.val, request.test) if features is not None]
    highest = max(int(features.labels.max()) for features in sets)
    stored = request.train.metadata.get("classes")
    classes = request.classes or (tuple(map(str, stored)) if stored else None)
    if classes is None:
        return tuple(str(label) for label in range(highest + 1))
    if highest >= len(classes):
        raise HistobenchError(
            f"the features have label {highest}, but the class map ends at {len(classes) - 1} ({classes[-1]})"
        )
    return classes


def _identity(request: EvaluationRequest) -> RunIdentity:
    metadata = request.test.metadata
    return RunIdentity(
        dataset=request.dataset or str(metadata.get("dataset") or request.results_dir.name),
        encoder=request.encoder or str(metadata.get("encoder") or "unknown"),
        preset=request.preset,
        seed=request.seed,
        fingerprint=fingerprint_of(request.train, request.test),
        description=request.description,
    )


def fingerprint_of(*sets: FeatureSet) -> str:
    """One name for the features that went in; files of other tools are named by their content."""
    digest = hashlib.sha256()
    for features in sets:
        known = features.metadata.get("fingerprint")
        digest.update(str(known).encode() if known else _content(features))
    return digest.hexdigest()[:16]


def _content(features: FeatureSet) -> bytes:
    digest = hashlib.sha256(np.ascontiguousarray(features.embeddings.numpy()).tobytes())
    digest.update(features.labels.numpy().tobytes())
    return digest.digest()
