"""The same as `ranking.rank_rows` for float32 scores on the CPU, by sorting score and label as one integer.

The bits of non-negative floats order as the floats do, so the bits of a score with its label packed into 64
bits need a sort of plain values, which NumPy vectorises, and no gather afterwards. Equal scores stay equal.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

_LABEL_BITS = 10
#: Labels that fit beside a score; the highest code stands for "does not count".
MAX_CLASSES = 2**_LABEL_BITS - 1
_NOBODY = MAX_CLASSES


def rank_packed(
    scores: NDArray[np.float32],
    labels: NDArray[np.int64],
    positive: NDArray[np.int64],
    n_classes: int,
    *,
    threads: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Concordance [E, r, n_classes] and average precision [E, r] of score rows [E, r, m]."""
    episodes, r, _ = scores.shape
    concordance = np.zeros((episodes, r, n_classes))
    precision = np.zeros((episodes, r))

    def work(e: int) -> None:
        codes = np.where(labels[e] >= 0, labels[e], _NOBODY)
        concordance[e], precision[e] = _rank_episode(scores[e], codes, positive, n_classes)

    if threads > 1 and episodes > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(episodes)))
    else:
        for e in range(episodes):
            work(e)
    return concordance, precision


def _rank_episode(
    scores: NDArray[np.float32], codes: NDArray[np.int64], positive: NDArray[np.int64], n_classes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r, m = scores.shape
    # Adding 0 turns -0 into +0; those that do not count are -inf and sort below every probability.
    keys = (scores + np.float32(0)).view(np.int32).astype(np.int64)
    keys <<= _LABEL_BITS
    keys |= codes
    keys.sort(axis=-1)
    ranked = (keys & (2**_LABEL_BITS - 1)).astype(np.int16)
    keys >>= _LABEL_BITS
    flat = np.empty(r * m, dtype=bool)
    flat[1:] = keys.ravel()[1:] == keys.ravel()[:-1]
    flat[::m] = False  # the first place of a row equals nothing before it
    members, first, last = _tie_groups(flat)

    is_positive = ranked == positive[:, None]
    upto = np.cumsum(is_positive, axis=-1, dtype=np.int32)
    total = upto[:, -1].astype(np.int64)
    # Twice the positives below, ties half: exact in integers.
    twice = 2 * upto
    below = (upto - is_positive).ravel()
    lead = np.zeros(r * m, dtype=np.int32)
    if len(members):
        below_group = below[first]
        twice.ravel()[members] = below_group + upto.ravel()[last]
        below[members] = below_group
        lead[members] = members - first
    place = np.flatnonzero(is_positive)
    row = place // m
    at_or_above = total[row] - below[place]
    images = m - (place - row * m - lead[place])
    with np.errstate(invalid="ignore"):
        precision = np.bincount(row, weights=at_or_above / images, minlength=r) / total
    concordance = np.empty((r, n_classes))
    for k in range(r):
        lost = np.bincount(ranked[k], weights=twice[k], minlength=_NOBODY + 1)[:n_classes]
        size = np.bincount(ranked[k], minlength=_NOBODY + 1)[:n_classes]
        concordance[k] = size * total[k] - lost / 2
    return concordance, precision


def _tie_groups(same: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Places that belong to a group of equal scores, with the first and last place of each one's group."""
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
