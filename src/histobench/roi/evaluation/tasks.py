"""The tasks by name: how each turns features, or images, into results to be written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from histobench.roi.evaluation.context import Context, TaskResult
from histobench.roi.evaluation.few_shot_task import run_few_shot
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
from histobench.roi.protocols.knn import knn, prototype, retrieval
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
    """The vote of the nearest training images."""
    n_neighbors = context.request.options.n_neighbors
    if context.preset.knn == "k-by-validation":
        outcome = thunder.knn_chosen_on_val(*context.data_to_choose, **context.common)
        outcome.info["warnings"] = list(context.choice_warnings)
    else:
        outcome = knn(*context.data, n_neighbors=n_neighbors, **context.common)
        if outcome.info["n_neighbors"] != n_neighbors:
            log.warning("KNN: %s", outcome.info["warnings"][0])
    yield TaskResult.scored(outcome, context.predictions(outcome))


def run_prototype(context: Context) -> Iterable[TaskResult]:
    """The nearest class mean."""
    outcome = prototype(*context.data, **context.common)
    yield TaskResult.scored(outcome, context.predictions(outcome))


def run_zero_shot(context: Context) -> Iterable[TaskResult]:
    """The encoder's text tower instead of training images."""
    outcome = zero_shot_outcome(context)
    yield TaskResult.scored(outcome, context.predictions(outcome))


def run_retrieval(context: Context) -> Iterable[TaskResult]:
    """The training images that come back for a test image."""
    outcome, scores = retrieval(*context.data, context.request.test.labels, **context.common)
    result = TaskResult.scored(outcome, context.predictions(outcome))
    own = {name: Score(value) for name, value in scores.items()}
    yield replace(result, scores={**result.scores, **own})


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
