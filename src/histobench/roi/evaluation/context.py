"""What every task of one evaluation works with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.roi.evaluation.leakage import leaks
from histobench.roi.evaluation.request import EvaluationRequest
from histobench.roi.features.feature_set import FeatureSet
from histobench.roi.features.versions import versions
from histobench.roi.predictions import Predictions
from histobench.roi.protocols.held_out import held_out

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

    @cached_property
    def train(self) -> FeatureSet:
        """The training features; under `uni` the validation features are part of them."""
        return merged(self.request.train, self.request.val if self.val_joins_train else None)

    @property
    def val_joins_train(self) -> bool:
        """Whether the validation features are training data here."""
        return self.request.val is not None and self.request.preset == "uni"

    @cached_property
    def train_and_val(self) -> tuple[FeatureSet, FeatureSet]:
        """Features to train on and to choose by; without a validation set a fifth of train is held out."""
        if self.request.val is not None:
            return self.request.train, self.request.val
        fit, rest = held_out(self.request.train.labels.numpy(), seed=self.request.seed)
        return rows_of(self.request.train, fit), rows_of(self.request.train, rest)

    @cached_property
    def leaks(self) -> tuple[str, ...]:
        """What the test set shares with the other splits, in words."""
        others = {"training": self.request.train, "validation": self.request.val}
        return leaks(self.request.test, {name: part for name, part in others.items() if part is not None})

    @property
    def info(self) -> dict[str, Any]:
        """What is said about the data in every results file."""
        info: dict[str, Any] = {
            "num_train": len(self.train),
            "train_features": self.request.train.metadata.get("source", ""),
            "test_features": self.request.test.metadata.get("source", ""),
            "device": self.device,
            "versions": versions("scipy", "scikit-learn"),
        }
        if self.request.val is not None:
            info["num_val"] = len(self.request.val)
            info["val_use"] = (
                "joined to the training data" if self.val_joins_train else "used to choose hyper-parameters"
            )
        elif self.request.preset in ("thunder", "eva"):
            info["val_use"] = (
                "a fifth of the training set was held out to choose by (no validation set given)"
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
        )


def merged(first: FeatureSet, second: FeatureSet | None) -> FeatureSet:
    """Two feature sets one after the other."""
    if second is None:
        return first
    import torch

    groups = None if first.groups is None or second.groups is None else first.groups + second.groups
    return replace(
        first,
        embeddings=torch.cat([first.embeddings, second.embeddings]),
        labels=torch.cat([first.labels, second.labels]),
        img_names=first.img_names + second.img_names,
        groups=groups,
    )


def rows_of(features: FeatureSet, rows: NDArray[np.int64]) -> FeatureSet:
    """Some rows of a feature set."""
    return replace(
        features,
        embeddings=features.embeddings[rows],
        labels=features.labels[rows],
        img_names=tuple(features.img_names[row] for row in rows),
        groups=None if features.groups is None else tuple(features.groups[row] for row in rows),
    )
