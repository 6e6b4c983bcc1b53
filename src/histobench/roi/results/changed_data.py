"""Whether the results of a dataset are all of the same data: a folder outlives the correction of a label."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from histobench.roi.results.stored_run import StoredRun

#: Key of `additional_info` with the digests of the images and labels of each split, see `digest_of_data`.
DATA = "data"
_CALLED = {"train": "training", "val": "validation", "test": "test"}


def digest_of_data(names: Iterable[str], labels: Iterable[int], classes: Sequence[str]) -> str:
    """The same for the same images with the same classes, in whatever order.

    >>> digest_of_data(["a", "b"], [0, 1], ["x", "y"]) == digest_of_data(["b", "a"], [0, 1], ["y", "x"])
    True
    """
    pairs = (f"{name}\0{classes[label]}\n" for name, label in zip(names, labels, strict=True))
    return hashlib.sha256("".join(sorted(pairs)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def changes_told(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The runs, with a caveat on those of other images or labels than the latest of their dataset and seed.

    Another seed may have drawn another split; of runs that do not tell their data nothing is said.
    """
    latest: dict[tuple[str, int], StoredRun] = {}
    for run in runs:
        if run.identity.dataset and _data(run):
            key = run.identity.dataset, run.identity.seed
            latest[key] = max(latest.get(key, run), run, key=lambda r: (str(r.info.get("date")), str(r.path)))
    return [_told(run, latest.get((run.identity.dataset, run.identity.seed))) for run in runs]


def _told(run: StoredRun, latest: StoredRun | None) -> StoredRun:
    mine, theirs = _data(run), {} if latest is None else _data(latest)
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
