"""What one evaluation is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from histobench.roi.features.feature_set import FeatureSet


@dataclass(frozen=True)
class Options:
    """The knobs of the tasks, with the documented defaults."""

    max_iteration: int = 1000
    use_sklearn: bool = False
    n_neighbors: int = 20
    n_iter: int = 100
    use_all_way: bool = True
    n_way: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 9, 10)
    n_shot: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    keep_probabilities: bool = False  # of every few-shot episode, for intervals of AUROC and log loss
    zeroshot_model_name: str | None = None
    zeroshot_prompt_file: Path | None = None
    zeroshot_batch_size: int = 32
    choose_by: str = "group"  # or "image": what is held out where hyper-parameters are chosen


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
    """Features, tasks and where the results go."""

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
