"""The tasks by name: how each turns features, or images, into results to be written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product

import numpy as np

from histobench.roi.evaluation.context import Context, TaskResult, TaskSkippedError
from histobench.roi.evaluation.fine_tune_task import run_fine_tune
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.evaluation.patients import run_patient
from histobench.roi.evaluation.probe_tasks import run_label_efficiency, run_linear_probe
from histobench.roi.evaluation.robustness_task import run_robustness
from histobench.roi.evaluation.segmentation_task import run_segmentation
from histobench.roi.evaluation.target_tasks import run_target
from histobench.roi.evaluation.zero_shot_task import zero_shot_outcome
from histobench.roi.metrics.classification import Score
from histobench.roi.protocols import thunder
from histobench.roi.protocols.few_shot import few_shot_settings, possible_settings
from histobench.roi.protocols.knn import knn, prototype, retrieval
from histobench.roi.results.episode_predictions import EpisodePredictions, log_odds_of
from histobench.roi.robustness.pack import RobustnessResult
from histobench.roi.task_catalogue import (
    FEW_SHOT,
    FINE_TUNE,
    LINEAR_PROBE,
    MASK,
    ON_IMAGES,
    PATIENT,
    ROBUSTNESS,
    TARGETS,
    ZERO_SHOT,
)

log = logging.getLogger(__name__)


def run_knn(context: Context) -> Iterable[TaskResult]:
    n_neighbors = context.request.options.n_neighbors
    if context.preset.knn == "k-by-validation":
        outcome = thunder.knn_chosen_on_val(*context.data_to_choose, **context.common)
        outcome.info["warnings"] = list(context.choice_warnings)
    else:
        outcome = knn(*context.data, n_neighbors=n_neighbors, **context.common)
        if outcome.info["n_neighbors"] != n_neighbors and context.request.split is None:
            log.warning("KNN: %s", outcome.info["warnings"][0])
    yield context.scored(outcome)


def run_prototype(context: Context) -> Iterable[TaskResult]:
    yield context.scored(prototype(*context.data, **context.common))


def run_zero_shot(context: Context) -> Iterable[TaskResult]:
    yield context.scored(zero_shot_outcome(context))


def run_retrieval(context: Context) -> Iterable[TaskResult]:
    outcome, scores = retrieval(*context.data, context.request.test.labels, **context.common)
    result = context.scored(outcome)
    yield replace(result, scores={**result.scores, **{name: Score(value) for name, value in scores.items()}})


def run_few_shot(context: Context) -> Iterable[TaskResult]:
    if context.preset.few_shot == "voted":
        yield from _voted_few_shot(context)
        return
    request, options = context.request, context.request.options
    _, counts = np.unique(context.train.labels.numpy(), return_counts=True)
    ways, shots, warnings = possible_settings(
        len(counts), int(counts.min()), options.n_way, options.n_shot, use_all_way=options.use_all_way
    )
    if not (settings := list(product(ways, shots))):
        raise TaskSkippedError("; ".join(warnings) or "no way and shot fits the training set")
    played = few_shot_settings(
        *context.data,
        request.test.labels,
        settings=settings,
        n_iter=options.n_iter,
        seed=request.seed,
        keep_probabilities=options.keep_probabilities,
        **context.common,
    )
    labels = request.test.labels.numpy()
    for number, setting in enumerate(played):
        log_odds = None if setting.probabilities is None else log_odds_of(setting.probabilities)
        yield TaskResult.averaged(
            context.predictions(setting.outcome, episodes=setting.episodes_per_image),
            setting.episode_metrics,
            EpisodePredictions(setting.votes, labels, setting.episodes.classes, log_odds),
            setting=f"{setting.way}way_{setting.shot}shot",
            notes=tuple(warnings) if number == 0 else (),
        )


def _voted_few_shot(context: Context) -> Iterable[TaskResult]:
    _, counts = np.unique(context.train.labels.numpy(), return_counts=True)
    for shot in (shot for shot in thunder.SHOTS if shot <= counts.min()):
        seed = context.request.seed
        outcome = thunder.voted_simple_shot(*context.data, shot=shot, seed=seed, **context.common)
        yield context.scored(outcome, setting=f"{outcome.info['way']}way_{shot}shot")


#: The tasks of the catalogue, each with what runs it.
TASK_RUNNERS: dict[str, Callable[[Context], Iterable[TaskResult | RobustnessResult]]] = {
    LINEAR_PROBE: run_linear_probe,
    "KNN": run_knn,
    "Proto": run_prototype,
    FEW_SHOT: run_few_shot,
    ZERO_SHOT: run_zero_shot,
    "Retrieval": run_retrieval,
    "Label-efficiency": run_label_efficiency,
    PATIENT: run_patient,
    ROBUSTNESS: run_robustness,
    **{kind.task: run_target for kind in TARGETS.values() if kind.task not in ON_IMAGES},
}
#: Those that run the network on images.
IMAGE_RUNNERS: dict[str, Callable[[ImageContext], Iterable[TaskResult]]] = {
    FINE_TUNE: run_fine_tune,
    TARGETS[MASK].task: run_segmentation,
}
