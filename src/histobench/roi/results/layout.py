"""Where the files of a task are, and the identity of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.files import files_below, read_bytes, read_note, write_json
from histobench.core.plain_data import parse_json
from histobench.roi.task_catalogue import FEW_SHOT as FEW_SHOT_TASK

COMPLETE = "_complete_results.json"
DETAILED = "_detailed_results.csv"
PER_EPISODE = "_per_episode_metrics.json"
FEW_SHOT = "_few_shot_results.json"
EPISODES = "_episode_predictions.npz"
#: The measures of robustness by one site column.
ROBUSTNESS = "_robustness.json"
#: The folder with the results of other splits of the same images; no part of the ordinary tables.
SPLITS = "splits"

_FEW_SHOT_SETTING = re.compile(r"^(\d+)way_(\d+)shot$")


def stored_in(folder: Path) -> list[Path]:
    return sorted(path for ending in (COMPLETE, ROBUSTNESS) for path in files_below(folder, ending))


class _File:
    def __init__(self, ending: str) -> None:
        self.ending = ending

    def __get__(self, files: TaskFiles, owner: type[TaskFiles]) -> Path:
        return files.folder / f"{files.prefix}{self.ending}"


@dataclass(frozen=True)
class TaskFiles:
    """The files of one task at one setting inside a results folder.

    >>> TaskFiles.of(Path("r"), "KNN").complete.as_posix()
    'r/KNN/KNN_complete_results.json'
    >>> TaskFiles.of(Path("r"), "Few-shot", "9way_16shot").detailed.as_posix()
    'r/Few-shot/way_9/Fewshot_9way_16shot_detailed_results.csv'
    """

    folder: Path
    prefix: str

    complete = _File(COMPLETE)
    detailed = _File(DETAILED)
    per_episode = _File(PER_EPISODE)
    few_shot = _File(FEW_SHOT)
    bootstrap = _File("_bootstrap_ci.json")
    intervals = _File("_intervals.json")
    attention = _File("_attention.npz")
    top_tiles = _File("_top_tiles.csv")
    examples = _File("_examples.png")

    @classmethod
    def of(cls, results_dir: Path, task: str, setting: str = "") -> TaskFiles:
        few_shot = _FEW_SHOT_SETTING.match(setting)
        if task == FEW_SHOT_TASK and few_shot:
            return cls(results_dir / task / f"way_{few_shot[1]}", f"Fewshot_{setting}")
        return cls(results_dir / task, f"{task}_{setting}" if setting else task)

    @classmethod
    def beside(cls, complete: Path) -> TaskFiles:
        return cls(complete.parent, complete.name.removesuffix(COMPLETE))

    @property
    def episode_predictions(self) -> Path:
        """What every episode or run of the whole task predicted: all settings together."""
        folder = self.folder.parent if self.folder.name.startswith("way_") else self.folder
        return folder / f"{folder.name}{EPISODES}"


#: Beside the files of a task: whose they are.
CLAIM = ".run.json"
#: What one run is known by; in this order in the names of folders.
FIELDS = ("dataset", "encoder", "preset", "size", "seed", "choose_by", "features")

Identity = Mapping[str, str]  # field -> value; "" where it is not known


def place_of(results_dir: Path, task: str, identity: Identity) -> Path:
    occupant = _occupant(results_dir / task)
    apart = [] if occupant is None else _differing(identity, occupant)
    if not apart:
        return results_dir
    values = (re.sub(r"[^\w.@+-]", "_", str(identity[name])).strip(".")[:60] or "_" for name in apart)
    return results_dir / "_".join(map("{}-{}".format, apart, values))


def claim_place(results_dir: Path, task: str, identity: Identity) -> Path:
    """As `place_of`, and note there whose it is; the caller holds the lock of the task."""
    place, note = place_of(results_dir, task, identity), results_dir / task / CLAIM
    if place == results_dir and read_note(note) != identity:
        write_json(note, dict(identity))
    return place


def _occupant(folder: Path) -> Identity | None:
    """Whose results are in a task's folder; None where there are none."""
    stored = next(iter(stored_in(folder)), None)
    if stored is None:
        return None
    content = read_note(folder / CLAIM)
    return _identity_in(stored) if content is None else {name: str(content.get(name, "")) for name in FIELDS}


def _identity_in(path: Path) -> Identity | None:
    try:
        info: Any = parse_json(read_bytes(path).decode("utf-8"))["additional_info"]
        size = re.search(r"_Size_\[([^\]]+)\]", str(info.get("test_features") or ""))
        found = {name: str(info.get(name, "") or "") for name in FIELDS}
        return found | {"seed": str(info.get("seed", "")), "size": found["size"] or (size[1] if size else "")}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _differing(identity: Identity, other: Identity) -> list[str]:
    """The fields in which two runs differ; what either does not tell is no difference."""
    return [
        name
        for name in FIELDS
        if identity.get(name) and other.get(name) and str(identity[name]) != str(other[name])
    ]


@dataclass(frozen=True)
class RunIdentity:
    """Who made the predictions: written into every file and row so that numbers can be traced."""

    dataset: str
    encoder: str
    preset: str = "uni"
    seed: int = 0
    fingerprint: str = ""
    description: str = ""
    size: str = ""  # of the images, as the encoder sees them
