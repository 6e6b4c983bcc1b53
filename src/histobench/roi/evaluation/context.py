"""What every task of one evaluation works with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.roi.evaluation.caveats import caveats, site_caveats
from histobench.roi.evaluation.choosing import Choosing, choosing
from histobench.roi.evaluation.leakage import leaks
from histobench.roi.evaluation.request import EvaluationRequest
from histobench.roi.features.feature_set import FeatureSet
from histobench.roi.features.fingerprint import versions
from histobench.roi.predictions import Predictions
from histobench.roi.presets import Preset, get_preset
from histobench.roi.protocols.held_out import held_out
from histobench.roi.results.changed_data import DATA, told_of_data

if TYPE_CHECKING:
    from histobench.roi.protocols.outcome import Outcome


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
        """The recipe that the tasks follow."""
        return get_preset(self.request.preset)

    @cached_property
    def train(self) -> FeatureSet:
        """The training features; under `uni` the validation features are part of them."""
        return merged(self.request.train, self.request.val if self.val_joins_train else None)

    @property
    def val_joins_train(self) -> bool:
        """Whether the validation features are training data here."""
        return self.request.val is not None and not self.preset.chooses

    @cached_property
    def train_and_val(self) -> tuple[FeatureSet, FeatureSet]:
        """Features to train on and to choose by; without a validation set a fifth of train is held out."""
        train = self.request.train
        if self.request.val is not None:
            return train, self.request.val
        groups = self.choosing(train).groups
        fit, rest = held_out(train.labels.numpy(), groups, seed=self.request.seed)
        if not len(rest):
            raise TaskSkippedError(
                f"the preset {self.request.preset} chooses on held-out images, but every class has one "
                "training image; give a validation set"
            )
        return rows_of(train, fit), rows_of(train, rest)

    def choosing(self, train: FeatureSet) -> Choosing:
        """What is held out of these training features where something is chosen."""
        return choosing(train, self.request.options.choose_by, self.classes)

    @cached_property
    def choices(self) -> Choosing | None:
        """What is held out of the training set under this preset; None where nothing is chosen on it."""
        if self.request.val is not None or not self.preset.chooses:
            return None
        return self.choosing(self.request.train)

    @property
    def choice_warnings(self) -> tuple[str, ...]:
        """What a task that chooses on a part of the training set has to say about the choice."""
        return (self.choices.warning,) if self.choices is not None and self.choices.warning else ()

    @cached_property
    def leaks(self) -> tuple[str, ...]:
        """What the test set shares with the other splits, in words."""
        others = {"training": self.request.train, "validation": self.request.val}
        return leaks(self.request.test, {name: part for name, part in others.items() if part is not None})

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """What is odd about the data and holds for every task's numbers."""
        parts = (self.request.train, self.request.val, self.request.test)
        known = [part for part in parts if part is not None]
        return (*self.leaks, *site_caveats(known), *caveats(self.request.test, self.classes))

    @cached_property
    def _data(self) -> dict[str, Any]:
        """What tells these images and labels from others under the same name."""
        parts = {"train": self.request.train, "val": self.request.val, "test": self.request.test}
        given = {name: part for name, part in parts.items() if part is not None}
        return told_of_data(
            {name: (part.img_names, part.labels.tolist()) for name, part in given.items()},
            self.classes,
            named_here=all(part.metadata.get("fingerprint") for part in given.values()),
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
            "train_features": self.request.train.metadata.get("source", ""),
            "test_features": self.request.test.metadata.get("source", ""),
            "device": self.device,
            "versions": self._versions,
        }
        if self.request.split is not None:
            sizes = {"num_train": len(self.train), "num_test": len(self.request.test)}
            info["split"] = asdict(self.request.split) | sizes
        if self.request.val is not None:
            info["num_val"] = len(self.request.val)
            info["val_use"] = (
                "joined to the training data" if self.val_joins_train else "used to choose hyper-parameters"
            )
        elif self.choices is not None:
            info["chosen_by"] = self.choices.chosen_by
            whole = ", whole groups," if self.choices.groups is not None else ""
            info["val_use"] = (
                f"a fifth of the training set{whole} was held out to choose by (no validation set given)"
                if self.preset.validation == "held-out"
                else f"the training set{whole} was cross-validated to choose by (no validation set given)"
            )
        return info

    def predictions(self, outcome: Outcome, *, episodes: NDArray[np.int64] | None = None) -> Predictions:
        """The outcome of a protocol with the names of the test images."""
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
            sites=test.sites,
        )


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
    )


def rows_of(features: FeatureSet, rows: NDArray[np.int64]) -> FeatureSet:
    """Some rows of a feature set."""
    return replace(
        features,
        embeddings=features.embeddings[rows],
        labels=features.labels[rows],
        img_names=tuple(features.img_names[row] for row in rows),
        groups=None if features.groups is None else tuple(features.groups[row] for row in rows),
        sites={column: tuple(values[row] for row in rows) for column, values in features.sites.items()},
    )
