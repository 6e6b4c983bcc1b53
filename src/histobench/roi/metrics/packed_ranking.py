"""As `ranking.rank_rows`, for float32 scores on the CPU: score and label sorted as one integer.

The bits of non-negative floats order as the floats do, so the bits of a score with its label beside them need
a sort of plain values, which NumPy vectorizes, and no gather afterwards. Equal scores stay equal. Scores of
an evaluation mostly span few powers of two, so that both fit into 32 bits, which sort twice as fast as 64.
Many evaluations are ranked at once, so that few, long operations run without Python's lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
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
    held = sums_by_slot(
        codes + np.arange(episodes)[:, None] * n_codes, np.ones(codes.shape), episodes * n_codes
    )
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
    members = np.arange(len(first)) - np.repeat(np.cumsum(size) - size, size) + first
    return members, first, last
