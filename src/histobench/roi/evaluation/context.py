"""What every task of one evaluation works with, and the caveats of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.records import options_of
from histobench.roi.evaluation.caveats import bad_image_caveats, caveats, leaks, origin_caveats, site_caveats
from histobench.roi.evaluation.evaluation_request import EvaluationRequest, task_digest
from histobench.roi.features.feature_file import FeatureSet, fingerprint_of, text_columns
from histobench.roi.features.fingerprint import versions
from histobench.roi.metrics.classification import Score, evaluate_predictions
from histobench.roi.options import Options
from histobench.roi.predictions import Predictions, TargetPredictions, TileAttention
from histobench.roi.presets import Preset, get_preset
from histobench.roi.protocols.linear_probe import held_out
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.results.changed_data import DATA, told_of_data
from histobench.roi.results.episode_predictions import EpisodePredictions

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Choosing:
    """Groups that stay together while something is chosen; None: images are held out one by one."""

    groups: tuple[str, ...] | None
    warning: str = ""

    @property
    def chosen_by(self) -> str:
        return "image" if self.groups is None else "group"


def choosing(
    labels: Sequence[int], groups: tuple[str, ...] | None, choose_by: str, classes: Sequence[str]
) -> Choosing:
    """Whole groups where the data names them, unless `choose_by` is "image" or groups cannot be divided.

    With images of one patient in both parts, what is chosen would fit the patients at hand only.
    """
    if choose_by == "image" or groups is None or not any(groups):
        return Choosing(None)
    members: dict[int, set[str | int]] = {}
    for row, (label, group) in enumerate(zip(labels, groups, strict=True)):
        members.setdefault(label, set()).add(group or row)
    single = [label for label in sorted(members) if len(members[label]) == 1]
    if len(single) == len(members):
        return Choosing(
            None,
            "hyper-parameters were chosen by images: every class has the training images of one group only, "
            "so that no group can be held out",
        )
    if not single:
        return Choosing(groups)
    names = ", ".join(classes[label] for label in single)
    return Choosing(
        groups,
        f"{'class' if len(single) == 1 else 'classes'} {names}: the training images come from one group, "
        "which cannot be both trained on and held out; hyper-parameters were chosen without it",
    )


class TaskSkippedError(Exception):
    """A task cannot be run on these features; the others can."""


@dataclass(frozen=True)
class Context:
    """The request, its classes and the device."""

    request: EvaluationRequest
    classes: tuple[str, ...]
    device: str

    @property
    def preset(self) -> Preset:
        return get_preset(self.request.preset)

    @cached_property
    def train(self) -> FeatureSet:
        """The training features; under `uni` the validation features are part of them."""
        return merged(self.request.train, self.request.val if self.val_joins_train else None)

    @property
    def data(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.train.embeddings, self.train.labels, self.request.test.embeddings

    @property
    def data_to_choose(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The same with features and labels to choose by before those of the test images."""
        train, val = self.train_and_val
        return train.embeddings, train.labels, val.embeddings, val.labels, self.request.test.embeddings

    @property
    def common(self) -> dict[str, Any]:
        return {"n_classes": len(self.classes), "device": self.device}

    @property
    def val_joins_train(self) -> bool:
        return self.request.val is not None and self.preset.validation == "joined"

    @cached_property
    def train_and_val(self) -> tuple[FeatureSet, FeatureSet]:
        train = self.request.train
        if self.request.val is not None:
            return train, self.request.val
        fit, rest = self.divided()
        return rows_of(train, fit), rows_of(train, rest)

    def divided(self, *, chooses: bool = True) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of the training set to train on and, about a fifth, to choose by."""
        train = self.request.train
        fit, rest = held_out(train.labels.numpy(), self.choosing(train).groups, seed=self.request.seed)
        if chooses and not len(rest):
            raise TaskSkippedError(
                "hyper-parameters are chosen on held-out images, but every class has one training image; "
                "give a validation set"
            )
        return fit, rest

    def choosing(self, train: FeatureSet) -> Choosing:
        """What is held out of these training features where something is chosen."""
        return choosing(train.labels.tolist(), train.groups, self.request.options.choose_by, self.classes)

    @cached_property
    def choices(self) -> Choosing | None:
        """What is held out of the training set under this preset; None where nothing is chosen on it."""
        if self.request.val is not None or not self.preset.chooses or not len(self.request.train):
            return None
        return self.choosing(self.request.train)

    @property
    def choice_warnings(self) -> tuple[str, ...]:
        return (self.choices.warning,) if self.choices is not None and self.choices.warning else ()

    def digest(self, task: str) -> str:
        """The name of all that the results of a task depend on."""
        return task_digest(self.request, task, fingerprint_of(*self.request.features))

    @property
    def _given(self) -> dict[str, FeatureSet]:
        parts = {"train": self.request.train, "val": self.request.val, "test": self.request.test}
        return {name: part for name, part in parts.items() if part is not None and len(part)}

    @cached_property
    def leaks(self) -> tuple[str, ...]:
        """What the test set shares with the other splits, in words."""
        others = {"training": self._given.get("train"), "validation": self._given.get("val")}
        return leaks(self.request.test, {name: part for name, part in others.items() if part is not None})

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """What is odd about the data and holds for every task's numbers."""
        return (
            *origin_caveats(self.request.test),
            *bad_image_caveats(self.request.features),
            *self.leaks,
            *site_caveats(self.request.features),
            *caveats(self.request.test, self.classes),
        )

    @cached_property
    def _data(self) -> dict[str, Any]:
        """What tells these images and labels from others under the same name."""
        return told_of_data(
            {name: (part.img_names, part.labels.tolist()) for name, part in self._given.items()},
            self.classes,
            named_here=all(part.metadata.get("fingerprint") for part in self._given.values()),
        )

    @cached_property
    def _versions(self) -> dict[str, str]:
        """Of what computes; to look them up takes as long as a small task."""
        return versions("scipy", "scikit-learn")

    @property
    def info(self) -> dict[str, Any]:
        """What is said about the data in every results file."""
        info: dict[str, Any] = {
            DATA: self._data,
            "num_train": len(self.train),
            "train_features": _path(self.request.train),
            "test_features": _path(self.request.test),
            "device": self.device,
            "versions": self._versions,
        }
        # For the command that repeats the run, and for the words about it in a paper.
        if options := changed_options(self.request.options):
            info["options"] = options
        if any(self.train.groups or ()):
            info["num_train_groups"] = len(set(self.train.groups or ()) - {""})
        if made := self.request.test.metadata.get("provenance"):
            info["provenance"] = str(made)
        if self.request.split is not None:
            sizes = {"num_train": len(self.train), "num_test": len(self.request.test)}
            info["split"] = asdict(self.request.split) | sizes
        if self.request.val is not None:
            info["num_val"] = len(self.request.val)
            info["val_features"] = _path(self.request.val)
            joined = "joined to the training data" if self.val_joins_train else "not used"
            info["val_use"] = "used to choose hyper-parameters" if self.preset.chooses else joined
        elif self.choices is not None:
            info["chosen_by"] = self.choices.chosen_by
            whole = ", whole groups," if self.choices.groups is not None else ""
            info["val_use"] = (
                f"a fifth of the training set{whole} was held out as there is no validation set"
                if self.preset.validation == "held-out"
                else f"the training set{whole} was cross-validated as there is no validation set"
            )
        return info

    def scored(self, outcome: Outcome, *, setting: str = "") -> TaskResult:
        predictions = self.predictions(outcome)
        evaluation = evaluate_predictions(predictions)
        found = evaluation.scores, evaluation.per_class, evaluation.confusion_matrix
        warnings = (*outcome.info.get("warnings", ()), *evaluation.notes)
        return TaskResult(predictions, *found, setting, warnings=warnings)

    def predictions(self, outcome: Outcome, *, episodes: NDArray[np.int64] | None = None) -> Predictions:
        test = self.request.test
        return Predictions(
            probabilities=outcome.probabilities,
            labels=test.labels.numpy(),
            predicted=outcome.predicted,
            classes=self.classes,
            img_names=test.img_names,
            groups=test.groups,
            episodes=episodes,
            info={key: value for key, value in outcome.info.items() if key != "warnings"},
            sites=text_columns(test),
        )


def _path(features: FeatureSet) -> str:
    source = str(features.metadata.get("source", ""))
    return str(Path(source).absolute()) if source else ""


def changed_options(options: Options) -> dict[str, str]:
    """The options of a task that are not at their defaults, by flag, as they are written there."""
    return {
        each.flag: ",".join(map(str, value)) if each.is_list else str(value)
        for each in options_of(Options)
        for value in [getattr(options, each.name)]
        if value != each.default
    }


def merged(first: FeatureSet, second: FeatureSet | None) -> FeatureSet:
    """Two feature sets one after the other."""
    if second is None:
        return first
    import torch

    groups = None if first.groups is None or second.groups is None else first.groups + second.groups
    both = [column for column in first.sites if column in second.sites]
    return replace(
        first,
        embeddings=torch.cat([first.embeddings, second.embeddings]),
        labels=torch.cat([first.labels, second.labels]),
        img_names=first.img_names + second.img_names,
        groups=groups,
        sites={column: first.sites[column] + second.sites[column] for column in both},
        target=first.target and second.target and first.target.joined(second.target),
        places=first.places and second.places and first.places.joined(second.places),
    )


def rows_of(features: FeatureSet, rows: NDArray[np.int64]) -> FeatureSet:
    return replace(
        features,
        embeddings=features.embeddings[rows],
        labels=features.labels[rows],
        img_names=tuple(features.img_names[row] for row in rows),
        groups=None if features.groups is None else tuple(features.groups[row] for row in rows),
        sites={column: tuple(values[row] for row in rows) for column, values in features.sites.items()},
        target=features.target and features.target.take(rows),
        places=features.places and features.places.take(rows),
    )


@dataclass(frozen=True)
class TaskResult:
    predictions: Predictions | TargetPredictions
    scores: Mapping[str, Score]
    per_class: Mapping[str, Mapping[str, Score]]
    confusion_matrix: list[list[int]]
    setting: str = ""
    episode_metrics: Mapping[str, NDArray[np.float64]] | None = None
    episodes: EpisodePredictions | None = None
    warnings: tuple[str, ...] = ()  # what to keep in mind when reading the numbers
    notes: tuple[str, ...] = ()  # what was not done, and leaves these numbers as they are
    #: What is odd about the data, where that is not what the context says.
    caveats: tuple[str, ...] | None = None
    attention: TileAttention | None = None
    sheet: NDArray[np.uint8] | None = None  # [h, w, 3], a picture of examples

    @classmethod
    def averaged(
        cls,
        predictions: Predictions,
        metrics: Mapping[str, NDArray[np.float64]],
        episodes: EpisodePredictions,
        **more: Any,
    ) -> TaskResult:
        """A result whose metrics are means over episodes or runs; the rest is of the mean probabilities."""
        whole = evaluate_predictions(predictions)
        scores = {name: _mean(values) for name, values in metrics.items()}
        found = scores, whole.per_class, whole.confusion_matrix
        return cls(predictions, *found, episode_metrics=metrics, episodes=episodes, **more)


def _mean(values: NDArray[np.float64]) -> Score:
    defined = values[np.isfinite(values)]
    return Score(float(defined.mean())) if len(defined) else Score(None, "undefined in every episode or run")
