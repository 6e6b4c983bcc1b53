"""All metrics of many evaluations at once: bootstrap resamples and few-shot episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from histobench.roi.metrics.formulas import class_metrics_of, metrics_of
from histobench.roi.metrics.tally import Floats, Tally

if TYPE_CHECKING:
    from torch import Tensor

#: Working memory of one call, in bytes; chunks are cut to fit in it.
MEMORY = 256 * 2**20


def evaluate_resamples(
    probabilities: ArrayLike,
    labels: ArrayLike,
    counts: NDArray[np.number],
    *,
    predicted: ArrayLike | None = None,
    by_class: bool = False,
    memory: int = MEMORY,
    threads: int = 2,
) -> dict[str, Floats]:
    """Every metric of every resample, [B] each, NaN where undefined; `by_class` adds `recall@0` and the like.

    `counts` [B, n] says how often each image occurs in a resample; the result is that of `evaluate` on the
    repeated rows, without repeating them. Rows that are NaN throughout were not scored and never count.

    >>> scores = evaluate_resamples([[0.9, 0.1], [0.4, 0.6]], [0, 1], np.array([[1, 1], [2, 0]]))
    >>> scores["accuracy"].tolist(), scores["auroc"].tolist()
    ([1.0, 1.0], [1.0, nan])
    """
    from histobench.roi.metrics.resamples import tally_resamples

    p = np.asarray(probabilities, dtype=np.float64)
    truth = np.asarray(labels, dtype=np.int64)
    guess = first_maximum(p) if predicted is None else np.asarray(predicted, dtype=np.int64)
    scored = ~np.all(np.isnan(p), axis=1)
    if not np.all(scored):
        p, truth, guess, counts = p[scored], truth[scored], guess[scored], counts[:, scored]
    tally = tally_resamples(p, truth, guess, counts, memory=memory, threads=threads)
    return _scores(tally, by_class=by_class)


def _scores(tally: Tally, *, by_class: bool) -> dict[str, Floats]:
    scores = metrics_of(tally)
    if by_class:
        for name, values in class_metrics_of(tally).items():
            scores |= {f"{name}@{label}": values[:, label] for label in range(values.shape[1])}
    return scores


def evaluate_left_out(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    by_class: bool = False,
    memory: int = MEMORY,
) -> dict[str, Floats]:
    """Every metric with image 0, 1, ... left out, [n] each, at the cost of a sort and not of n resamples.

    >>> evaluate_left_out([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], [0, 1, 1])["accuracy"].tolist()
    [0.5, 0.5, 1.0]
    """
    from histobench.roi.metrics.left_out import tallies_left_out

    p = np.asarray(probabilities, dtype=np.float64)
    truth = np.asarray(labels, dtype=np.int64)
    guess = first_maximum(p) if predicted is None else np.asarray(predicted, dtype=np.int64)
    parts = [_scores(tally, by_class=by_class) for tally in tallies_left_out(p, truth, guess, memory=memory)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def evaluate_episodes(
    probabilities: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    predicted: ArrayLike | Tensor | None = None,
    memory: int = MEMORY,
) -> dict[str, Floats]:
    """Every metric of every episode, [E] each, NaN where undefined.

    `probabilities` is [E, n, c]; `labels` is [n], or [E, n] where a negative label leaves the image out
    (so episodes with different numbers of images share one array). Tensors are worked on where they are.
    """
    import torch

    from histobench.roi.metrics.episodes import tally_episodes

    p = torch.as_tensor(probabilities)
    truth = torch.as_tensor(labels, dtype=torch.long, device=p.device).expand(p.shape[:2])
    guess = None
    if predicted is not None:
        guess = torch.as_tensor(predicted, dtype=torch.long, device=p.device).expand(p.shape[:2])
    return metrics_of(tally_episodes(p, truth, guess, memory=memory))


def first_maximum(probabilities: Floats) -> NDArray[np.int64]:
    """The predicted class of each row: the most probable, the lowest id among equals; NaN never wins."""
    return np.argmax(np.nan_to_num(probabilities, nan=-1.0), axis=-1)
