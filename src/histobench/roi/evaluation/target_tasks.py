"""Targets that are not one class per image: a probe on tiles and on patients, by the kind of the target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.data.targets import TargetColumns
from histobench.roi.evaluation.context import Context, TaskResult, TaskSkippedError
from histobench.roi.evaluation.patients import mean_features, owners_of
from histobench.roi.evaluation.probe_tasks import preset_probe
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.metrics.target_metrics import per_target, target_metrics, uno_weights
from histobench.roi.predictions import TargetPredictions
from histobench.roi.protocols.lab_recipes import elastic_net_cox, pca_ridge
from histobench.roi.protocols.target_probes import ProbeRows, cox, cumulative_link, ridge
from histobench.roi.task_catalogue import MULTILABEL, ORDINAL, SURVIVAL

TILES, PATIENTS = "tiles", "patients"


@dataclass(frozen=True)
class _Split:
    """One split as a probe sees it: rows of features with their target, and what each row is called."""

    rows: ProbeRows
    names: tuple[str, ...]
    groups: tuple[str, ...] | None
    n_tiles: int

    def labelled(self, features: FeatureSet, label: int) -> FeatureSet:
        """As features of two classes: whether the image has this label."""
        return replace(
            features,
            embeddings=self.rows.features,
            labels=torch.from_numpy(self.rows.truth[:, label].astype(np.int64)),
            img_names=self.names,
            groups=self.groups,
            metadata={**features.metadata, "classes": ["0", "1"]},
            sites={},
            target=None,
            places=None,
        )

    @classmethod
    def tiles(cls, features: FeatureSet, target: TargetColumns, *, by_group: bool) -> _Split:
        own = features.target
        if own is None or own.columns != target:
            raise HistobenchError(f"the features have no column {target.names[0]!r}")
        grouped = by_group and len(set(owners_of(features))) > 1 and any(features.groups or ())
        rows = ProbeRows(features.embeddings, own.values, features.groups if grouped else None)
        return cls(rows, features.img_names, features.groups, len(features))

    def patients(self, features: FeatureSet, target: TargetColumns) -> _Split | None:
        """A row of mean features for each patient; None where a patient has several values."""
        owners = owners_of(features)
        names = tuple(dict.fromkeys(owners))
        place = {name: number for number, name in enumerate(names)}
        patient_of = np.array([place[owner] for owner in owners], dtype=np.int64)
        truth = self.rows.truth[np.unique(patient_of, return_index=True)[1]]
        if (self.rows.truth != truth[patient_of]).any():
            return None
        rows = ProbeRows(mean_features(features.embeddings, patient_of), truth)
        return _Split(rows, names, names, len(features))

    def predictions(
        self, target: TargetColumns, columns: tuple[str, ...], predicted: NDArray[np.float64], **more: Any
    ) -> TargetPredictions:
        about = target.kind, target.names, self.rows.truth, columns, predicted, self.names
        return TargetPredictions(*about, groups=self.groups, **more)


def run_target(context: Context) -> Iterable[TaskResult]:
    """The probe of the target's kind on tiles, and on the mean features of patients where there are any."""
    request = context.request
    assert request.test.target is not None  # or the task would not apply
    target = request.test.target.columns
    by_group = request.options.choose_by == "group"
    parts = {"train": request.train, "val": request.val, "test": request.test}
    given = {name: part for name, part in parts.items() if part is not None}
    tiles = {name: _Split.tiles(part, target, by_group=by_group) for name, part in given.items()}
    if problem := target.problem(tiles["train"].rows.truth):
        raise HistobenchError(f"training set: {problem}")
    if target.kind == SURVIVAL and not tiles["test"].rows.truth[:, 1].any():
        event = target.names[1]
        raise HistobenchError(f"test set: {event} is 0 everywhere: no order of risks can be checked")
    patients = {name: tiles[name].patients(part, target) for name, part in given.items()}
    whole = {name: part for name, part in patients.items() if part is not None}
    if target.kind == SURVIVAL:
        if len(whole) < len(given):
            raise HistobenchError(
                f"a patient has different values of {' or '.join(target.names)}; give every patient one"
            )
        yield _result(context, target, whole, PATIENTS)
        return
    yield _result(context, target, tiles, TILES)
    if any(any(part.groups or ()) for part in given.values()) and len(whole) == len(given):
        yield _result(context, target, whole, PATIENTS)


def _result(context: Context, target: TargetColumns, splits: dict[str, _Split], setting: str) -> TaskResult:
    train, test, val = splits["train"], splits["test"], splits.get("val")
    if target.kind == MULTILABEL:
        return _labels_result(context, target, splits, setting)
    if len(train.rows.truth) < 2:
        raise TaskSkippedError(f"there is one training {setting.removesuffix('s')}; two are needed")
    is_survival = target.kind == SURVIVAL
    columns = ("risk",) if is_survival else target.names
    chosen_on = None if val is None else val.rows
    seed, device = context.request.seed, context.device
    if target.kind == ORDINAL:
        levels = np.unique(train.rows.truth)
        columns = tuple(f"{level:g}" for level in levels)
        found = cumulative_link(
            _placed(train.rows, levels),
            test.rows.features,
            n_levels=len(levels),
            val=None if chosen_on is None else _placed(chosen_on, levels),
            seed=seed,
            device=device,
        )
        _placed(test.rows, levels)  # or an error
    elif is_survival and context.preset.targets == "elastic-net":
        options = context.request.options
        how = {"alpha": options.cox_alpha, "l1_ratio": options.l1_ratio}
        found = elastic_net_cox(train.rows, test.rows.features, **how)
    elif context.preset.targets == "pca-ridge":
        found = pca_ridge(train.rows, test.rows.features)
    else:
        probe = cox if is_survival else ridge
        found = probe(train.rows, test.rows.features, val=chosen_on, seed=seed, device=device)
    chosen = found.info.get("alpha_chosen_on")
    info: dict[str, Any] = {
        **found.info,
        "unit": setting,
        "num_train": len(train.names),
        "num_test_tiles": test.n_tiles,
        "val_use": f"the penalty was chosen on {chosen}" if chosen else "the penalty is fixed",
    }
    weights = uno_weights(train.rows.truth, test.rows.truth) if is_survival else None
    predictions = test.predictions(target, columns, found.predicted, weights=weights, info=info)
    scores = target_metrics(predictions)
    each = {} if len(target.names) == 1 or is_survival else per_target(predictions)
    return TaskResult(predictions, scores, each, [], setting)


def _placed(rows: ProbeRows, levels: NDArray[np.float64]) -> ProbeRows:
    """The rows with the places of their levels among those of the training set."""
    unknown = np.setdiff1d(rows.truth, levels)
    if len(unknown):
        message = f"level {unknown[0]:g} is not in the training set; every level needs images there"
        raise HistobenchError(message)
    return replace(rows, truth=np.searchsorted(levels, rows.truth).astype(np.float64))


def _labels_result(
    context: Context, target: TargetColumns, splits: dict[str, _Split], setting: str
) -> TaskResult:
    """The probe of the preset for every label by itself."""
    request, test = context.request, splits["test"]
    said: list[NDArray[np.float64]] = []
    warnings: dict[str, None] = {}
    for label, name in enumerate(target.names):
        parts: Any = {split: rows.labelled(getattr(request, split), label) for split, rows in splits.items()}
        own = replace(context, request=replace(request, **parts), classes=("0", "1"))
        runs = preset_probe(own)
        said.append(np.mean([run.probabilities[:, 1] for run in runs], axis=0))
        messages = [*own.choice_warnings, *(text for run in runs for text in run.info.get("warnings", ()))]
        warnings |= dict.fromkeys(f"{name}: {text}" for text in messages)
    info = {"unit": setting, "num_train": len(splits["train"].names), "num_test_tiles": test.n_tiles}
    names, predicted = target.names, np.stack(said, axis=1)
    predictions = test.predictions(target, names, predicted, info=info, classes=names)
    found = target_metrics(predictions)
    keys = ("auroc", "auprc")
    per_class = {name: {key: found[f"{key}@{label}"] for key in keys} for label, name in enumerate(names)}
    scores = {name: score for name, score in found.items() if "@" not in name}
    return TaskResult(predictions, scores, per_class, [], setting, warnings=tuple(warnings))
