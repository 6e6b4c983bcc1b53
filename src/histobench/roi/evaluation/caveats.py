"""Caveats of a result: what the make-up of the data and shared images do to the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from histobench.roi.comparison.answer import LEFT_OUT, TOO_GOOD
from histobench.roi.data.check import confounded, patients_in_names, single_group_classes
from histobench.roi.data.sites import is_place
from histobench.roi.encoders.own_name import UNCHECKED, is_unchecked
from histobench.roi.features.feature_file import FeatureSet


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
    # Of a target that is not a class all images are of one, which says nothing.
    single = single_group_classes(labels.tolist(), test.groups or ()) if len(classes) > 1 else []
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


def origin_caveats(features: FeatureSet) -> tuple[str, ...]:
    """What is to be said of features whose encoder is outside the zoo."""
    return (UNCHECKED,) if is_unchecked(features.metadata.get("identity")) else ()


def bad_image_caveats(parts: Sequence[FeatureSet]) -> tuple[str, ...]:
    """Which images have no features because they could not be read or found."""
    bad = {each["image"]: each["reason"] for part in parts for each in part.metadata.get("skipped") or ()}
    if not bad:
        return ()
    number = "1 image" if len(bad) == 1 else f"{len(bad):,} images"
    name, reason = next(iter(bad.items()))
    first = reason if name in reason else f"{name}: {reason}"
    return (f"{number} {LEFT_OUT} ({'' if len(bad) == 1 else 'first: '}{first})",)


def site_caveats(parts: Sequence[FeatureSet]) -> tuple[str, ...]:
    """The site columns that go along with the label, over all splits; images of unknown site are left out.

    A column whose every value is of one group (a slide, a fold of one patient) is no site and not looked at.
    """
    found = []
    for column in dict.fromkeys(column for part in parts for column in part.sites if is_place(column)):
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
        if images and not one_group_each:
            labels, sites, _ = zip(*images, strict=True)
            found.append(confounded(labels, sites, column))
    return tuple(text for text in found if text)


def _listed(names: Sequence[str]) -> str:
    return ("class " if len(names) == 1 else "classes ") + ", ".join(names)


def leaks(test: FeatureSet, others: Mapping[str, FeatureSet]) -> tuple[str, ...]:
    """What the test features share with the `others` (by split), in words."""
    found = []
    for split, features in others.items():
        same = int(_rows_also_in(test.embeddings.numpy(), features.embeddings.numpy()).sum())
        if same:
            images = "1 test image has" if same == 1 else f"{same} of {len(test)} test images have"
            found.append(
                f"{images} the same features as a {split} image (duplicates or blank tiles); results may be "
                "optimistic; `histobench data check` lists them"
            )
        groups = set(test.groups or ()) - {""}  # images without a group are groups of their own
        shared = sorted(groups & set(features.groups or ()))
        if shared:
            some = ", ".join(shared[:3]) + (", ..." if len(shared) > 3 else "")
            found.append(
                f"{len(shared)} of {len(groups)} test groups (patients, slides) are also in {split} "
                f"({some}): {TOO_GOOD}"
            )
    if test.groups is None and others:
        names = [f"/{name}" for part in (test, *others.values()) for name in part.img_names]
        patients = patients_in_names(names)
        tested, rest = set(patients[: len(test)]), set(patients[len(test) :])
        if tested & rest:
            found.append(
                f"file names show that {len(tested & rest)} of {len(tested)} test patients or slides are "
                f"also in {' or '.join(others)}: {TOO_GOOD}"
            )
    return tuple(found)


def _rows_also_in(rows: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows are among the others, bit for bit."""
    known = {hash(row.tobytes()) for row in others}
    return np.array([hash(row.tobytes()) in known for row in rows], dtype=bool)
