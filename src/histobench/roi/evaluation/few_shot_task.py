"""Few-shot as a task: episodes of every way and shot."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np

from histobench.roi.evaluation.context import Context, TaskResult, TaskSkippedError
from histobench.roi.protocols import thunder
from histobench.roi.protocols.few_shot import few_shot_settings, possible_settings
from histobench.roi.results.episode_predictions import EpisodePredictions, log_odds_of


def run_few_shot(context: Context) -> Iterable[TaskResult]:
    """Episodes with a few training images per class, for every way and shot."""
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
        outcome = thunder.voted_simple_shot(
            *context.data, shot=shot, seed=context.request.seed, **context.common
        )
        setting = f"{outcome.info['way']}way_{shot}shot"
        yield TaskResult.scored(outcome, context.predictions(outcome), setting=setting)
