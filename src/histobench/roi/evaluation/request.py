"""What one evaluation is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.options import Options


@dataclass(frozen=True)
class SplitOfMany:
    """Which split of a repeated cross-validation an evaluation is."""

    scheme: str  # "5x2", "leave-one-group-out"
    repeat: int
    fold: int
    of: int  # splits in all
    images: str  # a digest of the names of the test images


@dataclass(frozen=True)
class EvaluationRequest:
    """Features, tasks and where the results go; `train` is empty where the data has no training images."""

    tasks: tuple[str, ...]
    train: FeatureSet
    test: FeatureSet
    results_dir: Path
    val: FeatureSet | None = None
    classes: tuple[str, ...] | None = None
    dataset: str | None = None
    encoder: str | None = None
    description: str = ""
    preset: str = "uni"
    seed: int = 0
    device: str | None = None
    weights: str | None = None  # of the text tower, as for the extraction
    options: Options = field(default_factory=Options)
    split: SplitOfMany | None = None
    #: Where few-shot settings may be that other processes have played.
    played_in: Path | None = None

    @property
    def features(self) -> list[FeatureSet]:
        """All features that are given, split by split; an empty training set is left out."""
        return [
            features
            for features in (self.train, self.val, self.test)
            if features is not None and len(features)
        ]
