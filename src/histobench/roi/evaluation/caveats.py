"""What the make-up of the test set does to the numbers: classes without images, or from a single patient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from histobench.roi.features.feature_set import FeatureSet


def caveats(test: FeatureSet, classes: Sequence[str]) -> tuple[str, ...]:
    """In words, what stands behind the class means of this test set; empty where nothing is odd."""
    labels = test.labels.numpy()
    found = []
    absent = [name for label, name in enumerate(classes) if not (labels == label).any()]
    if absent:
        found.append(
            f"{_listed(absent)} {'has' if len(absent) == 1 else 'have'} no test images: balanced accuracy "
            f"and other means over classes are over {len(classes) - len(absent)} of {len(classes)} classes"
        )
    for label, group, images in single_group_classes(labels.tolist(), test.groups or ()):
        found.append(
            f"class {classes[label]}: all {images} test images come from one group ({group}): its recall, "
            "and with it every mean over classes, rests on one patient or slide"
        )
    return tuple(found)


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


def _listed(names: Sequence[str]) -> str:
    return ("class " if len(names) == 1 else "classes ") + ", ".join(names)
