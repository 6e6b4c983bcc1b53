"""What every task of one evaluation works with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.roi.evaluation.request import EvaluationRequest
from histobench.roi.features.feature_set import FeatureSet
from histobench.roi.predictions import Predictions

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

    @property
    def info(self) -> dict[str, Any]:
        """What is said about the data in every results file."""
        info: dict[str, Any] = {
            "num_train": len(self.train),
            "train_features": self.request.train.metadata.get("source", ""),
            "test_features": self.request.test.metadata.get("source", ""),
            "device": self.device,
        }
        if self.request.val is not None:
            info["num_val"] = len(self.request.val)
            info["val_use"] = (
                "joined to the training data" if self.val_joins_train else "used to choose hyper-parameters"
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
