"""What the make-up of the data does to the numbers: classes without images, from one patient or one site."""

from __future__ import annotations

from collections.abc import Sequence

from histobench.roi.data.single_groups import single_group_classes
from histobench.roi.data.site_balance import confounded
from histobench.roi.data.sites import PAIR_COLUMN
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


def site_caveats(parts: Sequence[FeatureSet]) -> tuple[str, ...]:
    """The site columns that go along with the label, over all splits; images of unknown site are left out.

    A column whose every value is of one group (a slide, a fold of one patient) is no site and not looked at.
    """
    found = []
    for column in dict.fromkeys(column for part in parts for column in part.sites):
        images = [
            (label, site, group)
            for part in parts
            for label, site, group in zip(
                part.labels.tolist(),
                part.sites.get(column) or ("",) * len(part),
                part.groups or range(len(part)),
                strict=True,
            )
            if site
        ]
        one_group_each = len({(site, group) for _, site, group in images}) == len(
            {site for _, site, _ in images}
        )
        if column != PAIR_COLUMN and images and not one_group_each:
            labels, sites, _ = zip(*images, strict=True)
            found.append(confounded(labels, sites, column))
    return tuple(text for text in found if text)


def _listed(names: Sequence[str]) -> str:
    return ("class " if len(names) == 1 else "classes ") + ", ".join(names)
