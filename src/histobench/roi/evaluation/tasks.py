"""The tasks by name: how each turns features into results to be written."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from histobench.roi.evaluation.context import Context, TaskSkippedError
from histobench.roi.evaluation.probes import run_label_efficiency, run_linear_probe
from histobench.roi.evaluation.robustness import RobustnessResult, run_robustness
from histobench.roi.evaluation.task_result import TaskResult
from histobench.roi.evaluation.zero_shot import zero_shot_outcome
from histobench.roi.metrics.score import Score
from histobench.roi.protocols import thunder
from histobench.roi.protocols.episode_sampler import EpisodeSampler
from histobench.roi.protocols.few_shot import few_shot_settings, possible_settings
from histobench.roi.protocols.knn import knn
from histobench.roi.protocols.prototype import prototype
from histobench.roi.protocols.retrieval import retrieval
from histobench.roi.results.episode_predictions import EpisodePredictions, log_odds_of
from histobench.roi.task_catalogue import FEW_SHOT, LINEAR_PROBE, ROBUSTNESS, ZERO_SHOT


def run_knn(context: Context) -> Iterable[TaskResult]:
    """The vote of the nearest training images."""
    if context.preset.knn == "k-by-validation":
        train, val = context.train_and_val
        outcome = thunder.knn_chosen_on_val(
            train.embeddings,
            train.labels,
            val.embeddings,
            val.labels,
            context.request.test.embeddings,
            n_classes=len(context.classes),
            device=context.device,
        )
        outcome.info["warnings"] = list(context.choice_warnings)
    else:
        outcome = knn(
            context.train.embeddings,
            context.train.labels,
            context.request.test.embeddings,
            n_classes=len(context.classes),
            n_neighbors=context.request.options.n_neighbors,
            device=context.device,
        )
    yield TaskResult.scored(outcome, context.predictions(outcome))


def run_prototype(context: Context) -> Iterable[TaskResult]:
    """The nearest class mean."""
    outcome = prototype(
        context.train.embeddings,
        context.train.labels,
        context.request.test.embeddings,
        n_classes=len(context.classes),
        device=context.device,
    )
    yield TaskResult.scored(outcome, context.predictions(outcome))


def run_few_shot(context: Context) -> Iterable[TaskResult]:
    """Episodes with a few training images per class, for every way and shot."""
    if context.preset.few_shot == "voted":
        yield from _voted_few_shot(context)
        return
    options = context.request.options
    ways, shots, warnings = possible_settings(
        EpisodeSampler(context.train.labels.numpy(), seed=context.request.seed),
        options.n_way,
        options.n_shot,
        use_all_way=options.use_all_way,
    )
    if not ways or not shots:
        raise TaskSkippedError("; ".join(warnings) or "no way and shot fits the training set")
    labels = context.request.test.labels.numpy()
    settings = few_shot_settings(
        context.train.embeddings,
        context.train.labels,
        context.request.test.embeddings,
        context.request.test.labels,
        n_classes=len(context.classes),
        n_iter=options.n_iter,
        ways=ways,
        shots=shots,
        seed=context.request.seed,
        device=context.device,
        keep_probabilities=options.keep_probabilities,
    )
    for number, setting in enumerate(settings):
        log_odds = None if setting.probabilities is None else log_odds_of(setting.probabilities)
        yield TaskResult.averaged(
            context.predictions(setting.outcome, episodes=setting.episodes_per_image),
            setting.episode_metrics,
            EpisodePredictions(setting.votes, labels, setting.episodes.classes, log_odds),
            setting=setting.name,
            notes=tuple(warnings) if number == 0 else (),
        )


def run_zero_shot(context: Context) -> Iterable[TaskResult]:
    """The encoder's text tower instead of training images."""
    outcome = zero_shot_outcome(context)
    yield TaskResult.scored(outcome, context.predictions(outcome))


def run_retrieval(context: Context) -> Iterable[TaskResult]:
    """The training images that come back for a test image."""
    outcome, scores = retrieval(
        context.train.embeddings,
        context.train.labels,
        context.request.test.embeddings,
        context.request.test.labels,
        n_classes=len(context.classes),
        device=context.device,
    )
    result = TaskResult.scored(outcome, context.predictions(outcome))
    yield result.with_scores({name: Score(value) for name, value in scores.items()})


#: The tasks of the catalogue, each with what runs it.
TASK_RUNNERS: dict[str, Callable[[Context], Iterable[TaskResult | RobustnessResult]]] = {
    LINEAR_PROBE: run_linear_probe,
    "KNN": run_knn,
    "Proto": run_prototype,
    FEW_SHOT: run_few_shot,
    ZERO_SHOT: run_zero_shot,
    "Retrieval": run_retrieval,
    "Label-efficiency": run_label_efficiency,
    ROBUSTNESS: run_robustness,
}


def _voted_few_shot(context: Context) -> Iterable[TaskResult]:
    labels: NDArray[np.int64] = context.train.labels.numpy()
    smallest = int(np.bincount(labels)[np.unique(labels)].min())
    shots = [shot for shot in thunder.SHOTS if shot <= smallest]
    if not shots:
        raise TaskSkippedError("the smallest class has no training image")
    for shot in shots:
        outcome = thunder.voted_simple_shot(
            context.train.embeddings,
            context.train.labels,
            context.request.test.embeddings,
            n_classes=len(context.classes),
            shot=shot,
            seed=context.request.seed,
            device=context.device,
        )
        yield TaskResult.scored(
            outcome, context.predictions(outcome), setting=f"{outcome.info['way']}way_{shot}shot"
        )
