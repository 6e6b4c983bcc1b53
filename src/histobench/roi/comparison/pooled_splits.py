"""Leave-one-group-out: every image is predicted once, by a classifier that never saw its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.episode_table import reports_episodes
from histobench.roi.data.cross_validation import LEAVE_ONE_GROUP_OUT
from histobench.roi.metrics.classification import evaluate
from histobench.roi.predictions import Predictions
from histobench.roi.results.stored_run import StoredRun


def pooled_runs(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """One run per dataset, encoder, preset and seed: the predictions of its splits put together.

    A single group is too small, and often of one class, to be a test set of its own; together they are
    compared like any other test set, over groups.
    """
    parts: dict[tuple[str, str, str, int], list[StoredRun]] = {}
    for run in runs:
        identity = run.identity
        parts.setdefault((identity.dataset, identity.encoder, identity.preset, identity.seed), []).append(run)
    return [
        _pooled(sorted(members, key=lambda run: int(run.info["split"]["fold"]))) for members in parts.values()
    ]


def _pooled(runs: Sequence[StoredRun]) -> StoredRun:
    first, expected = runs[0], int(runs[0].info["split"]["of"])
    if any(map(reports_episodes, runs)):
        raise HistobenchError(
            f"{first.task} reports means over episodes, which single groups cannot be pooled into; "
            "use `folds` for it"
        )
    if len(runs) < expected:
        raise HistobenchError(
            f"{first.identity.encoder}: {len(runs)} of {expected} groups were evaluated; run it to its end"
        )
    every = [run.predictions for run in runs]
    width = max(part.probabilities.shape[1] for part in every)
    predictions = Predictions(
        probabilities=np.concatenate([_padded(part, width) for part in every]),
        labels=np.concatenate([part.labels for part in every]),
        predicted=np.concatenate([part.predicted for part in every]),
        classes=first.classes,
        img_names=tuple(name for part in every for name in part.img_names),
        groups=tuple(group for part in every for group in part.groups or ("",) * len(part)),
    )
    scores = evaluate(
        predictions.probabilities,
        predictions.labels,
        classes=predictions.classes,
        predicted=predictions.predicted,
    )
    pooled = replace(
        first,
        path=first.path.parents[2] / "pooled" / first.path.name,
        identity=replace(first.identity, dataset=f"{first.identity.dataset} ({LEAVE_ONE_GROUP_OUT})"),
        metrics=scores.values,
        info={key: value for key, value in first.info.items() if key != "split"},
    )
    pooled.__dict__["predictions"] = predictions
    return pooled


def _padded(part: Predictions, width: int) -> np.ndarray:
    missing = width - part.probabilities.shape[1]
    return np.pad(part.probabilities, ((0, 0), (0, missing)))
