"""The task Patient: one prediction per patient or slide, by votes, by pooled features and by attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.data.class_map import classes_of, label_reader, one_label_each
from histobench.roi.data.sites import GROUP_LABEL
from histobench.roi.evaluation.context import Context, TaskResult, TaskSkippedError
from histobench.roi.evaluation.probe_tasks import preset_probe, result_of
from histobench.roi.features.feature_file import FeatureSet, check_pair
from histobench.roi.predictions import TileAttention
from histobench.roi.protocols.attention_mil import RUNS, Bags, attention_mil
from histobench.roi.protocols.outcome import Outcome

VOTES, MEAN, ABMIL = "votes", "mean", "abmil"


@dataclass(frozen=True)
class _Patients:
    """The patients of one split: a row of mean features each, and the patient of every tile."""

    tiles: FeatureSet
    pooled: FeatureSet
    patient_of: NDArray[np.int64]  # [tiles]

    @classmethod
    def of(cls, tiles: FeatureSet, classes: tuple[str, ...]) -> _Patients:
        owners = owners_of(tiles)
        found = one_label_each(owners, tiles.labels.tolist(), classes)
        place = {name: number for number, name in enumerate(found)}
        patient_of = np.array([place[owner] for owner in owners], dtype=np.int64)
        pooled = replace(
            tiles,
            embeddings=mean_features(tiles.embeddings, patient_of),
            labels=torch.tensor(list(found.values()), dtype=torch.int64),
            img_names=tuple(place),
            groups=tuple(place),
            sites={},
            target=None,
            places=None,
        )
        return cls(tiles, pooled, patient_of)

    @property
    def bags(self) -> Bags:
        return Bags(self.tiles.embeddings, self.patient_of, self.pooled.labels.numpy())

    def votes(self, outcome: Outcome) -> Outcome:
        sums = np.zeros((len(self.pooled), outcome.probabilities.shape[1]))
        np.add.at(sums, self.patient_of, outcome.probabilities)
        mean = sums / np.bincount(self.patient_of)[:, None]
        return Outcome(mean, mean.argmax(1), outcome.info)


def run_patient(context: Context) -> Iterable[TaskResult]:
    """Patients by the votes of their tiles, by the mean of their features, and by attention over them."""
    request = context.request
    if not any(any(part.groups or ()) for part in request.features):
        raise TaskSkippedError(
            "the images have no groups (patients or slides); name them with `group_column` or `group_regex`"
        )
    tiles = _labelled_by_patient(context)
    train, test = (_Patients.of(part, tiles.classes) for part in (tiles.request.train, tiles.request.test))
    val = None if tiles.request.val is None else _Patients.of(tiles.request.val, tiles.classes)
    if val is None and np.bincount(train.pooled.labels.numpy()).max() < 2:
        raise TaskSkippedError(
            "every class has one training patient, so none can be held out; give a validation set"
        )
    pooled_val = None if val is None else val.pooled
    pooled = replace(tiles.request, train=train.pooled, val=pooled_val, test=test.pooled)
    patients = replace(tiles, request=pooled)
    counted = {"unit": "patients", "num_train_patients": len(train.pooled), "num_test_tiles": len(test.tiles)}
    yield _result(patients, [test.votes(run) for run in preset_probe(tiles)], VOTES, counted, tiles)
    yield _result(patients, preset_probe(patients), MEAN, counted, tiles)
    chosen_on = None if val is None else val.bags
    found = attention_mil(train.bags, test.bags, val=chosen_on, seed=request.seed, **tiles.common)
    held_out = "the validation set" if val else "a fifth of the training patients, another per run"
    counted |= {"num_runs": RUNS, "stopped_by": held_out}
    result = _result(patients, found.runs, ABMIL, counted, tiles)
    attention = TileAttention(test.tiles.img_names, test.pooled.img_names, test.patient_of, found.attention)
    places = test.tiles.places
    if places is not None and np.isfinite(places.coords).all(axis=1).any():
        slides, slide_of = places.numbered(owners_of(test.tiles))
        attention = replace(attention, coords=places.coords, slides=slides, slide_of=slide_of)
    yield replace(result, attention=attention)


def _result(
    patients: Context, runs: list[Outcome], setting: str, info: dict[str, object], tiles: Context
) -> TaskResult:
    """One method's predictions of the patients; what is odd about the data is reported for the tiles."""
    runs = [replace(run, info=run.info | info) for run in runs]
    warnings = {VOTES: tiles.choice_warnings, MEAN: patients.choice_warnings, ABMIL: ()}[setting]
    result = result_of(patients, runs, setting=setting, warnings=warnings, info=info)
    return replace(result, caveats=tiles.caveats)


def _labelled_by_patient(context: Context) -> Context:
    """The context with the labels of the patients on their tiles, where a column gives them."""
    request = context.request
    named = [part for part in request.features if GROUP_LABEL in part.sites]
    if not named:
        return context
    if len(named) < len(request.features):
        raise HistobenchError(f"the column {GROUP_LABEL!r} is in some of the splits only; it must be in all")
    texts = [text for part in named for text in part.sites[GROUP_LABEL]]
    if missing := texts.count(""):
        raise HistobenchError(f"{missing:,} images have no {GROUP_LABEL}; every image needs its patient's")
    owners = [owner for part in named for owner in owners_of(part)]
    classes = classes_of(list(dict(zip(owners, texts, strict=True)).values()), column=GROUP_LABEL)
    read = label_reader(texts, classes)

    def labelled(part: FeatureSet) -> FeatureSet:
        labels = torch.tensor([read(text) for text in part.sites[GROUP_LABEL]], dtype=torch.int64)
        metadata = {**part.metadata, "classes": list(classes)}
        others = {name: values for name, values in part.sites.items() if name != GROUP_LABEL}
        return replace(part, labels=labels, metadata=metadata, sites=others)

    train, test = labelled(request.train), labelled(request.test)
    check_pair(train, test)
    val = None if request.val is None else labelled(request.val)
    return replace(context, request=replace(request, train=train, val=val, test=test), classes=classes)


def mean_features(embeddings: Tensor, patient_of: NDArray[np.int64]) -> Tensor:
    """The mean features of every patient [patients, d] from tiles [n, d] and the patient of each."""
    sizes = torch.from_numpy(np.bincount(patient_of)).double()
    sums = torch.zeros(len(sizes), embeddings.shape[1], dtype=torch.float64)
    for rows in torch.arange(len(embeddings)).split(65_536):
        sums.index_add_(0, torch.from_numpy(patient_of)[rows], embeddings[rows].double())
    return (sums / sizes[:, None]).float()


def owners_of(tiles: FeatureSet) -> list[str]:
    """The patient of every tile; one without a group is a patient of its own, as in every statistic."""
    groups = tiles.groups or ("",) * len(tiles)
    return [group or name for group, name in zip(groups, tiles.img_names, strict=True)]
