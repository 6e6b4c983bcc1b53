"""Classes that a single patient or slide stands for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def single_group_classes(labels: Sequence[int], groups: Sequence[str | None]) -> list[tuple[int, str, int]]:
    """(label, group, images) of every class that has several images, all of one group.

    >>> single_group_classes([0, 0, 1, 1, 2], ["a", "b", "b", "b", "a"])
    [(1, 'b', 2)]
    """
    if not groups:
        return []
    found = []
    truth, named = np.asarray(labels), np.asarray([group or "" for group in groups], dtype=object)
    for label in np.unique(truth):
        members = named[truth == label]
        if len(members) > 1 and members[0] and (members == members[0]).all():
            found.append((int(label), str(members[0]), len(members)))
    return found
