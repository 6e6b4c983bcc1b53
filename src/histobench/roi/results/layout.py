"""Where the files of a task lie: the documented folder layout, in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from histobench.core.reading import files_below
from histobench.roi.task_catalogue import FEW_SHOT as FEW_SHOT_TASK

COMPLETE = "_complete_results.json"
DETAILED = "_detailed_results.csv"
PER_EPISODE = "_per_episode_metrics.json"
FEW_SHOT = "_few_shot_results.json"
BOOTSTRAP = "_bootstrap_ci.json"
EPISODES = "_episode_predictions.npz"
#: The measures of robustness by one site column.
ROBUSTNESS = "_robustness.json"
INTERVALS = "_intervals.json"
#: The folder with the results of other splits of the same images; no part of the ordinary tables.
SPLITS = "splits"

_FEW_SHOT_SETTING = re.compile(r"^(\d+)way_(\d+)shot$")


def stored_in(folder: Path) -> list[Path]:
    """The files that results of a task are known by, below its folder."""
    return sorted(path for ending in (COMPLETE, ROBUSTNESS) for path in files_below(folder, ending))


@dataclass(frozen=True)
class TaskFiles:
    """The files of one task at one setting inside a results folder.

    >>> TaskFiles.of(Path("r"), "KNN").complete.as_posix()
    'r/KNN/KNN_complete_results.json'
    >>> TaskFiles.of(Path("r"), "Few-shot", "9way_16shot").detailed.as_posix()
    'r/Few-shot/way_9/Fewshot_9way_16shot_detailed_results.csv'
    >>> TaskFiles.of(Path("r"), "Label-efficiency", "10pct").complete.as_posix()
    'r/Label-efficiency/Label-efficiency_10pct_complete_results.json'
    """

    folder: Path
    prefix: str

    @classmethod
    def of(cls, results_dir: Path, task: str, setting: str = "") -> TaskFiles:
        """The files of `task` at `setting` under `results_dir`."""
        few_shot = _FEW_SHOT_SETTING.match(setting)
        if task == FEW_SHOT_TASK and few_shot:
            return cls(results_dir / task / f"way_{few_shot[1]}", f"Fewshot_{setting}")
        return cls(results_dir / task, f"{task}_{setting}" if setting else task)

    @classmethod
    def beside(cls, complete: Path) -> TaskFiles:
        """The files that belong to a `*_complete_results.json`."""
        return cls(complete.parent, complete.name.removesuffix(COMPLETE))

    def _file(self, suffix: str) -> Path:
        return self.folder / f"{self.prefix}{suffix}"

    @property
    def complete(self) -> Path:
        return self._file(COMPLETE)

    @property
    def detailed(self) -> Path:
        return self._file(DETAILED)

    @property
    def per_episode(self) -> Path:
        return self._file(PER_EPISODE)

    @property
    def few_shot(self) -> Path:
        return self._file(FEW_SHOT)

    @property
    def bootstrap(self) -> Path:
        return self._file(BOOTSTRAP)

    @property
    def intervals(self) -> Path:
        return self._file(INTERVALS)

    @property
    def episode_predictions(self) -> Path:
        """The file of the whole task: all settings together."""
        folder = self.folder.parent if self.folder.name.startswith("way_") else self.folder
        return folder / f"{folder.name}{EPISODES}"


def episode_predictions_of(results_dir: Path, task: str) -> Path:
    """The file with the predictions of every episode or run of a task, all settings together.

    >>> episode_predictions_of(Path("r"), "Few-shot").as_posix()
    'r/Few-shot/Few-shot_episode_predictions.npz'
    """
    return results_dir / task / f"{task}{EPISODES}"
