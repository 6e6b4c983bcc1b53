"""Tallies of many evaluations with their own scores: few-shot episodes, or a single test set."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from histobench.roi.metrics.ranking import rank_rows
from histobench.roi.metrics.tally import CALIBRATION_BINS, SMALLEST_PROBABILITY, Tally, calibration_bin

_WORKING_BYTES_PER_SCORE = 120  # what the ranking holds at once for each entry of [E, n, c]


def tally_episodes(probabilities: Tensor, labels: Tensor, predicted: Tensor | None, *, memory: int) -> Tally:
    """Tally of probabilities [E, n, c] against labels [E, n]; images with a negative label do not count."""
    episodes, n, c = probabilities.shape
    if n == 0:
        # One image that does not count keeps every axis non-empty; all metrics come out as NaN.
        nobody = labels.new_full((episodes, 1), -1)
        return _tally_chunk(probabilities.new_zeros(episodes, 1, c), nobody, None)
    chunk = max(1, memory // max(1, n * c * _WORKING_BYTES_PER_SCORE))
    parts = [
        _tally_chunk(
            probabilities[k : k + chunk],
            labels[k : k + chunk],
            None if predicted is None else predicted[k : k + chunk],
        )
        for k in range(0, episodes, chunk)
    ]
    return Tally(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Tally.__dataclass_fields__)
    )


def _tally_chunk(probabilities: Tensor, labels: Tensor, predicted: Tensor | None) -> Tally:
    episodes, _, c = probabilities.shape
    device = probabilities.device
    valid = labels >= 0
    p = probabilities.double()
    uncovered = (torch.isnan(p) & valid[..., None]).any(1)  # [E, c]
    p = torch.nan_to_num(p, nan=-1.0)
    confidence, top = p.max(2)
    guess = top if predicted is None else predicted
    label = labels.clamp(min=0)

    cell = torch.where(valid, label * c + guess.clamp(min=0), c * c)
    confusion = _histogram(cell, valid.double(), c * c + 1)[:, : c * c].reshape(episodes, c, c)

    scores = torch.where(valid[..., None], p, -torch.inf).transpose(1, 2).contiguous()  # [E, c, n]
    classes = torch.arange(c, device=device)
    concordance, average_precision = rank_rows(scores, labels[:, None], classes, c)
    gap = uncovered[..., None].double().masked_fill(uncovered[..., None], torch.nan)
    concordance = concordance + gap
    average_precision = average_precision + gap[..., 0]
    if c == 2:
        micro = torch.full((2, episodes), torch.nan, dtype=torch.float64, device=device)
    else:
        micro = _micro(scores, labels, classes) + gap[..., 0].sum(1)

    n_valid = valid.sum(1).double()
    own = p.gather(2, label[..., None])[..., 0].clamp(SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)
    log_loss = torch.where(valid, -own.log(), 0.0).sum(1) / n_valid + gap[..., 0].sum(1)
    own_error = p.square().sum(2) - 2 * p.gather(2, label[..., None])[..., 0] + 1
    squared_error = torch.where(valid, own_error, 0.0).sum(1) / n_valid + gap[..., 0].sum(1)

    bins = torch.from_numpy(calibration_bin(confidence.cpu().numpy())).to(device)
    bins = torch.where(valid, bins, CALIBRATION_BINS)
    correct = (guess == labels).double()
    calibration = torch.stack(
        [_histogram(bins, w, CALIBRATION_BINS + 1)[:, :-1] for w in (valid.double(), confidence, correct)], -1
    )
    fields = (confusion, concordance, average_precision, *micro, log_loss, squared_error, calibration)
    return Tally(*(field.cpu().numpy() for field in fields))


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
