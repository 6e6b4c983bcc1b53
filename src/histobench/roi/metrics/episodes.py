"""Tallies of many evaluations with their own scores: few-shot episodes, or a single test set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.core.threads import spread
from histobench.roi.metrics.packed_ranking import rank_classes, rank_together, sums_by_slot
from histobench.roi.metrics.ranking import rank_rows
from histobench.roi.metrics.tally import (
    CALIBRATION_BINS,
    SMALLEST_PROBABILITY,
    Floats,
    Ints,
    Tally,
    calibration_bin,
)

_SCORES_AT_ONCE = 150_000  # that one thread ranks: few, long operations that stay in the cache
_WORKING_BYTES_PER_SCORE = 120  # what the ranking holds at once for each entry of [E, n, c]


def tally_episodes(probabilities: Tensor, labels: Tensor, predicted: Tensor | None, *, memory: int) -> Tally:
    """Tally of probabilities [E, n, c] against labels [E, n]; images with a negative label do not count."""
    episodes, n, c = probabilities.shape
    if n == 0:
        # One image that does not count keeps every axis non-empty; all metrics come out as NaN.
        nobody = labels.new_full((episodes, 1), -1)
        return _tally_chunk(probabilities.new_zeros(episodes, 1, c), nobody, None)
    if probabilities.device.type == "cpu" and probabilities.dtype == torch.float32:
        p, truth = probabilities.transpose(1, 2).contiguous().numpy(), labels.numpy()
        guess = None if predicted is None else predicted.numpy()
        # A NaN is greater than any number for `min` and `max` alike.
        if not np.isnan(p.min()):
            step = max(1, _SCORES_AT_ONCE // (n * c))
            blocks = [slice(k, k + step) for k in range(0, episodes, step)]
            return _joined(
                spread(
                    lambda some: _tally_block(p[some], truth[some], None if guess is None else guess[some]),
                    blocks,
                )
            )
    chunk = max(1, memory // max(1, n * c * _WORKING_BYTES_PER_SCORE))
    parts = [
        _tally_chunk(
            probabilities[k : k + chunk],
            labels[k : k + chunk],
            None if predicted is None else predicted[k : k + chunk],
        )
        for k in range(0, episodes, chunk)
    ]
    return _joined(parts)


def _joined(parts: Sequence[Tally]) -> Tally:
    return Tally(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Tally.__dataclass_fields__)
    )


def _tally_block(p: NDArray[np.float32], labels: Ints, predicted: Ints | None) -> Tally:
    """Tally of a few evaluations, scores [E, c, n] without NaN: what fits into a processor's cache."""
    episodes, c, n = p.shape
    valid = labels >= 0
    everyone = bool(valid.all())
    confidence, top = (found.numpy() for found in torch.from_numpy(p).max(1))
    guess = top if predicted is None else predicted
    label = labels if everyone else labels.clip(0)
    episode = np.arange(episodes)[:, None]

    def by_slot(slot: Ints, size: int, *weights: NDArray[Any]) -> list[Floats]:
        """Sums over the images of an evaluation [E, size] by slot; those that do not count are left out."""
        where = slot + episode * (size + 1)
        if not everyone:
            where = np.where(valid, where, episode * (size + 1) + size)
        whole = episodes * (size + 1)
        return [sums_by_slot(where, w, whole).reshape(episodes, size + 1)[:, :size] for w in weights]

    ones = np.ones((episodes, n))
    confusion = by_slot(label * c + guess.clip(0), c * c, ones)[0].reshape(episodes, c, c)
    concordance, average_precision = rank_classes(p, labels)
    nothing = np.full(episodes, np.nan)
    micro_auroc, micro_auprc = (nothing, nothing) if c == 2 else rank_together(p, labels)
    own = np.take_along_axis(p, label[:, None], 1)[:, 0].astype(np.float64)
    log_own = np.log(own.clip(SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY))
    exact = p.astype(np.float64)
    error = np.einsum("ecn,ecn->en", exact, exact) - 2 * own + 1
    count = valid.sum(1)
    with np.errstate(invalid="ignore"):
        log_loss = -np.where(valid, log_own, 0).sum(1) / count
        squared_error = np.where(valid, error, 0).sum(1) / count
    named = guess
    if predicted is not None:
        # A rule may predict another label than the most probable: the confidence is that of the latter.
        told = np.take_along_axis(p, guess.clip(0)[:, None], 1)[:, 0]
        named = np.where(told == confidence, guess, top)
    sure = confidence.astype(np.float64)
    bins = calibration_bin(sure)
    calibration = by_slot(bins, CALIBRATION_BINS, ones, sure, (named == labels).astype(np.float64))
    return Tally(
        confusion,
        concordance,
        average_precision,
        micro_auroc,
        micro_auprc,
        log_loss,
        squared_error,
        np.stack(calibration, -1),
    )


def _tally_chunk(probabilities: Tensor, labels: Tensor, predicted: Tensor | None) -> Tally:
    episodes, _, c = probabilities.shape
    device = probabilities.device
    valid = labels >= 0
    everyone = bool(valid.all())
    # Classes before images: every reduction over classes then runs along contiguous images.
    p = probabilities.transpose(1, 2).contiguous()  # [E, c, n]
    gap = torch.zeros(episodes, c, dtype=torch.float64, device=device)  # NaN: class not covered
    unknown = torch.isnan(p)
    if bool(unknown.any()):
        gap[(unknown & valid[:, None]).any(2)] = torch.nan
        p = torch.nan_to_num(p, nan=-1.0)
    confidence, top = p.max(1)
    guess = top if predicted is None else predicted
    label = labels.clamp(min=0)

    cell = torch.where(valid, label * c + guess.clamp(min=0), c * c)
    confusion = _histogram(cell, valid.double(), c * c + 1)[:, : c * c].reshape(episodes, c, c)

    # Ranked in the precision that they came in; what does not count goes below everything.
    scores = p if everyone else torch.where(valid[:, None], p, -torch.inf)
    classes = torch.arange(c, device=device)
    concordance, average_precision = rank_rows(scores, labels[:, None], classes, c)
    any_gap = gap.sum(1)
    if c == 2:
        micro = torch.full((2, episodes), torch.nan, dtype=torch.float64, device=device)
    else:
        micro = _micro(scores, labels, classes) + any_gap

    n_valid = valid.sum(1).double()
    own = p.gather(1, label[:, None])[:, 0].double()
    log_own = own.clamp(SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY).log_()
    log_loss = torch.where(valid, -log_own, 0.0).sum(1) / n_valid + any_gap
    squares = _sum_of_squares(p)
    squared_error = torch.where(valid, squares - 2 * own + 1, 0.0).sum(1) / n_valid + any_gap

    # A rule may predict another label than the most probable: the confidence is that of the latter.
    named = torch.where(p.gather(1, guess.clamp(min=0)[:, None])[:, 0] == confidence, guess, top)
    correct = (named == labels).double()
    confidence = confidence.double()
    bins = torch.ceil(confidence * CALIBRATION_BINS - 1e-9).long().sub_(1).clamp_(0, CALIBRATION_BINS - 1)
    bins = torch.where(valid, bins, CALIBRATION_BINS)
    calibration = torch.stack(
        [_histogram(bins, w, CALIBRATION_BINS + 1)[:, :-1] for w in (valid.double(), confidence, correct)], -1
    )
    fields = (
        confusion,
        concordance + gap[..., None],
        average_precision + gap,
        *micro,
        log_loss,
        squared_error,
        calibration,
    )
    return Tally(*(field.cpu().numpy() for field in fields))


def _sum_of_squares(p: Tensor) -> Tensor:
    """Over classes [E, c, n] -> [E, n] in float64; one class at a time is faster than a strided reduction."""
    total = torch.zeros(p.shape[0], p.shape[2], dtype=torch.float64, device=p.device)
    for column in p.unbind(1):
        exact = column.double()
        total.addcmul_(exact, exact)
    return total


def _histogram(slot: Tensor, weight: Tensor, size: int) -> Tensor:
    counts = torch.zeros(len(slot), size, dtype=torch.float64, device=slot.device)
    return counts.scatter_add_(1, slot, weight)


def _micro(scores: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """AUROC and AUPRC [2, E] of all score columns ranked together."""
    own = (labels[:, None] == classes[:, None]).long()
    flags = torch.where(labels[:, None] >= 0, own, -1).flatten(1)[:, None]
    one = torch.ones(1, dtype=torch.long, device=scores.device)
    concordance, average_precision = rank_rows(scores.flatten(1)[:, None], flags, one, 2)
    positives = (flags == 1).sum((1, 2)).double()
    negatives = (flags == 0).sum((1, 2)).double()
    return torch.stack([concordance[:, 0, 0] / (positives * negatives), average_precision[:, 0]])
