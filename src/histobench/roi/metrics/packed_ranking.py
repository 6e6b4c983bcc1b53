"""As `ranking.rank_rows`, for float32 scores of one evaluation: score and label sorted as one integer.

The bits of non-negative floats order as the floats do, so the bits of a score with its label beside them need
a sort of plain values, which NumPy vectorises, and no gather afterwards. Equal scores stay equal. Scores of
an evaluation mostly span few powers of two, so that both fit into 32 bits, which sort twice as fast as 64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Scores = NDArray[np.float32]


def rank_classes(scores: Scores, labels: Ints) -> tuple[Floats, Floats]:
    """Concordance [c, c] and average precision [c] (NaN: no such image) of scores [c, m], labels [m]."""
    c, m = scores.shape
    keys, bits = _sorted(scores, labels, c)
    ranked = (keys & keys.dtype.type(2**bits - 1)).astype(np.intp)
    keys >>= keys.dtype.type(bits)
    is_positive = ranked == np.arange(c)[:, None]
    upto = np.cumsum(is_positive, axis=1, dtype=np.int32)
    sizes = np.bincount(labels, minlength=c)
    # Each image is positive in one row: by row, and within it in the order of the scores.
    place = np.flatnonzero(is_positive)
    start = np.cumsum(sizes) - sizes
    below = np.arange(m) - np.repeat(start, sizes)
    # Twice the positives below, ties half: exact in integers.
    twice = 2 * upto
    images = m - (place - m * np.repeat(np.arange(c), sizes))
    members, first, last = _tie_groups(keys)
    if len(members):
        below_group = (upto.ravel() - is_positive.ravel())[first]
        twice.ravel()[members] = below_group + upto.ravel()[last]
        tied = is_positive.ravel()[members]
        at = np.searchsorted(place, members[tied])
        below[at] = below_group[tied]
        images[at] += (members - first)[tied]
    precision = (np.repeat(sizes, sizes) - below) / images
    row = np.repeat(np.arange(c), sizes)
    with np.errstate(invalid="ignore"):
        average = np.bincount(row, weights=precision, minlength=c) / sizes
    ranked += (np.arange(c) * c)[:, None]
    lost = np.bincount(ranked.ravel(), weights=twice.ravel(), minlength=c * c).reshape(c, c)
    return sizes[:, None] * sizes - lost / 2, average


def rank_together(scores: Scores, labels: Ints) -> tuple[float, float]:
    """AUROC and average precision of all score columns [c, m] in one ranking."""
    c, m = scores.shape
    own = labels == np.arange(c)[:, None]
    keys, bits = _sorted(scores.reshape(1, -1), own.reshape(1, -1), 2)
    place = np.flatnonzero(keys[0] & keys.dtype.type(1))
    keys >>= keys.dtype.type(bits)
    ranked = keys[0]
    below = np.arange(m)  # positives with a lower score
    lead = place - below  # others with a lower score, a tie half
    first = place.copy()
    mine = ranked[place]
    tied = np.zeros(m, dtype=bool)
    inside = place > 0
    tied[inside] |= ranked[place[inside] - 1] == mine[inside]
    inside = place < c * m - 1
    tied[inside] |= ranked[place[inside] + 1] == mine[inside]
    others = lead.astype(np.float64)
    if tied.any():
        value = mine[tied]
        left, right = (np.searchsorted(ranked, value, side) for side in ("left", "right"))
        lower, upto = (np.searchsorted(mine, value, side) for side in ("left", "right"))
        below[tied], first[tied] = lower, left
        others[tied] = (left - lower) + ((right - left) - (upto - lower)) / 2
    precision = (m - below) / (c * m - first)
    with np.errstate(invalid="ignore"):
        return float(others.sum() / (m * (c - 1.0) * m)), float(precision.sum() / m)


def _sorted(scores: Scores, codes: NDArray[Any], n_codes: int) -> tuple[NDArray[Any], int]:
    """Rows of scores with their codes in the lowest bits, ascending, and how many bits those are."""
    bits = max(1, (n_codes - 1).bit_length())
    # Adding 0 turns -0 into +0; flat views of what follows need rows one after the other.
    raw = np.add(scores, np.float32(0), order="C").view(np.uint32)
    low = raw.min()
    raw -= low
    if int(raw.max()) >> (32 - bits):
        keys: NDArray[Any] = raw.astype(np.uint64)
    else:
        keys = raw
    keys <<= keys.dtype.type(bits)
    keys |= codes.astype(keys.dtype)
    keys.sort(axis=-1)
    return keys, bits


def _tie_groups(ranked: NDArray[Any]) -> tuple[Ints, Ints, Ints]:
    """Flat places that share their score with others of their row; the first and last of each one's group."""
    same = np.empty(ranked.size, dtype=bool)
    same[1:] = ranked.ravel()[1:] == ranked.ravel()[:-1]
    same[:: ranked.shape[1]] = False  # the first place of a row equals nothing before it
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
