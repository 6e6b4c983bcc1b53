"""Whether the results of a dataset are all of the same data: a folder outlives the correction of a label."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from histobench.roi.results.stored_run import StoredRun

#: Key of `additional_info` with what `told_of_data` says of the images and labels of each split.
DATA = "data"
_CALLED = {"train": "training", "val": "validation", "test": "test"}


def digest_of_data(
    names: Iterable[str], labels: Iterable[int], classes: Sequence[str] | Mapping[int, str]
) -> str:
    """The same for the same images with the same classes, in whatever order."""
    pairs = (f"{name}\0{classes[label]}\n" for name, label in zip(names, labels, strict=True))
    return hashlib.sha256("".join(sorted(pairs)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def told_of_data(
    splits: Mapping[str, tuple[Sequence[str], Sequence[int]]], classes: Sequence[str], *, named_here: bool
) -> dict[str, Any]:
    """What tells the data of a run from others: per split the digest of its image names and labels.

    `division` is the same whatever the classes are called; `named_here`: no other tool has named the images.
    """

    def division(names: Sequence[str], labels: Sequence[int]) -> str:
        first: dict[int, str] = {}  # a class is known by the first of its images
        for name, label in sorted(zip(names, labels, strict=True)):
            first.setdefault(label, name)
        return digest_of_data(names, labels, first)

    return {
        **{split: digest_of_data(*data, classes) for split, data in splits.items()},
        "division": {split: division(*data) for split, data in splits.items()},
        "classes": sorted(classes),
        "named_here": named_here,
    }


def changes_told(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The runs, with a caveat on those of other images or labels than the latest of their dataset and seed.

    Other tools may call the same images otherwise: what they made is compared with the same encoder alone.
    """
    latest: dict[tuple[str, int, str, str], StoredRun] = {}
    for run in runs:
        if run.identity.dataset and _data(run):
            key = _comparable(run)
            latest[key] = max(latest.get(key, run), run, key=lambda r: (str(r.info.get("date")), str(r.path)))
    return [_told(run, latest.get(_comparable(run))) for run in runs]


def _comparable(run: StoredRun) -> tuple[str, int, str, str]:
    named_here = _data(run).get("named_here", True)
    return run.identity.dataset, run.identity.seed, "" if named_here else run.identity.encoder, run.target


def _told(run: StoredRun, latest: StoredRun | None) -> StoredRun:
    mine, theirs = _data(run), {} if latest is None else _data(latest)
    if mine.get("classes") != theirs.get("classes"):  # renamed: whether the same images are of one class
        mine, theirs = mine.get("division", {}), theirs.get("division", {})
    shared = [part for part in _CALLED if part in mine and part in theirs]
    other = [_CALLED[part] for part in shared if mine[part] != theirs[part]]
    if latest is None or not other:
        return run
    caveat = (
        f"made with other {' and '.join(other)} images or labels than the latest results on "
        f"{run.identity.dataset} ({latest.task} by {latest.identity.encoder}, {latest.info.get('date')}): "
        "run it again"
    )
    return replace(run, info={**run.info, "caveats": [*run.caveats, caveat]})


def _data(run: StoredRun) -> dict[str, Any]:
    known = run.info.get(DATA)
    return known if isinstance(known, dict) else {}
