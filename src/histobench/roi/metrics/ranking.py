"""Concordance and average precision of many score rows, from one sort per row."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor


def ascending_order(scores: Tensor) -> Tensor:
    """Indices that sort the last axis. On the CPU NumPy's vectorised sort is several times torch's."""
    if scores.device.type != "cpu":
        return torch.argsort(scores, dim=-1)
    rows = scores.reshape(-1, scores.shape[-1]).numpy()
    order = np.empty(rows.shape, dtype=np.int64)

    def sort(part: slice) -> None:
        order[part] = np.argsort(rows[part], axis=-1)

    workers = min(torch.get_num_threads(), len(rows))
    if workers <= 1 or rows.size < 20_000:
        sort(slice(None))
    else:
        edges = np.linspace(0, len(rows), workers + 1).astype(int)
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(sort, [slice(a, b) for a, b in pairwise(edges)]))
    return torch.from_numpy(order).reshape(scores.shape)


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
        first, last = _tie_groups(same, place)
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


def _tie_groups(same: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """First and last place of the group of equal scores that each place belongs to."""
    edge = torch.zeros_like(same[..., :1])
    starts = torch.where(torch.cat([edge, same], -1), 0, place)
    ends = torch.where(torch.cat([same, edge], -1), len(place) - 1, place)
    first = starts.cummax(-1).values
    last = ends.flip(-1).cummin(-1).values.flip(-1)
    return first, last
