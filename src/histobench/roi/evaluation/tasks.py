"""The tasks by name: how each turns features into results to be written."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from histobench.roi.evaluation.context import Context, TaskSkippedError
from histobench.roi.evaluation.task_result import TaskResult
from histobench.roi.evaluation.zero_shot import zero_shot_outcome
from histobench.roi.metrics.classification import evaluate
from histobench.roi.metrics.score import Score
from histobench.roi.protocols.few_shot import FewShotSetting, few_shot
from histobench.roi.protocols.knn import knn
from histobench.roi.protocols.linear_probe import linear_probe
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.protocols.prototype import prototype


def run_linear_probe(context: Context) -> Iterable[TaskResult]:
    """A linear classifier on the frozen features."""
    options = context.request.options
    yield _scored(
        context,
        linear_probe(
            context.train.embeddings,
            context.train.labels,
            context.request.test.embeddings,
            n_classes=len(context.classes),
            max_iteration=options.max_iteration,
            use_sklearn=options.use_sklearn,
            device=context.device,
        ),
    )


def run_knn(context: Context) -> Iterable[TaskResult]:
    """The vote of the nearest training images."""
    yield _scored(
        context,
        knn(
            context.train.embeddings,
            context.train.labels,
            context.request.test.embeddings,
            n_classes=len(context.classes),
            n_neighbors=context.request.options.n_neighbors,
            device=context.device,
        ),
    )


def run_prototype(context: Context) -> Iterable[TaskResult]:
    """The nearest class mean."""
    yield _scored(
        context,
        prototype(
            context.train.embeddings,
            context.train.labels,
            context.request.test.embeddings,
            n_classes=len(context.classes),
            device=context.device,
        ),
    )


def run_few_shot(context: Context) -> Iterable[TaskResult]:
    """Episodes with a few training images per class, for every way and shot."""
    options = context.request.options
    result = few_shot(
        context.train.embeddings,
        context.train.labels,
        context.request.test.embeddings,
        context.request.test.labels,
        n_classes=len(context.classes),
        n_iter=options.n_iter,
        n_way=options.n_way,
        n_shot=options.n_shot,
        use_all_way=options.use_all_way,
        seed=context.request.seed,
        device=context.device,
    )
    if not result.settings:
        raise TaskSkippedError("; ".join(result.warnings) or "no way and shot fits the training set")
    for number, setting in enumerate(result.settings):
        yield _few_shot_result(context, setting, tuple(result.warnings) if number == 0 else ())


def run_zero_shot(context: Context) -> Iterable[TaskResult]:
    """The encoder's text tower instead of training images."""
    yield _scored(context, zero_shot_outcome(context))


TASK_RUNNERS: dict[str, Callable[[Context], Iterable[TaskResult]]] = {
    "Linear-Probe": run_linear_probe,
    "KNN": run_knn,
    "Proto": run_prototype,
    "Few-shot": run_few_shot,
    "Zero-shot": run_zero_shot,
}


def _scored(context: Context, outcome: Outcome) -> TaskResult:
    return TaskResult.scored(outcome, context.predictions(outcome))


def _few_shot_result(context: Context, setting: FewShotSetting, warnings: tuple[str, ...]) -> TaskResult:
    predictions = context.predictions(setting.outcome, episodes=setting.episodes_per_image)
    averaged = evaluate(
        predictions.probabilities,
        predictions.labels,
        classes=predictions.classes,
        predicted=predictions.predicted,
    )
    return TaskResult(
        predictions,
        {name: _mean(values) for name, values in setting.episode_metrics.items()},
        averaged.per_class,
        averaged.confusion_matrix,
        setting.name,
        setting.episode_metrics,
        warnings,
    )


def _mean(values: np.ndarray) -> Score:
    defined = values[np.isfinite(values)]
    if not len(defined):
        return Score(None, "undefined in every episode")
    return Score(float(defined.mean()))
