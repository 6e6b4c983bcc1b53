"""All metrics of many evaluations at once: bootstrap resamples and few-shot episodes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from histobench.roi.metrics.formulas import (
    CALIBRATION_BINS,
    Floats,
    Ints,
    PerImage,
    Tally,
    class_metrics_of,
    metrics_of,
)

if TYPE_CHECKING:
    from scipy import sparse
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

    `counts` [B, n] says how often each image occurs in a resample. Rows that are NaN throughout never count.
    """

    p = np.asarray(probabilities, dtype=np.float64)
    truth = np.asarray(labels, dtype=np.int64)
    guess = first_maximum(p) if predicted is None else np.asarray(predicted, dtype=np.int64)
    scored = ~np.all(np.isnan(p), axis=1)
    if not np.all(scored):
        p, truth, guess, counts = p[scored], truth[scored], guess[scored], counts[:, scored]
    return _scores(
        tally_resamples(p, truth, guess, counts, memory=memory, threads=threads), by_class=by_class
    )


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
    """Every metric with image 0, 1, ... left out, [n] each, at the cost of a sort and not of n resamples."""
    from histobench.roi.metrics.left_out import tallies_left_out

    p = np.asarray(probabilities, dtype=np.float64)
    truth = np.asarray(labels, dtype=np.int64)
    guess = first_maximum(p) if predicted is None else np.asarray(predicted, dtype=np.int64)
    parts = [_scores(tally, by_class=by_class) for tally in tallies_left_out(p, truth, guess, memory=memory)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def evaluate_episodes(
    probabilities: ArrayLike | Tensor, labels: ArrayLike | Tensor, *, memory: int = MEMORY
) -> dict[str, Floats]:
    """Every metric of every episode, [E] each, NaN where undefined.

    `probabilities` is [E, n, c]; `labels` is [n], or [E, n] where a negative label leaves the image out.
    """
    import torch

    from histobench.roi.metrics.episode_metrics import tally_episodes

    p = torch.as_tensor(probabilities)
    truth = torch.as_tensor(labels, dtype=torch.long, device=p.device).expand(p.shape[:2])
    return metrics_of(tally_episodes(p, truth, memory=memory))


def first_maximum(probabilities: Floats) -> NDArray[np.int64]:
    """The predicted class of each row: the most probable, the lowest id among equals; NaN never wins."""
    return np.argmax(np.nan_to_num(probabilities, nan=-1.0), axis=-1)


_CACHE = 2**22  # bytes that one thread works on at a time, so that they stay in the processor's cache
_LEAST = 8  # resamples at a time: with fewer, following the sparse matrices costs more than the sums


@dataclass(frozen=True)
class _Ranking:
    """One score column prepared for any weights; thresholds are the m distinct scores of the positive images.

    `positives` sums weights of positive images at each; `others` those of others by class and by how many
    thresholds lie strictly below; `ties` by class and by the threshold that they equal.
    """

    m: int
    positives: sparse.csr_matrix  # [m, n]
    others: sparse.csr_matrix  # [groups * (m + 1), n]
    ties: sparse.csr_matrix | None  # [groups * m, n]
    groups: int


def summing_matrix(row: Ints, column: Ints, shape: tuple[int, int]) -> sparse.csr_matrix:
    from scipy import sparse

    return sparse.csr_matrix((np.ones(len(row)), (row, column)), shape=shape)


def _prepare(
    scores: Floats, image: Ints, group: Ints, positive: NDArray[np.bool_], groups: int, n: int
) -> _Ranking:
    thresholds, at = np.unique(scores[positive], return_inverse=True)
    m = len(thresholds)
    other = ~positive
    below = np.searchsorted(thresholds, scores[other], side="left")
    tied = np.searchsorted(thresholds, scores[other], side="right") > below
    rest_image, rest_group = image[other], group[other]
    free = ~tied
    ties = None
    if tied.any():
        ties = summing_matrix(rest_group[tied] * m + below[tied], rest_image[tied], (groups * m, n))
    positives = summing_matrix(at, image[positive], (m, n))
    place = rest_group[free] * (m + 1) + below[free]
    others = summing_matrix(place, rest_image[free], (groups * (m + 1), n))
    return _Ranking(m, positives, others, ties, groups)


def _rank(ranking: _Ranking, weights: Floats) -> tuple[Floats, Floats]:
    """Concordance [groups, B] and average precision [B] under weights [n, B]."""
    m, groups, size = ranking.m, ranking.groups, weights.shape[1]
    at = ranking.positives @ weights
    above = np.cumsum(at[::-1], axis=0)[::-1]  # positives at or above each threshold
    free = (ranking.others @ weights).reshape(groups, m + 1, size)
    concordance = np.einsum("gmb,mb->gb", free[:, :m], above)
    others_at = free[:, 1:].sum(0)  # whose highest threshold below them is this one
    if ranking.ties is not None:
        tied = (ranking.ties @ weights).reshape(groups, m, size)
        concordance += np.einsum("gmb,mb->gb", tied, above - at / 2)
        others_at = others_at + tied.sum(0)
    others_above = np.cumsum(others_at[::-1], axis=0)[::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = above / (above + others_above)
        average_precision = np.where(at > 0, precision * at, 0.0).sum(0) / at.sum(0)
    return concordance, average_precision


def tally_resamples(
    probabilities: Floats,
    labels: Ints,
    predicted: Ints,
    counts: NDArray[np.number],
    *,
    memory: int,
    threads: int,
) -> Tally:
    """Tally of every row of counts [B, n]: how often each image of the test set occurs in that resample."""
    n, c = probabilities.shape
    image = np.arange(n)
    uncovered = np.isnan(probabilities).any(0)
    p = np.nan_to_num(probabilities, nan=-1.0)
    columns = [_prepare(p[:, a], image, labels, labels == a, c, n) for a in range(c)]
    micro = None
    if c > 2:
        own = labels[:, None] == np.arange(c)
        micro = _prepare(p.ravel(), np.repeat(image, c), np.zeros(n * c, dtype=np.int64), own.ravel(), 1, n)

    from scipy import sparse

    each = PerImage.of(p, labels, predicted)
    losses = np.stack([each.log_loss, each.squared_error])
    cells = summing_matrix(labels * c + predicted, image, (c * c, n))
    in_bin = summing_matrix(each.bin, image, (CALIBRATION_BINS, n))
    by_bin = sparse.vstack(
        [in_bin, in_bin.multiply(each.confidence[None]), in_bin.multiply(each.correct[None])], format="csr"
    )

    def tally(part: slice) -> Tally:
        w = np.ascontiguousarray(counts[part].T, dtype=np.float64)
        size = w.shape[1]
        confusion = (cells @ w).reshape(c, c, size)
        concordance = np.empty((c, c, size))
        average_precision = np.empty((c, size))
        for a, ranking in enumerate(columns):
            concordance[a], average_precision[a] = _rank(ranking, w)
        concordance[uncovered] = np.nan
        average_precision[uncovered] = np.nan
        total = w.sum(0)
        micro_auroc = micro_auprc = np.full(size, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            if micro is not None:
                pairs, micro_auprc = _rank(micro, w)
                micro_auroc = pairs[0] / (total * total * (c - 1))
            log_loss, squared_error = (losses @ w) / total
        if uncovered.any():
            micro_auroc = micro_auprc = log_loss = squared_error = np.full(size, np.nan)
        return Tally(
            np.moveaxis(confusion, 2, 0),
            np.moveaxis(concordance, 2, 0),
            average_precision.T,
            micro_auroc,
            micro_auprc,
            log_loss,
            squared_error,
            (by_bin @ w).reshape(3, CALIBRATION_BINS, size).T,
        )

    # Per resample and thread: its weights, and the largest [groups, thresholds] table with its copies.
    every = [*columns, *([micro] if micro else [])]
    largest = max(r.groups * (r.m + 1) * (1 if r.ties is None else 2) for r in every)
    cost = 8 * (n + 2 * largest)
    chunk = max(1, min(memory // threads // cost, max(_LEAST, _CACHE // cost)))
    chunk = min(chunk, max(1, -(-len(counts) // threads)))
    parts = [slice(k, k + chunk) for k in range(0, len(counts), chunk)]
    if threads > 1 and len(parts) > 1:
        with ThreadPoolExecutor(threads) as pool:
            tallies = list(pool.map(tally, parts))
    else:
        tallies = [tally(part) for part in parts]
    return Tally.joined(tallies)
