"""Counts and ranks of many evaluations: few-shot episodes, or a single test set."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.core.threads import spread
from histobench.roi.metrics.formulas import (
    CALIBRATION_BINS,
    SMALLEST_PROBABILITY,
    Floats,
    Ints,
    Tally,
    calibration_bin,
)

Scores = NDArray[np.float32]


def rank_classes(scores: Scores, labels: Ints) -> tuple[Floats, Floats]:
    """Concordance [E, c, c] and average precision [E, c] of scores [E, c, m], labels [E, m].

    Images with a negative label do not count. The average precision of a class without images is NaN.
    """
    episodes, c, m = scores.shape
    padded = bool((labels < 0).any())
    codes = np.where(labels < 0, c, labels) if padded else labels
    n_codes = c + padded
    keys, bits = _sorted(scores, codes[:, None], n_codes, lowest=c if padded else None)
    ranked = keys & keys.dtype.type(2**bits - 1)
    is_positive = ranked == np.arange(c, dtype=keys.dtype)[:, None]
    upto = torch.cumsum(torch.from_numpy(is_positive), -1, dtype=torch.int32).numpy()
    rows = np.arange(episodes * c)
    slots = codes + np.arange(episodes)[:, None] * n_codes
    held = sums_by_slot(slots, np.ones(codes.shape), episodes * n_codes)
    by_class = held.reshape(episodes, n_codes)[:, :c].astype(np.int64)
    sizes = by_class.ravel()
    # Each image is positive in one row: by row, and within it in the order of the scores.
    place = np.flatnonzero(is_positive)
    row = np.repeat(rows, sizes)
    below = np.arange(len(place)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    images = m - (place - m * row)  # with this score or a higher one
    # Twice the positives below, ties half: exact in integers.
    twice = upto * 2
    keys >>= keys.dtype.type(bits)
    members, first, last = _tie_groups(keys, besides=0 if padded else None)
    if len(members):
        below_group = (upto.ravel() - is_positive.ravel())[first]
        twice.ravel()[members] = below_group + upto.ravel()[last]
        tied = is_positive.ravel()[members]
        at = np.searchsorted(place, members[tied])
        below[at] = below_group[tied]
        images[at] += (members - first)[tied]
    precision = (np.repeat(sizes, sizes) - below) / images
    with np.errstate(invalid="ignore"):
        average = sums_by_slot(row, precision, episodes * c) / sizes
    slot = ranked.astype(np.int64)
    slot += (rows * n_codes).reshape(episodes, c, 1)
    lost = sums_by_slot(slot, twice, episodes * c * n_codes).reshape(episodes, c, n_codes)[..., :c]
    return by_class[:, :, None] * by_class[:, None] - lost / 2, average.reshape(episodes, c)


def rank_together(scores: Scores, labels: Ints) -> tuple[Floats, Floats]:
    """AUROC and average precision, [E] each, of all score columns of [E, c, m] in one ranking."""
    episodes, c, m = scores.shape
    padded = bool((labels < 0).any())
    codes = np.zeros(scores.shape, dtype=np.uint8)
    np.put_along_axis(codes, labels.clip(0)[:, None], (labels >= 0).view(np.uint8)[:, None], 1)
    if padded:
        codes |= np.where(labels < 0, np.uint8(2), np.uint8(0))[:, None]
    flat = scores.reshape(episodes, c * m)
    keys, bits = _sorted(flat, codes.reshape(flat.shape), 2 + padded, lowest=2 if padded else None)
    place = np.flatnonzero(keys & keys.dtype.type(1))
    positives = (labels >= 0).sum(1)
    start = np.repeat(np.cumsum(positives) - positives, positives)
    episode = np.repeat(np.arange(episodes), positives)
    among = c * positives  # scores of an episode; those that do not count are at the bottom of its row
    row_start = (episode + 1) * (c * m) - np.repeat(among, positives)
    at = place - row_start
    below = np.arange(len(place)) - start  # positives with a lower score
    others = (at - below).astype(np.float64)  # others with a lower score, a tie half
    first_at = at.copy()
    keys >>= keys.dtype.type(bits)
    mine = keys.ravel()[place]
    tied = np.zeros(len(place), dtype=bool)
    for step, edge in ((-1, 0), (1, c * m - 1)):  # equal to a neighbor in its row
        inside = np.flatnonzero(place % (c * m) != edge)
        tied[inside] |= keys.ravel()[place[inside] + step] == mine[inside]
    which = np.flatnonzero(tied)
    if len(which):
        first, last = np.empty((2, len(which)), dtype=np.int64)
        for e in np.unique(episode[which]):
            some = episode[which] == e
            first[some], last[some] = (
                e * c * m + np.searchsorted(keys[e], mine[which[some]], side) for side in ("left", "right")
            )
        lower, upto = np.searchsorted(place, first), np.searchsorted(place, last)
        below[which] = lower - start[which]
        first_at[which] = first - row_start[which]
        others[which] = first_at[which] - below[which] + ((last - first) - (upto - lower)) / 2
    precision = (np.repeat(positives, positives) - below) / (np.repeat(among, positives) - first_at)
    with np.errstate(invalid="ignore"):
        auroc = sums_by_slot(episode, others, episodes) / (positives * (c - 1.0) * positives)
        return auroc, sums_by_slot(episode, precision, episodes) / positives


def sums_by_slot(slot: Ints, weights: NDArray[Any], size: int) -> Floats:
    """Sums of weights by slot. As `np.bincount`, which keeps other threads waiting for Python's lock."""
    total = torch.zeros(size, dtype=torch.float64)
    total.scatter_add_(0, torch.from_numpy(slot.ravel()), torch.from_numpy(weights.ravel()).double())
    return total.numpy()


def _sorted(
    scores: Scores, codes: NDArray[Any], n_codes: int, *, lowest: int | None
) -> tuple[NDArray[Any], int]:
    """Rows of scores with their codes in the lowest bits, ascending, and how many bits those are.

    What has the code `lowest` comes first, with the key 0, which no other has.
    """
    bits = max(1, (n_codes - 1).bit_length())
    # Adding 0 turns -0 into +0; flat views of what follows need rows one after the other.
    raw = np.add(scores, np.float32(0), order="C").view(np.uint32)
    raw -= raw.min()
    if int(raw.max()) >= (1 << (32 - bits)) - 1:
        keys: NDArray[Any] = raw.astype(np.uint64)
    else:
        keys = raw
    if lowest is not None:
        keys += keys.dtype.type(1)
        keys *= codes != lowest
    keys <<= keys.dtype.type(bits)
    keys |= codes.astype(keys.dtype)
    keys.sort(axis=-1)
    return keys, bits


def _tie_groups(ranked: NDArray[Any], *, besides: int | None) -> tuple[Ints, Ints, Ints]:
    """Flat places that share their score with others of their row; the first and last of each one's group.

    Groups with the key `besides` are left out.
    """
    flat = ranked.ravel()
    same = np.empty(flat.size, dtype=bool)
    np.equal(flat[1:], flat[:-1], out=same[1:])
    same[:: ranked.shape[-1]] = False  # the first place of a row equals nothing before it
    if besides is not None:
        same &= flat != besides
    follows = np.flatnonzero(same)
    if not len(follows):
        return follows, follows, follows
    new = np.empty(len(follows), dtype=bool)
    new[0] = True
    new[1:] = np.diff(follows) > 1
    start = follows[new] - 1
    end = np.append(follows[np.flatnonzero(new)[1:] - 1], follows[-1])
    size = end - start + 1
    first, last = np.repeat(start, size), np.repeat(end, size)
    return (np.arange(len(first)) - np.repeat(np.cumsum(size) - size, size) + first), first, last


def ascending_order(scores: Tensor) -> Tensor:
    """Indices that sort the last axis. On the CPU NumPy's vectorised sort is several times torch's."""
    if scores.device.type != "cpu":
        return torch.argsort(scores, dim=-1)
    return torch.from_numpy(np.argsort(scores.numpy(), axis=-1))


def rank_rows(scores: Tensor, labels: Tensor, positive: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Concordance [E, r, n_classes] and average precision [E, r] of score rows [E, r, m].

    Row k ranks the images whose label is `positive[k]` against the others; `labels` is [E, 1 or r, m].
    Entries with a negative label do not count: their score must be -inf, which puts them below everything.
    """
    m = scores.shape[-1]
    order = ascending_order(scores)
    ranked_labels = labels.expand(scores.shape).gather(-1, order)
    is_positive = ranked_labels == positive[:, None]
    upto = is_positive.cumsum(-1)  # positives at or below each place
    total = upto[..., -1:]
    ranked = scores.gather(-1, order)
    same = ranked[..., 1:] == ranked[..., :-1]
    place = torch.arange(m, device=scores.device)
    if bool((same & (ranked_labels[..., 1:] >= 0)).any()):
        first, last = _ends_of_ties(same, place)
        below = (upto - is_positive.long()).gather(-1, first)
        middle = (below + upto.gather(-1, last)).double() / 2
        at_or_above, images_at_or_above = total - below, m - first
    else:
        middle = upto.double()
        at_or_above, images_at_or_above = total - upto + 1, m - place
    precision = torch.where(is_positive, at_or_above / images_at_or_above.double(), 0.0)
    average_precision = precision.sum(-1) / total[..., 0]  # 0/0 = NaN: no positive image
    above = total - middle
    slot = torch.where(ranked_labels >= 0, ranked_labels, n_classes)
    by_class = torch.zeros(*scores.shape[:-1], n_classes + 1, dtype=torch.float64, device=scores.device)
    by_class.scatter_add_(-1, slot, above)
    return by_class[..., :n_classes], average_precision


def _ends_of_ties(same: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    edge = torch.zeros_like(same[..., :1])
    starts = torch.where(torch.cat([edge, same], -1), 0, place)
    ends = torch.where(torch.cat([same, edge], -1), len(place) - 1, place)
    return starts.cummax(-1).values, ends.flip(-1).cummin(-1).values.flip(-1)


_SCORES_AT_ONCE = 150_000  # that one thread ranks: few, long operations that stay in the cache
_WORKING_BYTES_PER_SCORE = 120  # what the ranking holds at once for each entry of [E, n, c]


def tally_episodes(
    probabilities: Tensor, labels: Tensor, *, memory: int, predicted: Tensor | None = None
) -> Tally:
    """Tally of probabilities [E, n, c] against labels [E, n]; images with a negative label do not count.

    `predicted` overrides the first maximum of probabilities in double precision.
    """
    episodes, n, c = probabilities.shape
    if n == 0:
        # One image that does not count keeps every axis non-empty; all metrics come out as NaN.
        return _tally_chunk(probabilities.new_zeros(episodes, 1, c), labels.new_full((episodes, 1), -1), None)
    if probabilities.device.type == "cpu" and probabilities.dtype == torch.float32:
        p, truth = probabilities.transpose(1, 2).contiguous().numpy(), labels.numpy()
        # A NaN is greater than any number for `min` and `max` alike.
        if not np.isnan(p.min()):
            step = max(1, _SCORES_AT_ONCE // (n * c))
            blocks = [slice(k, k + step) for k in range(0, episodes, step)]
            return Tally.joined(spread(lambda some: _tally_block(p[some], truth[some]), blocks))
    chunk = max(1, memory // max(1, n * c * _WORKING_BYTES_PER_SCORE))
    return Tally.joined(
        [
            _tally_chunk(probabilities[some], labels[some], None if predicted is None else predicted[some])
            for some in [slice(k, k + chunk) for k in range(0, episodes, chunk)]
        ]
    )


def _tally_block(p: Scores, labels: Ints) -> Tally:
    """Tally of a few evaluations, scores [E, c, n] without NaN: what fits into a processor's cache."""
    episodes, c, n = p.shape
    valid = labels >= 0
    everyone = bool(valid.all())
    confidence, guess = (found.numpy() for found in torch.from_numpy(p).max(1))
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
    confusion = by_slot(label * c + guess, c * c, ones)[0].reshape(episodes, c, c)
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
    sure = confidence.astype(np.float64)
    right = (guess == labels).astype(np.float64)
    calibration = by_slot(calibration_bin(sure), CALIBRATION_BINS, ones, sure, right)
    micro = micro_auroc, micro_auprc
    bins = np.stack(calibration, -1)
    return Tally(confusion, concordance, average_precision, *micro, log_loss, squared_error, bins)


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
    squared_error = torch.where(valid, _sum_of_squares(p) - 2 * own + 1, 0.0).sum(1) / n_valid + any_gap

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
    return torch.zeros(len(slot), size, dtype=torch.float64, device=slot.device).scatter_add_(1, slot, weight)


def _micro(scores: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    own = (labels[:, None] == classes[:, None]).long()
    flags = torch.where(labels[:, None] >= 0, own, -1).flatten(1)[:, None]
    one = torch.ones(1, dtype=torch.long, device=scores.device)
    concordance, average_precision = rank_rows(scores.flatten(1)[:, None], flags, one, 2)
    positives = (flags == 1).sum((1, 2)).double()
    negatives = (flags == 0).sum((1, 2)).double()
    return torch.stack([concordance[:, 0, 0] / (positives * negatives), average_precision[:, 0]])
