"""The same evaluation on many splits of the same features: nothing is extracted again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace

from histobench.core.errors import HistobenchError
from histobench.core.files import write_text
from histobench.core.text import csv_text
from histobench.roi.data.cross_validation import Split, given_splits, splits_of
from histobench.roi.data.sites import FOLDS
from histobench.roi.evaluation.context import merged, rows_of
from histobench.roi.evaluation.evaluation_request import EvaluationRequest, SplitOfMany
from histobench.roi.evaluation.evaluation_run import EvaluationOutcome, evaluate
from histobench.roi.features.feature_file import FeatureSet, check_pair, fingerprint_of
from histobench.roi.options import GIVEN, LEAVE_ONE_GROUP_OUT, Scheme
from histobench.roi.results.layout import SPLITS

#: Which fold every image is in, one column per repeat.
ASSIGNMENT = "folds.csv"


def evaluate_over_splits(
    request: EvaluationRequest,
    scheme: Scheme,
    *,
    resume: bool = False,
    on_split: Callable[[Split, int], None] = lambda split, count: None,
) -> list[EvaluationOutcome]:
    """Train and test on every split of all features of the request, each in a results folder of its own.

    The folds depend on names, labels, groups and the seed of the request: encoders share them.
    """
    pool = everything(request)
    if scheme.name == GIVEN:
        splits = given_splits(pool.sites[FOLDS])
    else:
        splits = splits_of(pool.labels.numpy(), pool.groups, pool.img_names, scheme, seed=request.seed)
    # Folds of one test sample each are predicted one by one and compared together.
    single = len(splits) > 1 and all(len(split.test) == 1 for split in splits)
    name = LEAVE_ONE_GROUP_OUT if single else scheme.name
    folder = request.results_dir / SPLITS / name
    write_text(folder / ASSIGNMENT, assignment(pool, splits))
    outcomes = []
    for split in splits:
        on_split(split, len(splits))
        images = json.dumps(sorted(pool.img_names[row] for row in split.test))
        digest = hashlib.sha256(images.encode()).hexdigest()[:16]
        part = replace(
            request,
            train=rows_of(pool, split.train),
            test=rows_of(pool, split.test),
            val=rows_of(pool, split.val) if len(split.val) else None,
            results_dir=folder / split.name,
            split=SplitOfMany(name, split.repeat, split.fold, len(splits), digest),
        )
        outcomes.append(evaluate(part, resume=resume))
    return outcomes


def everything(request: EvaluationRequest) -> FeatureSet:
    for other in (request.val, request.test):
        if other is not None:
            check_pair(request.train, other)
    pool = merged(merged(request.train, request.val), request.test)
    if (request.train.groups is None) != (request.test.groups is None):
        raise HistobenchError(
            "groups (patients, slides) are known for only some of the feature files: a split could divide "
            "a group; extract all of them from data with groups"
        )
    parts = (part for part in (request.train, request.val, request.test) if part is not None)
    return replace(pool, metadata={**pool.metadata, "fingerprint": fingerprint_of(*parts)})


def assignment(pool: FeatureSet, splits: list[Split]) -> str:
    """The fold of every image in every repeat, as CSV."""
    repeats = max(split.repeat for split in splits)
    groups = pool.groups or ("",) * len(pool)
    rows = [
        [name, label, group, *[0] * repeats]
        for name, label, group in zip(pool.img_names, pool.labels.tolist(), groups, strict=True)
    ]
    for split in splits:
        for row in split.test:
            rows[row][2 + split.repeat] = split.fold
    return csv_text(["img_name", "label", "group", *(f"repeat_{k}" for k in range(1, repeats + 1))], rows)
