"""Splitting images into train, val and test so that no patient or slide is in two of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.data.image_table import ImageTable, RoiImage, groups_of, labels_of
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset
from histobench.roi.data.sites import found_in_path

#: Other words for the splits, in a `split` column and as folder names.
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
#: Up to this many possible assignments all of them are tried, which covers the usual handful of patients.
_EXHAUSTIVE = 20_000
#: Swapping every pair of groups is tried up to this many groups; with more, single moves are fine enough.
_SWAPS = 300

#: Every split has groups of every class, up to so many: intervals over groups need them in the test set.
_WANTED_GROUPS = 3

Counts = NDArray[np.float64]  # images of each group by class [g, c]


def fractions_text(split: Any) -> str | None:
    """Shares of train/val/test as text."""
    return None if split is None else "/".join(map(str, np.atleast_1d(split)))


def parse_fractions(text: str) -> tuple[float, float, float]:
    """The shares of train, val and test from "0.7/0.1/0.2", "0.8/0.2" (train/test) or "70/10/20"."""
    try:
        numbers = [float(part) for part in text.split("/")]
    except ValueError:
        numbers = []
    if len(numbers) == 2:
        numbers.insert(1, 0.0)
    if len(numbers) != 3 or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise HistobenchError(f"`split` {text!r}: expected shares of train/val/test such as 0.7/0.1/0.2")
    total = sum(numbers)
    if not any(math.isclose(total, whole, rel_tol=1e-6) for whole in (1, 100)):
        raise HistobenchError(f"`split` {text!r}: the shares add up to {total:g}, not to 1")
    train, val, test = (number / round(total) for number in numbers)
    return train, val, test


def group_of(path: str, regex: str) -> str | None:
    """The group that `regex` finds in a path: group `group`, else its first group, else the whole match."""
    match = found_in_path(path, regex, option="group_regex")
    return match and match["group" if "group" in match.groupdict() else min(match.re.groups, 1)]


def check_learnt(dataset: RoiDataset) -> None:
    """Raise when a class has test images and no training images, where there are training images at all."""
    learnt, asked = (set(labels_of(dataset.splits.get(split, ())).tolist()) for split in ("train", "test"))
    unlearnt = [dataset.classes[label] for label in sorted(asked - learnt)]
    if learnt and unlearnt:
        raise HistobenchError(
            f"{dataset.name}: there are test images but no training images of {', '.join(unlearnt)}: every "
            "class of the test set needs some; move images in the table, or leave the class out"
        )


def split_images(
    images: Sequence[RoiImage], fractions: tuple[float, float, float], *, seed: int = 0
) -> Mapping[str, Sequence[RoiImage]]:
    """Assign whole groups to splits so that every class has about its share; the order does not matter."""
    sorted_by = [(image.name, str(image.path), image.label) for image in images]
    order = np.array(sorted(range(len(images)), key=sorted_by.__getitem__), dtype=np.int64)
    groups = groups_of(images)
    keys = [
        f"g{groups[row]}" if groups[row] is not None else f"i{place:09d}"
        for place, row in enumerate(order.tolist())
    ]
    unit_of, counts = units(labels_of(images)[order], keys)
    assigned = assign_groups(counts, fractions, seed=seed)[unit_of]
    parts = {word: order[assigned == place] for place, word in enumerate(SPLITS)}
    take = images.take if isinstance(images, ImageTable) else lambda rows: tuple(images[row] for row in rows)
    return {word: take(rows) for word, rows in parts.items() if len(rows)}


def split_words(dataset: RoiDataset) -> str:
    """One line on how groups were divided; empty where only some images have groups."""
    groups = {
        split: {(image.group, image.label) for image in images if image.group is not None}
        for split, images in dataset.splits.items()
    }
    if not any(groups.values()):
        return "images were split at random, as no patients or slides are known"
    if not all(groups.values()):
        return ""
    sizes = {split: len({group for group, _ in found}) for split, found in groups.items()}
    few = []
    for label, name in enumerate(dataset.classes):
        counts = [sum(found == label for _, found in members) for members in groups.values()]
        if min(counts) <= _WANTED_GROUPS:
            few.append(f"{name} {'/'.join(map(str, counts))}")
    rare = f"; classes with few: {', '.join(few)}" if few else ""
    return f"{'/'.join(sizes)} split by whole groups: {'/'.join(map(str, sizes.values()))} groups{rare}"


def units(labels: Sequence[int] | NDArray[np.int64], keys: Sequence[str]) -> tuple[NDArray[np.int64], Counts]:
    """The unit of each image, which all images of one key make up; the images of each unit by class."""
    unit_of = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    class_of = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    counts = np.zeros((int(unit_of.max(initial=-1)) + 1, int(class_of.max(initial=-1)) + 1))
    np.add.at(counts, (unit_of, class_of), 1)
    return unit_of, counts


def assign_groups(counts: Counts, fractions: Sequence[float], *, seed: int) -> NDArray[np.int64]:
    """For every group (row of class counts) the index of its split: the least `_cost` that is found."""
    if not len(counts):
        return np.zeros(0, dtype=np.int64)
    order = np.random.default_rng(seed).permutation(len(counts))
    shuffled, shares = counts[order], np.asarray(fractions, dtype=np.float64)
    open_splits = np.flatnonzero(shares > 0)
    if (shuffled.sum(axis=1) == 1).all():
        found = _by_class(shuffled, shares)
    elif len(open_splits) ** len(counts) <= _EXHAUSTIVE:
        found = _exhaustive(_with_groups(shuffled), shares, open_splits)
    else:
        found = _improved(_with_groups(shuffled), shares, open_splits, _greedy(shuffled, shares, open_splits))
    assignment = np.empty(len(counts), dtype=np.int64)
    assignment[order] = found
    return assignment


def imbalance(table: Counts, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far splits are from their shares: [..., s, c] image counts to one number each; smaller is better.

    The squared error of every class's share of every split, plus one for a class that a split lacks.
    """
    totals = table.sum(axis=-2, keepdims=True)
    error = table / totals - shares[:, None]
    lacking = (table == 0) & (shares[:, None] > 0)
    return np.asarray((error**2).sum(axis=(-1, -2)) + lacking.sum(axis=(-1, -2)))


def _with_groups(counts: Counts) -> Counts:
    """The images of each group by class, and beside them whether the class occurs in it [g, 2c]."""
    return np.concatenate([counts, counts > 0], axis=1)


def _cost(table: Counts, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """`imbalance` of sums of `_with_groups` [..., s, 2c], plus one for every missing group of a class."""
    images, groups = np.split(table, 2, axis=-1)
    wanted = np.minimum(groups.sum(axis=-2, keepdims=True) // (shares > 0).sum(), _WANTED_GROUPS)
    lacking = np.maximum(wanted - np.maximum(groups, 1), 0) * (shares[:, None] > 0)
    return np.asarray(imbalance(images, shares) + lacking.sum(axis=(-1, -2)))


def _by_class(counts: Counts, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Single images: cut every class at its shares, rounded so that the sizes add up."""
    assignment = np.empty(len(counts), dtype=np.int64)
    for label in range(counts.shape[1]):
        members = np.flatnonzero(counts[:, label])
        assignment[members] = np.repeat(np.arange(len(shares)), _rounded(shares * len(members)))
    return assignment


def _rounded(sizes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers of the same sum, by largest remainder; a wanted part stays empty only if it must."""
    whole = np.floor(sizes + 1e-9).astype(np.int64)
    remainder = sizes - whole
    total = round(float(sizes.sum()))
    for index in np.argsort(-remainder, kind="stable")[: total - int(whole.sum())]:
        whole[index] += 1
    for index in np.flatnonzero((sizes > 0) & (whole == 0)):
        if whole.max() > 1:
            whole[whole.argmax()] -= 1
            whole[index] += 1
    return whole


def _table(counts: Counts, assignment: NDArray[np.int64], splits: int) -> Counts:
    table = np.zeros((splits, counts.shape[1]))
    np.add.at(table, assignment, counts)
    return table


def _exhaustive(
    counts: Counts, shares: NDArray[np.float64], open_splits: NDArray[np.int64]
) -> NDArray[np.int64]:
    assignments = np.array(list(product(open_splits, repeat=len(counts))), dtype=np.int64)  # [k, g]
    member = assignments[:, None, :] == np.arange(len(shares))[:, None]  # [k, s, g]
    costs = _cost(member.astype(np.float64) @ counts, shares)
    # Rounding must not decide between equals: take the first of those within it.
    return assignments[np.flatnonzero(costs <= costs.min() + 1e-9)[0]]


def _greedy(counts: Counts, shares: NDArray[np.float64], open_splits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Largest groups first, each to the split that it brings nearest to its shares."""
    normal = counts / counts.sum(axis=0)
    lacking = np.repeat(shares[open_splits][:, None], counts.shape[1], axis=1)  # still wanted [s, c]
    assignment = np.empty(len(counts), dtype=np.int64)
    for group in np.argsort(-counts.sum(axis=1), kind="stable"):
        gain = (lacking**2).sum(axis=1) - ((lacking - normal[group]) ** 2).sum(axis=1)
        best = int(np.argmax(gain))
        lacking[best] -= normal[group]
        assignment[group] = open_splits[best]
    return assignment


def _improved(
    counts: Counts, shares: NDArray[np.float64], open_splits: NDArray[np.int64], assignment: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Move single groups, then swap pairs, as long as that lowers the imbalance."""
    assignment = assignment.copy()
    cost = float(_cost(_table(counts, assignment, len(shares)), shares))
    while True:
        better = _best_move(counts, shares, open_splits, assignment)
        if better[0] >= cost - 1e-12 and len(counts) <= _SWAPS:
            better = _best_swap(counts, shares, assignment)
        if better[0] >= cost - 1e-12:
            return assignment
        cost, assignment = better


def _best_move(
    counts: Counts, shares: NDArray[np.float64], open_splits: NDArray[np.int64], assignment: NDArray[np.int64]
) -> tuple[float, NDArray[np.int64]]:
    without = np.repeat(_table(counts, assignment, len(shares))[None], len(counts), axis=0)  # [g, s, c]
    without[np.arange(len(counts)), assignment] -= counts
    costs = np.full((len(counts), len(shares)), np.inf)
    for split in open_splits:
        moved = without.copy()
        moved[:, split] += counts
        costs[:, split] = _cost(moved, shares)
    group, split = np.unravel_index(int(np.argmin(costs)), costs.shape)
    changed = assignment.copy()
    changed[group] = split
    return float(costs[group, split]), changed


def _best_swap(
    counts: Counts, shares: NDArray[np.float64], assignment: NDArray[np.int64]
) -> tuple[float, NDArray[np.int64]]:
    table = _table(counts, assignment, len(shares))
    first, second = np.triu_indices(len(counts), k=1)
    apart = assignment[first] != assignment[second]
    first, second = first[apart], second[apart]
    if not len(first):
        return np.inf, assignment
    tables = np.repeat(table[None], len(first), axis=0)
    rows, change = np.arange(len(first)), counts[second] - counts[first]
    tables[rows, assignment[first]] += change
    tables[rows, assignment[second]] -= change
    costs = _cost(tables, shares)
    best = int(np.argmin(costs))
    changed = assignment.copy()
    changed[[first[best], second[best]]] = changed[[second[best], first[best]]]
    return float(costs[best]), changed


#: What patients, cases and slides are called in names of files, in the order of trust: a patient or case; an
#: accession number or another beginning of letters and a number that many images share; a slide.
_PATIENTS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:^|[_/ .-])((?:pat(?:ient)?|case)[ _-]?\d+|TCGA-\w\w-\w{4})(?=[_./ #()-])",
        *(
            r"/(?!(?:tiles?|im(?:g|age)|roi|patch|frame|crop|level|mag|slide)[ _-]?\d)"
            rf"([A-Z]{{1,12}}-?\d{{2,}}{more})(?=[_ #()-])"
            for more in (r"-\d{3,}", "")
        ),
        r"(?:^|[_/ .-])((?:slide|pt|p|s)[_ -]?\d+)(?=[_./ #()-])",
    )
)


def patients_in_names(names: Sequence[str]) -> list[str]:
    """The patient, case or slide in each name (folder/file); empty unless every name shows one."""
    for pattern in _PATIENTS:
        found = [match[1] for match in map(pattern.search, names) if match is not None]
        is_named = pattern in (_PATIENTS[0], _PATIENTS[-1])
        most = len(names) - 1 if is_named else len(names) // 3
        if len(found) == len(names) and 1 < len(set(found)) <= most:
            return found
    return []


def regex_for(names: Sequence[str]) -> str:
    """Write the expression that finds those patients; empty where there are none."""
    found = patients_in_names(names)
    if not found:
        return ""
    starts = all(name.rpartition("/")[2].startswith(one) for name, one in zip(names, found, strict=True))
    shapes = {
        r"TCGA-\w\w-\w{4}" if name.upper().startswith("TCGA") else re.sub(r"\d+", r"\\d+", name)
        for name in found
    }
    if len(shapes) > 3:
        shapes = {re.sub(r"(?<!\\)[A-Za-z]+", "[A-Za-z]+", shape) for shape in shapes}
    return f"{'^' * starts}({'|'.join(sorted(shapes))})"
