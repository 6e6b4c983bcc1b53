"""Linear probes of every preset, and how many labels they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from histobench.roi.evaluation.context import Context, TaskResult, rows_of
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.metrics.classification import evaluate
from histobench.roi.protocols import eva, thunder
from histobench.roi.protocols.lab_recipes import logistic_probe
from histobench.roi.protocols.linear_probe import linear_probe, nested_parts, setting_of, sklearn_probe
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.results.episode_predictions import EpisodePredictions


def run_linear_probe(context: Context) -> Iterable[TaskResult]:
    """A linear classifier on the frozen features, by the recipe of the preset."""
    yield result_of(context, preset_probe(context), warnings=context.choice_warnings)


def result_of(
    context: Context,
    runs: Sequence[Outcome],
    *,
    setting: str = "",
    warnings: tuple[str, ...],
    info: Mapping[str, object] | None = None,
) -> TaskResult:
    """The result of one run, or the mean of several; `info` is about these."""
    if len(runs) > 1:
        return mean_of_runs(context, runs, setting=setting, warnings=warnings, info=info)
    result = context.scored(runs[0], setting=setting)
    return replace(result, warnings=(*warnings, *result.warnings))


def preset_probe(context: Context) -> list[Outcome]:
    """The probe of the preset on the test images: one outcome, or one per run of the recipe."""
    if context.preset.probe == "early-stopped":
        return eva.eva_runs(*context.data_to_choose, **context.common)
    return [_probe(context, _training_part(context))]


def run_label_efficiency(context: Context) -> Iterable[TaskResult]:
    """The preset's probe on growing parts of the training set, several seeds each.

    What hyper-parameters are chosen on stays whole, but for cross-validation (preset sklearn).
    """
    train = _training_part(context)
    for share, parts in nested_parts(train.labels.numpy(), seed=context.request.seed):
        runs = [_probe(context, rows_of(train, rows.numpy())) for rows in parts]
        # What all runs have to say is said once.
        warnings = tuple(dict.fromkeys(text for run in runs for text in run.info.get("warnings", ())))
        yield mean_of_runs(
            context,
            runs,
            setting=setting_of(share),
            info={"num_train_used": len(parts[0])},
            warnings=(*context.choice_warnings, *warnings),
        )


def _training_part(context: Context) -> FeatureSet:
    return context.train_and_val[0] if context.preset.validation == "held-out" else context.train


def _probe(context: Context, train: FeatureSet) -> Outcome:
    request, options = context.request, context.request.options
    data, test = (train.embeddings, train.labels), request.test.embeddings
    if context.preset.probe == "squared":
        val = request.val
        return sklearn_probe(
            *data,
            test,
            val=None if val is None else (val.embeddings, val.labels),
            groups=context.choosing(train).groups,
            max_iteration=options.max_iteration,
            seed=request.seed,
            **context.common,
        )
    if context.preset.probe == "fixed-cost":
        balanced = options.class_weight == "balanced"
        n_classes = len(context.classes)
        return logistic_probe(*data, test, n_classes=n_classes, cost=options.cost, balanced=balanced)
    if context.preset.probe == "nine-heads":
        chosen = context.train_and_val[1]
        every = (*data, chosen.embeddings, chosen.labels, test)
        return thunder.nine_heads(*every, seed=request.seed, **context.common)
    how = context.common | {"max_iteration": options.max_iteration, "use_sklearn": options.use_sklearn}
    return linear_probe(train.embeddings, train.labels, test, **how)


def mean_of_runs(
    context: Context,
    runs: Sequence[Outcome],
    *,
    setting: str = "",
    info: Mapping[str, object] | None = None,
    warnings: tuple[str, ...] = (),
) -> TaskResult:
    """Metrics as means over the runs; the stored probabilities are the runs' means."""
    mean = eva.mean_outcome(list(runs))
    said = {**mean.info, "num_runs": len(runs), **(info or {})}
    predictions = context.predictions(replace(mean, info=said))
    labels = predictions.labels
    each = [evaluate(run.probabilities, labels, classes=context.classes).values for run in runs]
    # An undefined value, None, becomes NaN.
    metrics = {name: np.array([values[name] for values in each], dtype=np.float64) for name in each[0]}
    episodes = EpisodePredictions.of_runs([run.probabilities for run in runs], labels)
    return TaskResult.averaged(predictions, metrics, episodes, setting=setting, warnings=warnings)
