"""Linear probes of every preset, and how many labels they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from histobench.roi.evaluation.context import Context
from histobench.roi.evaluation.task_result import TaskResult
from histobench.roi.metrics.classification import evaluate
from histobench.roi.protocols import eva, thunder
from histobench.roi.protocols.label_efficiency import nested_parts, setting_of
from histobench.roi.protocols.linear_probe import linear_probe
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.protocols.sklearn_probe import sklearn_probe


def run_linear_probe(context: Context) -> Iterable[TaskResult]:
    """A linear classifier on the frozen features, by the recipe of the preset."""
    request, options, n_classes = context.request, context.request.options, len(context.classes)
    test = request.test.embeddings
    if request.preset == "sklearn":
        val = request.val
        outcome = sklearn_probe(
            context.train.embeddings,
            context.train.labels,
            test,
            n_classes=n_classes,
            val=None if val is None else val.embeddings,
            val_labels=None if val is None else val.labels,
            max_iteration=options.max_iteration,
            seed=request.seed,
            device=context.device,
        )
    elif request.preset in ("thunder", "eva"):
        train, chosen = context.train_and_val
        data = (train.embeddings, train.labels, chosen.embeddings, chosen.labels, test)
        if request.preset == "eva":
            runs = eva.eva_runs(*data, n_classes=n_classes, device=context.device)
            yield _mean_of_runs(context, runs)
            return
        outcome = thunder.nine_heads(*data, n_classes=n_classes, seed=request.seed, device=context.device)
    else:
        outcome = linear_probe(
            context.train.embeddings,
            context.train.labels,
            test,
            n_classes=n_classes,
            max_iteration=options.max_iteration,
            use_sklearn=options.use_sklearn,
            device=context.device,
        )
    yield TaskResult.scored(outcome, context.predictions(outcome))


def run_label_efficiency(context: Context) -> Iterable[TaskResult]:
    """The `uni` probe on growing parts of the training set, several seeds each."""
    train = context.train
    for share, parts in nested_parts(train.labels.numpy(), seed=context.request.seed):
        runs = [
            linear_probe(
                train.embeddings[rows],
                train.labels[rows],
                context.request.test.embeddings,
                n_classes=len(context.classes),
                max_iteration=context.request.options.max_iteration,
                device=context.device,
            )
            for rows in parts
        ]
        yield _mean_of_runs(context, runs, setting=setting_of(share), images=len(parts[0]))


def _mean_of_runs(
    context: Context, runs: Sequence[Outcome], *, setting: str = "", images: int | None = None
) -> TaskResult:
    """Metrics as means over the runs; the stored probabilities are the runs' means."""
    mean = eva.mean_outcome(list(runs))
    info = {"num_runs": len(runs), **({} if images is None else {"num_train_used": images})}
    predictions = context.predictions(Outcome(mean.probabilities, mean.predicted, {**mean.info, **info}))
    labels = predictions.labels
    each = [evaluate(run.probabilities, labels, classes=context.classes).values for run in runs]
    metrics: dict[str, NDArray[np.float64]] = {
        name: np.array(
            [np.nan if values[name] is None else values[name] for values in each], dtype=np.float64
        )
        for name in each[0]
    }
    return TaskResult.averaged(predictions, metrics, setting=setting)
