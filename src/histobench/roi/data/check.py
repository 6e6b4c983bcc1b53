"""Is this dataset fit to be measured on? Everything is looked at before anything is reported."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.data.class_map import is_fraction
from histobench.roi.data.image import NOTE, open_rgb
from histobench.roi.data.image_ref import IMAGE_SUFFIXES, locate
from histobench.roi.data.image_table import groups_of, labels_of
from histobench.roi.data.masks import read_mask
from histobench.roi.data.near_duplicates import Thumb, near_duplicates, thumbnail
from histobench.roi.data.roi_dataset import SPLITS, Reading, RoiDataset, RoiImage, listing
from histobench.roi.data.sites import is_place, site_table
from histobench.roi.data.split import patients_in_names, regex_for
from histobench.roi.task_catalogue import UNTRAINED


def single_group_classes(labels: Sequence[int], groups: Sequence[str | None]) -> list[tuple[int, str, int]]:
    """(label, group, images) of every class that has several images, all of one group."""
    owners: dict[int, list[str | None]] = defaultdict(list)
    for label, group in zip(labels, groups, strict=False):  # there may be no groups
        owners[label].append(group)
    return [
        (label, own[0], len(own))
        for label, own in sorted(owners.items())
        if own[0] and len(own) > 1 and len(set(own)) == 1
    ]


#: From this Cramer's V on a set is called confounded; Cohen calls it a large association.
CONFOUNDED = 0.5


def cramers_v(one: Sequence[object], other: Sequence[object]) -> float:
    """How far two columns say the same: 0 (crossed evenly) to 1; NaN where one of them never changes."""
    rows, columns = (np.unique(np.asarray(each, dtype=str), return_inverse=True)[1] for each in (one, other))
    table = np.zeros((int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1))
    np.add.at(table, (rows, columns), 1)
    smaller = min(table.shape) - 1
    if smaller < 1:
        return float("nan")
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    chi_squared: NDArray[np.float64] = (table - expected) ** 2 / expected
    return float(np.sqrt(chi_squared.sum() / (table.sum() * smaller)))


def confounded(labels: Sequence[object], sites: Sequence[str], column: str) -> str | None:
    """What to say where label and site go together; None where they do not."""
    value = cramers_v(labels, sites)
    if not value >= CONFOUNDED:
        return None
    return (
        f"label and {column} are confounded (Cramer's V {value:.2f}): accuracy may come from the "
        f"{column} instead of the tissue"
    )


def site_warnings(dataset: RoiDataset) -> Iterator[str]:
    """What an accuracy on this set may owe to the sites, in words; images of unknown site are left out."""
    splits = [split for split, _ in _all(dataset)]
    labels = [image.label for _, image in _all(dataset)]
    for column, values in site_table([image.sites for _, image in _all(dataset)]).items():
        known = [k for k, value in enumerate(values) if value]
        sites = [values[k] for k in known]
        if not is_place(column) or len(set(sites)) < 2:
            continue
        if lines := confounded([labels[k] for k in known], sites, column):
            yield lines
        yield from _one_site_each(dataset.classes, [labels[k] for k in known], sites, column)
        test = {values[k] for k in known if splits[k] == "test"}
        train = {values[k] for k in known if splits[k] != "test"}
        if test and train:
            yield from (f"{column} {site!r} occurs only in the test set" for site in sorted(test - train))
            yield from (f"{column} {site!r} does not occur in the test set" for site in sorted(train - test))
        if unknown := len(values) - len(known):
            yield f"{unknown:,} images have no {column}; these notes do not cover them"


def _one_site_each(
    classes: Sequence[str], labels: Sequence[int], sites: Sequence[str], column: str
) -> Iterator[str]:
    """The classes that come from one site, in one line however many they are."""
    seen: dict[int, set[str]] = defaultdict(set)
    for label, site in zip(labels, sites, strict=True):
        seen[label].add(site)
    found = [(classes[label], own.pop()) for label, own in sorted(seen.items()) if len(own) == 1]
    if len(found) == 1:
        yield f"all images of class {found[0][0]!r} with a known {column} come from {found[0][1]!r}"
    elif found:
        listed = ", ".join(f"{name!r} from {site!r}" for name, site in found)
        yield f"{len(found)} classes come from one {column} each: {listed}"


KINDS = (
    *("row", "split", "missing file", "unreadable image", "unusual image", "label", "empty class"),
    *("class of one group", "small test set", "image in two splits", "near-duplicate"),
    *("group in two splits", "double image", "groups", "sites", "left out"),
)
_MISSING = "the file does not exist"
_BAD_IMAGE = ("missing file", "unreadable image")
_SHORTEST_SIDE, _LONGEST_STRIP = 32, 8
#: A larger image is a region of a slide: an encoder sees it at a small part of its resolution.
_MOST_PIXELS = 5000 * 5000
_LISTED = 3


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (`error`) or worth knowing (`warning`); `image` is the bad image, if one is."""

    level: str
    kind: str
    origin: str
    message: str
    image: RoiImage | None = None

    def __str__(self) -> str:
        return f"{self.origin}: {self.message}"


@dataclass(frozen=True, repr=False)
class Findings:
    """All findings of a check, and the sizes (width, height) of the images that could be read.

    >>> Findings((Finding("warning", "groups", "my_data", "no groups are known"),), {(224, 224): 90})
    0 errors and 1 warning in 90 images that can be read
      warning: my_data: no groups are known
    """

    found: tuple[Finding, ...]
    sizes: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What must be repaired before numbers mean anything."""
        return tuple(finding for finding in self.found if finding.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What the user should know."""
        return tuple(finding for finding in self.found if finding.level == "warning")

    @property
    def bad_images(self) -> tuple[Finding, ...]:
        """The images that are missing or cannot be decoded."""
        return tuple(finding for finding in self.found if finding.kind in _BAD_IMAGE)

    def of(self, kind: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.found if finding.kind == kind)

    def __repr__(self) -> str:
        counts = [
            f"{len(found)} {what}{'s' * (len(found) != 1)}"
            for what, found in (("error", self.errors), ("warning", self.warnings))
        ]
        head = f"{' and '.join(counts)} in {sum(self.sizes.values()):,} images that can be read"
        return "\n  ".join([head, listing([f"{each.level}: {each}" for each in self.found])]).rstrip()


@dataclass(frozen=True)
class _Content:
    """A digest of an image's pixels, its size and a thumbnail, or why it cannot be read."""

    pixels: bytes = b""
    size: tuple[int, int] = (0, 0)
    error: str | None = None
    thumb: Thumb | None = None
    note: str = ""  # what had to be assumed to read it


def check_dataset(
    dataset: RoiDataset | Reading,
    *,
    on_bad_image: str = "stop",
    look_at_images: bool = True,
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Findings:
    """Look at every image and every label; `on_progress(done, total)` is called as images are read.

    Images are compared by their pixels, so that a copy without loss is found, and by thumbnails. With
    `on_bad_image="skip"` a bad image is a warning, and the rest is judged as if it were not there.
    """
    reading = dataset if isinstance(dataset, Reading) else Reading(dataset)
    data = reading.dataset
    found = [Finding("error", problem.kind, problem.origin, problem.message) for problem in reading.problems]
    found += [Finding("warning", "left out", problem.origin, problem.message) for problem in reading.warnings]
    if not look_at_images:
        return _sorted([*found, *structure_findings(data)])
    contents = _read_contents(data, workers, on_progress)
    # Whether a table lists slides or tiles by name, whose features another tool computed.
    are_files = (path.suffix.lower() in IMAGE_SUFFIXES for path in contents)
    if contents and not any(are_files) and {each.error for each in contents.values()} == {_MISSING}:
        message = (
            "the images are not files: checked as slides or tiles by name, for `histobench run --features`"
        )
        found += [Finding("warning", "missing file", data.name, message), *structure_findings(data)]
        return _sorted(found)
    bad = list(_image_findings(data, contents, "warning" if on_bad_image == "skip" else "error"))
    found += [*bad, *_mask_findings(data, contents)]
    if on_bad_image == "skip":
        data = drop_bad(data, Findings(tuple(bad)))
    found += structure_findings(data)
    found += _content_findings(data, contents)
    found += _near_findings(data, contents)
    found += _unusual_findings(data, contents)
    found += [Finding("warning", "sites", data.name, text) for text in site_warnings(data)]
    sizes = Counter(
        contents[image.path].size for _, image in _all(data) if contents[image.path].error is None
    )
    return _sorted(found, sizes)


def _sorted(found: Iterable[Finding], sizes: Mapping[tuple[int, int], int] | None = None) -> Findings:
    return Findings(tuple(sorted(found, key=lambda each: KINDS.index(each.kind))), dict(sizes or {}))


def structure_findings(dataset: RoiDataset) -> list[Finding]:
    """What can be found without opening an image: `run` looks for it, too."""
    parts = (_set_findings, _label_findings, _group_findings, _thin_findings, _patient_findings)
    return [finding for part in parts for finding in part(dataset)]


def _set_findings(dataset: RoiDataset) -> Iterable[Finding]:
    """Splits without images, a single class, classes with a single test image."""
    name, classes = dataset.name, dataset.classes
    if not any(dataset.splits.values()):
        yield Finding("error", "split", name, "there are no images")
    elif not dataset.splits.get("test"):
        yield Finding("error", "split", name, "there are no test images")
    elif not dataset.splits.get("train"):
        message = f"there are no training images; only {' and '.join(UNTRAINED)} can run"
        yield Finding("warning", "split", name, message)
    if dataset.target is not None:
        return
    if len(classes) == 1:
        sited = any(image.sites for _, image in _all(dataset)[:1])  # robustness needs no second class
        rest = "only Robustness can run" if sited else "two are needed"
        message = f"all images are of one class ({classes[0]}); {rest}"
        yield Finding("warning" if sited else "error", "empty class", name, message)
        return
    counts = Counter(labels_of(dataset.splits.get("test", ())).tolist())
    single = [classes[label] for label, count in sorted(counts.items()) if count == 1]
    if single:
        message = (
            f"{len(single)} of {len(classes)} classes have a single test image "
            f"({', '.join(single[:5])}{', ...' if len(single) > 5 else ''}), right or wrong as a whole; "
            "give a larger test share (`split` 0.5/0.5)"
        )
        yield Finding("warning", "small test set", name, message)


def copies_in(dataset: RoiDataset, copies: Sequence[Sequence[int]]) -> Iterator[str]:
    """What a run says of files with equal content, by their numbers: under two labels, twice in test."""
    every = _all(dataset) if copies else []
    same = [[every[row] for row in rows] for rows in copies]
    labels = [images for images in same if len({image.label for _, image in images}) > 1]
    if labels and dataset.target is None:
        names = " and ".join(image.name for _, image in labels[0][:2])
        what = "1 image has" if len(labels) == 1 else f"{len(labels)} images have"
        yield f"{what} two labels (such as {names}, the same file content)"
    extra = sum(sum(split == "test" for split, _ in images) - 1 for images in same if images[-1][0] == "test")
    if extra > 0:
        yield f"copies among the test images: {extra}, each counted once more; intervals are too narrow"


def _patient_findings(dataset: RoiDataset) -> Iterable[Finding]:
    """Patients that the names of files show, of images without groups."""
    images = _all(dataset)
    if any(image.group is not None for _, image in images):
        return
    names = [f"{image.path.parent.name}/{image.path.name}" for _, image in images]
    found = patients_in_names(names)
    if not found:
        return
    seen: dict[str, set[str]] = defaultdict(set)
    for patient, (split, _) in zip(found, images, strict=True):
        seen[patient].add(split)
    both = sum("test" in splits and len(splits) > 1 for splits in seen.values())
    leak = f", {both} of them in test and in another split" if both else ""
    message = (
        f"file names show {len(seen)} patients or slides (such as {found[0]}){leak}, and no groups "
        f"are known; give `group_regex` '{regex_for(names)}'"
    )
    yield Finding("warning", "groups", dataset.name, message)


def drop_bad(dataset: RoiDataset, findings: Findings) -> RoiDataset:
    """The dataset without the images that are missing or unreadable."""
    bad = {finding.image for finding in findings.bad_images}
    kept = {
        split: tuple(each for each in images if each not in bad) for split, images in dataset.splits.items()
    }
    return replace(dataset, splits=kept)


def _all(dataset: RoiDataset) -> list[tuple[str, RoiImage]]:
    return [(split, image) for split in SPLITS for image in dataset.splits.get(split, ())]


def _read_contents(
    dataset: RoiDataset, workers: int | None, on_progress: Callable[[int, int], None] | None
) -> dict[Path, _Content]:
    paths = list(dict.fromkeys(image.path for _, image in _all(dataset)))
    contents: dict[Path, _Content] = {}
    # Threads are enough: Pillow and hashlib release the interpreter lock while they work.
    pool = ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1))
    try:
        for path, content in zip(paths, pool.map(_content, paths), strict=True):
            contents[path] = content
            if on_progress is not None:
                on_progress(len(contents), len(paths))
    finally:
        # An interrupted check must not first read the remaining images.
        pool.shutdown(cancel_futures=True)
    return contents


def _content(path: Path) -> _Content:
    try:
        image = open_rgb(locate(path).read(), name=str(path))
    except FileNotFoundError:
        return _Content(error=_MISSING)
    except (OSError, HistobenchError) as error:
        return _Content(error=getattr(error, "strerror", None) or str(error).removeprefix(f"{path}: "))
    pixels = hashlib.blake2b(f"{image.width}x{image.height}:".encode() + image.tobytes(), digest_size=16)
    return _Content(pixels.digest(), image.size, None, thumbnail(image), str(image.info.get(NOTE, "")))


def _image_findings(dataset: RoiDataset, contents: Mapping[Path, _Content], level: str) -> Iterable[Finding]:
    for _, image in _all(dataset):
        place = "" if image.origin == str(image.path) else f"{image.path}: "
        if (error := contents[image.path].error) == _MISSING:
            yield Finding(level, "missing file", image.origin, f"{image.path} does not exist", image)
        elif error is not None:
            yield Finding(level, "unreadable image", image.origin, f"{place}{error}", image)


def _mask_findings(dataset: RoiDataset, contents: Mapping[Path, _Content]) -> Iterable[Finding]:
    """Masks that cannot be read, have unknown codes, or another size than their image."""
    for _, image in _all(dataset):
        if image.mask is None or dataset.target is None or contents[image.path].error is not None:
            continue
        try:
            height, width = read_mask(image.mask, dataset.target.codes).shape
            if (width, height) != contents[image.path].size:
                raise HistobenchError(f"{image.mask}: {width} x {height} pixels are not those of its image")
        except HistobenchError as error:
            yield Finding("error", "unreadable image", image.origin, str(error))


def _label_findings(dataset: RoiDataset) -> Iterable[Finding]:
    counts = Counter((split, image.label) for split, image in _all(dataset))
    present = [split for split in SPLITS if dataset.splits.get(split)]
    for label, name in enumerate(dataset.classes):
        lacking = [split for split in present if not counts[split, label]]
        if present and lacking == present:
            yield Finding("error", "empty class", dataset.name, f"class {name!r} (id {label}) has no images")
            continue
        for split in lacking:
            message = f"class {name!r} (id {label}) has no {split} images"
            unlearnt = split == "train" and bool(counts["test", label])
            if unlearnt:
                message += f", but {counts['test', label]} in test: no model can learn it"
            yield Finding("error" if unlearnt else "warning", "empty class", dataset.name, message)
    fractions = [name for name in dataset.classes if is_fraction(name)]
    if fractions:
        message = f"{', '.join(fractions[:5])}: labels that are not whole numbers are taken as class names"
        yield Finding("warning", "label", dataset.name, message)


def _group_findings(dataset: RoiDataset) -> Iterable[Finding]:
    groups: dict[str, dict[str, list[RoiImage]]] = defaultdict(lambda: defaultdict(list))
    for split, image in _all(dataset):
        if image.group is not None:
            groups[image.group][split].append(image)
    for group, members in groups.items():
        for one, two in combinations(members, 2):
            first, second = members[one][0], members[two][0]
            message = (
                f"group {group!r} is in {one} and in {two} ({second.origin}); "
                f"{len(members[one])} and {len(members[two])} images"
            )
            yield Finding(_level(one, two), "group in two splits", first.origin, message)
    if groups and not dataset.has_groups:
        without = [image for _, image in _all(dataset) if image.group is None]
        message = f"no group, as {len(without) - 1} other images" if len(without) > 1 else "no group"
        yield Finding("warning", "groups", without[0].origin, f"{message}; each counts as a group of its own")


def _thin_findings(dataset: RoiDataset) -> Iterable[Finding]:
    images = dataset.splits.get("test", ()) if dataset.target is None else ()
    found = single_group_classes(labels_of(images).tolist(), groups_of(images))
    if found:
        listed = ", ".join(f"{dataset.classes[label]} ({group})" for label, group, _ in found)
        what = "class has" if len(found) == 1 else "classes have"
        message = (
            f"{len(found)} {what} test images of one group only: {listed}; their numbers, and every mean "
            "over classes, rest on one patient or slide"
        )
        yield Finding("warning", "class of one group", dataset.name, message)


def _near_findings(dataset: RoiDataset, contents: Mapping[Path, _Content]) -> Iterable[Finding]:
    shown = [(split, image) for split, image in _all(dataset) if contents[image.path].error is None]
    known = [contents[image.path] for _, image in shown]
    pairs = near_duplicates(
        [content.thumb for content in known if content.thumb is not None],
        [split for split, _ in shown],
        [content.pixels for content in known],
    )
    for i, j in pairs:
        (one, first), (two, second) = shown[i], shown[j]
        message = (
            f"{first.name} in {one} looks like {second.name} in {two} ({second.origin}): "
            "saved again, resized or retouched?"
        )
        yield Finding("warning", "near-duplicate", first.origin, message)


def _unusual_findings(dataset: RoiDataset, contents: Mapping[Path, _Content]) -> Iterable[Finding]:
    odd = []
    for _, image in _all(dataset):
        content = contents[image.path]
        short, long = min(content.size), max(content.size)
        what = f"{image.name} is {content.size[0]} x {content.size[1]} pixels"
        if content.error is None and (short < _SHORTEST_SIDE or long > _LONGEST_STRIP * short):
            message = f"{what}: is this a tissue tile?"
            odd.append(Finding("warning", "unusual image", image.origin, message))
        elif short * long > _MOST_PIXELS:
            message = f"{what}: encoders see it reduced to some hundred pixels; cut it into tiles?"
            yield Finding("warning", "unusual image", image.origin, message)
        if content.note:
            yield Finding("warning", "unusual image", image.origin, f"{image.name}: {content.note}")
    if len(odd) > _LISTED:
        many = f"{len(odd)} of {len(_all(dataset))} images are very small or narrow strips; the first: "
        odd = [replace(odd[0], message=f"{many}{odd[0].message}")]
    yield from odd


def _content_findings(dataset: RoiDataset, contents: Mapping[Path, _Content]) -> Iterable[Finding]:
    same: dict[bytes, list[tuple[str, RoiImage]]] = defaultdict(list)
    for split, image in _all(dataset):
        if contents[image.path].error is None:
            same[contents[image.path].pixels].append((split, image))
    for members in same.values():
        yield from _copies(dataset, members)


def _copies(dataset: RoiDataset, members: list[tuple[str, RoiImage]]) -> Iterable[Finding]:
    """What to say about images with the same pixels: per pair of splits, and per split."""
    by_split: dict[str, list[RoiImage]] = defaultdict(list)
    for split, image in members:
        by_split[split].append(image)
    for one, two in combinations(by_split, 2):
        first, second = by_split[one][0], by_split[two][0]
        message = f"{first.name} in {one} is the same image as {second.name} in {two} ({second.origin})"
        yield Finding(_level(one, two), "image in two splits", first.origin, message)
    for split, images in by_split.items():
        for copy in images[1:]:
            message = f"{copy.name} is the same image as {images[0].name} in {split} ({images[0].origin})"
            yield Finding("warning", "double image", copy.origin, message)
    first = members[0][1]
    for _, image in members[1:]:
        if image.label != first.label:
            one, two = (dataset.classes[each.label] for each in (image, first))
            message = f"{image.name} is labeled {one}, but the same image is labeled {two} ({first.origin})"
            yield Finding("warning", "double image", image.origin, message)


def _level(one: str, two: str) -> str:
    # Only the test split is measured on; train and val are both seen while fitting.
    return "error" if "test" in (one, two) else "warning"
