"""What the make-up of the test set does to the numbers: classes without images, or from a single patient."""

from __future__ import annotations

from collections.abc import Sequence

from histobench.roi.data.single_groups import single_group_classes
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
    single = single_group_classes(labels.tolist(), test.groups or ())
    if len(single) > 1:
        named = ", ".join(f"{classes[label]} ({group})" for label, group, _ in single)
        found.append(
            f"{len(single)} of {len(classes)} classes have their test images from one group each: {named}; "
            "their recall, and with it every mean over classes, rests on one patient or slide each"
        )
    for label, group, images in single if len(single) == 1 else ():
        found.append(
            f"class {classes[label]}: all {images} test images come from one group ({group}): its recall, "
            "and with it every mean over classes, rests on one patient or slide"
        )
    return tuple(found)


def _listed(names: Sequence[str]) -> str:
    return ("class " if len(names) == 1 else "classes ") + ", ".join(names)
