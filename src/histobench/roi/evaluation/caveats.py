"""Caveats of a result: what the make-up of the data and shared images do to the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from histobench.roi.comparison.answer import LEFT_OUT, TOO_GOOD
from histobench.roi.data.check import confounded, single_group_classes
from histobench.roi.data.sites import is_place
from histobench.roi.data.split import patients_in_names
from histobench.roi.encoders.own_name import UNCHECKED, is_unchecked
from histobench.roi.features.feature_file import FeatureSet


def caveats(test: FeatureSet, classes: Sequence[str]) -> tuple[str, ...]:
    """What to know about the class means of this test set."""
    labels = test.labels.numpy()
    found = []
    absent = [name for label, name in enumerate(classes) if not (labels == label).any()]
    if absent:
        have = f"class {absent[0]} has" if len(absent) == 1 else f"classes {', '.join(absent)} have"
        found.append(
            f"{have} no test images: balanced accuracy and other means over classes are over "
            f"{len(classes) - len(absent)} of {len(classes)} classes"
        )
    # Of a target that is not a class all images are of one, which says nothing.
    single = single_group_classes(labels.tolist(), test.groups or ()) if len(classes) > 1 else []
    if len(single) > 1:
        named = ", ".join(f"{classes[label]} ({group})" for label, group, _ in single)
        found.append(
            f"{len(single)} of {len(classes)} classes have their test images from one group each: {named}; "
            "their recall, and with it every mean over classes, rests on one patient or slide each"
        )
    elif single:
        ((label, group, images),) = single
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
    name, reason = next(iter(bad.items()))
    first = reason if name in reason else f"{name}: {reason}"
    if len(bad) == 1:
        return (f"1 image {LEFT_OUT} ({first})",)
    return (f"{len(bad):,} images {LEFT_OUT} (first: {first})",)


def site_caveats(parts: Sequence[FeatureSet]) -> tuple[str, ...]:
    """The site columns that go along with the label, over all splits, unless each value is of one group."""
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
        groups_of_sites = {(site, group) for _, site, group in images}
        if len(groups_of_sites) > len({site for site, _ in groups_of_sites}):
            labels, sites, _ = zip(*images, strict=True)
            found.append(confounded(labels, sites, column))
    return tuple(text for text in found if text)


def leaks(test: FeatureSet, others: Mapping[str, FeatureSet]) -> tuple[str, ...]:
    """What the test features share with the `others` (by split), in words."""
    found = []
    for split, features in others.items():
        known = {hash(row.tobytes()) for row in features.embeddings.numpy()}
        same = sum(hash(row.tobytes()) in known for row in test.embeddings.numpy())  # bit for bit
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
