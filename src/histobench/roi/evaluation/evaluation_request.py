"""What one evaluation is asked to do, and what of it was done before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.files import files_below, read_note, read_plain_text, write_json
from histobench.core.plain_data import parse_json
from histobench.core.version import __version__
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.registry import EncoderRecipe
from histobench.roi.options import IMAGE_KEYS, LAB_KEYS, Options, Settings
from histobench.roi.results.layout import (
    COMPLETE,
    DETAILED,
    EPISODES,
    FEW_SHOT,
    PER_EPISODE,
    ROBUSTNESS,
    TaskFiles,
    stored_in,
)
from histobench.roi.task_catalogue import ON_IMAGES

if TYPE_CHECKING:
    from histobench.roi.features.feature_file import FeatureSet

#: The files that hold what a task found; intervals are computed from them.
RECORDED = (COMPLETE, DETAILED, PER_EPISODE, FEW_SHOT, EPISODES, ROBUSTNESS)
#: Beside the results of a task: the digest of everything that they depend on.
FILE = ".finished.json"


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

    @property
    def features(self) -> list[FeatureSet]:
        """All features that are given, split by split; an empty training set is left out."""
        return [part for part in (self.train, self.val, self.test) if part is not None and len(part)]


@dataclass(frozen=True)
class ImageRequest:
    """Images, an encoder and a task that runs it on them; `encoder` is its label."""

    task: str
    data: RoiDataset
    recipe: EncoderRecipe
    results_dir: Path
    dataset: str
    encoder: str
    preset: str = "uni"
    seed: int = 0
    options: Options = field(default_factory=Options)
    settings: Settings = field(default_factory=Settings)


def is_recorded(results_dir: Path, task: str, digest: str) -> bool:
    """Whether the task was finished with the same input, and its results are still there and unchanged."""
    note = read_note(results_dir / task / FILE) or {}
    if note.get("digest") != digest or damaged_in(results_dir / task, note):
        return False
    stored = stored_in(results_dir / task)
    runs = [path for path in stored if path.name.endswith(COMPLETE)]
    return bool(stored) and all(TaskFiles.beside(path).detailed.is_file() for path in runs)


def record(results_dir: Path, task: str, digest: str) -> None:
    folder = results_dir / task
    files = sorted(path for ending in RECORDED for path in files_below(folder, ending))
    states = {path.relative_to(folder).as_posix(): _state(path) for path in files}
    write_json(folder / FILE, {"digest": digest, "files": states})


def damaged_in(folder: Path, note: Mapping[str, Any]) -> list[Path]:
    """List the files of a finished task that are gone or have other contents than when it ended."""
    return [folder / name for name, state in note.get("files", {}).items() if _state(folder / name) != state]


def damaged_results(results_dir: Path) -> list[Path]:
    notes = files_below(results_dir, FILE)
    return [path for note in notes for path in damaged_in(note.parent, read_note(note) or {})]


def _state(path: Path) -> str:
    """Return the SHA-256 of a file; of JSON, which holds a date, only that it can be read."""
    try:
        if path.suffix == ".json":
            parse_json(path.read_text(encoding="utf-8"))
            return "JSON"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return "damaged"


def task_digest(request: EvaluationRequest, task: str, fingerprint: str) -> str:
    prompts = request.options.zeroshot_prompt_file
    content: dict[str, Any] = {
        "task": task,
        "features": fingerprint,
        "images": _labelling(request),
        "classes": request.classes,
        "preset": request.preset,
        "seed": request.seed,
        "options": {
            name: str(value)
            for name, value in asdict(request.options).items()
            if (name == "choose_by" or (name in IMAGE_KEYS) == (task in ON_IMAGES))
            and (name not in LAB_KEYS or request.preset == "patho-bench")
        },
        "prompts": read_plain_text(prompts) if prompts and prompts.is_file() else "",
        "version": __version__,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _labelling(request: EvaluationRequest) -> str:
    """A digest of labels, names and groups: the fingerprint of features names only the pixels of images."""
    from histobench.roi.features.feature_file import text_columns

    digest = hashlib.sha256()
    for features in (request.train, request.val, request.test):
        if features is not None:
            said = [features.img_names, features.groups, features.metadata.get("classes")]
            digest.update(features.labels.numpy().tobytes())
            columns = text_columns(features)
            said += [columns] if columns else []
            digest.update(json.dumps(said).encode())
        digest.update(b"/")
    return digest.hexdigest()
