"""What one evaluation is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from histobench.core.parameters import file_path, flag, text, whole_number, whole_numbers
from histobench.roi.features.feature_set import FeatureSet
from histobench.roi.protocols.presets import check_choice

#: The least value of each knob that is a number; an empty `n_way` leaves all classes at once.
_LEAST = {"max_iteration": 1, "n_neighbors": 1, "n_iter": 1, "zeroshot_batch_size": 1}
_FLAGS = ("use_sklearn", "use_all_way", "keep_probabilities")


@dataclass(frozen=True)
class Options:
    """The knobs of the tasks, with the documented defaults; values of other kinds are refused."""

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

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            **{name: whole_number(getattr(self, name), f"`{name}`", least=_LEAST[name]) for name in _LEAST},
            **{name: flag(getattr(self, name), f"`{name}`") for name in _FLAGS},
            **{
                name: whole_numbers(getattr(self, name), f"`{name}`", least=1) for name in ("n_way", "n_shot")
            },
            "choose_by": check_choice(self.choose_by),
        }
        if self.zeroshot_model_name is not None:
            checked["zeroshot_model_name"] = text(self.zeroshot_model_name, "`zeroshot_model_name`")
        if self.zeroshot_prompt_file is not None:
            checked["zeroshot_prompt_file"] = file_path(self.zeroshot_prompt_file, "`zeroshot_prompt_file`")
        for name, value in checked.items():
            object.__setattr__(self, name, value)


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
    #: Where few-shot settings may be that other processes have played.
    played_in: Path | None = None

    @property
    def features(self) -> list[FeatureSet]:
        """All features that are given, split by split."""
        return [features for features in (self.train, self.val, self.test) if features is not None]
