"""What a results folder holds about one task of one encoder on one dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.roi.predictions import Predictions
from histobench.roi.results.episode_predictions import EpisodePredictions
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.run_identity import RunIdentity
from histobench.roi.results.stored_predictions import read_episodes, read_episodes_of, read_predictions


@dataclass(frozen=True)
class StoredRun:
    """One `*_complete_results.json` with the predictions beside it (read when first asked for)."""

    path: Path  # the complete_results.json
    identity: RunIdentity
    task: str  # one of `task_catalogue.TASKS`, or of another tool
    setting: str  # "" or e.g. "9way_16shot"
    metrics: dict[str, float | None]
    classes: tuple[str, ...]
    info: dict[str, Any] = field(default_factory=dict)
    num_samples: int | None = None  # test images, as far as the file says

    @property
    def undefined_metrics(self) -> dict[str, str]:
        """Why metrics have no value, as far as the file says."""
        reasons = self.info.get("undefined_metrics")
        return reasons if isinstance(reasons, dict) else {}

    @property
    def caveats(self) -> tuple[str, ...]:
        """What to keep in mind when reading the numbers, as far as the file says."""
        said = self.info.get("caveats")
        return tuple(map(str, said)) if isinstance(said, list) else ()

    @cached_property
    def predictions(self) -> Predictions:
        """The per-sample predictions of `*_detailed_results.csv`."""
        return read_predictions(self)

    @cached_property
    def episodes(self) -> EpisodePredictions | None:
        """What each episode or run said about the images of `predictions`; None where it was not kept."""
        return read_episodes_of(self)

    @cached_property
    def per_episode(self) -> dict[str, NDArray[np.float64]] | None:
        """The metrics of each episode or training run, name -> [episodes]; None where they are of one."""
        return read_episodes(TaskFiles.beside(self.path).per_episode)
