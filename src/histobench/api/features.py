"""Features for Python users: extracted once per dataset and encoder, evaluated in memory."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.parameters import (
    InvalidParameterError,
    file_path,
    folder_path,
    renamed,
    text,
    texts,
    whole_number,
)

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    import pandas as pd

    from histobench.api.benchmark import Benchmark
    from histobench.api.dataset import Dataset
    from histobench.api.encoder import Encoder
    from histobench.roi.encoders.base import BasePatchEncoder
    from histobench.roi.features.feature_file import FeatureSet
    from histobench.roi.features.settings import EncoderRecipe


@dataclass(frozen=True, repr=False)
class Features:
    """One split as NumPy arrays: `X` [n, d], `y` [n], `groups` [n] or None, `names` [n]."""

    features: FeatureSet

    @property
    def X(self) -> NDArray[np.float32]:  # noqa: N802
        """Feature vectors [n, d]."""
        array: NDArray[np.float32] = self.features.embeddings.numpy()
        return array

    @property
    def y(self) -> NDArray[np.int64]:
        """Class ids [n]."""
        array: NDArray[np.int64] = self.features.labels.numpy()
        return array

    @property
    def groups(self) -> NDArray[Any] | None:
        """Patient or slide of every image, None where the data names none."""
        return None if self.features.groups is None else np.asarray(self.features.groups)

    @property
    def names(self) -> NDArray[Any]:
        """Image names [n]."""
        return np.asarray(self.features.img_names)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, where the file knows them."""
        return tuple(self.features.metadata.get("classes") or ())

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        return f"Features: {len(self):,} images x {self.X.shape[1]} dimensions"


class MissingSplitError(HistobenchError, AttributeError):
    """A split that a dataset does not have; an AttributeError as well, so that `hasattr` says False."""


@dataclass(frozen=True, repr=False)
class FeatureSets:
    """The features of a dataset by split: `.train`, `.val`, `.test`, or `["train"]`."""

    sets: Mapping[str, Features]
    paths: Mapping[str, Path] = field(default_factory=dict)

    def __getattr__(self, split: str) -> Features:
        if split in ("train", "val", "test"):
            return self[split]
        raise AttributeError(f"'FeatureSets' object has no attribute {split!r}")

    def __getitem__(self, split: str) -> Features:
        if split not in self.sets:
            raise MissingSplitError(f"there are no {split} images; splits: {', '.join(self.sets)}")
        return self.sets[split]

    def __iter__(self) -> Iterator[str]:
        """The names of the splits."""
        return iter(self.sets)

    def __contains__(self, split: object) -> bool:
        return split in self.sets

    def __len__(self) -> int:
        return len(self.sets)

    def __repr__(self) -> str:
        return (
            f"FeatureSets: {', '.join(f'{split} {len(part):,}' for split, part in self.sets.items())} images"
        )


def extract(
    data: Dataset | str | Path | pd.DataFrame,
    encoder: str | Encoder,
    *,
    folder: str | Path = "ROI_Features",
    device: str | None = None,
    size: int | None = None,
    weights: str | Path | None = None,
    batch_size: int | str = "auto",
    num_workers: int = 8,
    precision: str = "auto",
    on_bad_image: str = "stop",
) -> FeatureSets:
    """The features of every split by one encoder, from the cache where they are known; written to `folder`.

    `encoder` is a name of the zoo, `my_file.py:MyEncoder`, or what `create_encoder` gave; an encoder that is
    made already has its `size` and `weights`. An encoder that cannot be made is an error, and is tried anew
    when it is asked for again.
    """
    from histobench.api.dataset import Dataset, load_dataset
    from histobench.api.encoder import Encoder, device_text, encoder_settings
    from histobench.api.progress_bar import ProgressBar
    from histobench.roi.features.extract import extract as extract_files
    from histobench.roi.features.feature_file import load
    from histobench.roi.features.settings import EncoderRecipe
    from histobench.roi.options import Settings

    device = device_text(device)
    given: BasePatchEncoder | EncoderRecipe
    if isinstance(encoder, Encoder):
        for name, value in (("size", size), ("weights", weights)):
            if value is not None:
                raise InvalidParameterError(f"{name}: the encoder is made already; give it to create_encoder")
        given, device = encoder.module, device or encoder.device
    elif isinstance(encoder, str):
        given = EncoderRecipe(encoder, *encoder_settings(text(encoder, "encoder"), size, weights))
    else:
        raise InvalidParameterError(
            "encoder: expected a name or what create_encoder gave, found "
            f"{type(encoder).__name__} (one encoder; hb.run takes several)"
        )
    folder = folder_path(folder, "folder")
    # Looked at before the dataset is read, which may take a while.
    Settings(device, batch_size, num_workers, precision, on_bad_image=on_bad_image)
    with renamed(source="data"):
        data = data if isinstance(data, Dataset) else load_dataset(_readable(data))
    try:
        with renamed(resize_size="size"):
            done = extract_files(
                data.roi,
                given,
                folder,
                device=device,
                batch_size=batch_size,
                num_workers=num_workers,
                precision=precision,
                on_bad_image=on_bad_image,
                progress=ProgressBar(),
            )
    finally:
        if isinstance(encoder, Encoder):  # it may have been asked for on another device, for once
            encoder.module.to(encoder.device)
    return FeatureSets(
        {item.split: Features(load(item.path)) for item in done}, {item.split: item.path for item in done}
    )


def features(
    path: str | Path, labels: Dataset | str | Path | pd.DataFrame, *, name: str | None = None
) -> FeatureSets:
    """Features that another tool computed, matched with a table of labels, groups and splits.

    Parameters
    ----------
    path : a TRIDENT or CLAM folder of `.h5` (one per slide, with coordinates), a `.pt`, `.npz`, `.parquet` or
        `.h5ad` file, or a folder of such files
    labels : a dataset of `load_dataset`, or what it reads; each row names an image, a tile (`SLIDE_x_y`), or
        a slide whose tiles all have its label
    name : of the encoder in tables, which then say `NAME@elsewhere` (default: from the folder or file)

    Returns
    -------
    FeatureSets : by split, for `evaluate` and scikit-learn
    """
    from histobench.api.dataset import Dataset, load_dataset
    from histobench.roi.encoders.own_name import ELSEWHERE
    from histobench.roi.features.elsewhere import import_features

    place = file_path(path, "path")
    with renamed(source="labels"):
        table = labels if isinstance(labels, Dataset) else load_dataset(_readable(labels))
    alias = "" if name is None else f"{text(name, 'name')}="
    _, sets = import_features(table.roi, f"{alias}{ELSEWHERE}{place}", None)
    return FeatureSets({split: Features(found) for split, found in sets.items()})


def _readable(data: Any) -> Any:
    """What `load_dataset` reads, or an error that names it as it is called here."""
    if isinstance(data, str | os.PathLike):
        file_path(data, "data")
    elif not hasattr(data, "columns"):
        raise InvalidParameterError(
            "data: expected a dataset of load_dataset, a path, a name or a DataFrame, found "
            f"{type(data).__name__}"
        )
    return data


class TemporaryResults:
    """A folder of results that nobody asked to keep: it goes with the last who holds this."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="histobench-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


#: What `evaluate` does where no tasks are named.
TASKS = ("Linear-Probe", "KNN", "Proto")


def evaluate(
    train: Features | ArrayLike,
    test: Features | ArrayLike,
    train_labels: ArrayLike | None = None,
    test_labels: ArrayLike | None = None,
    *,
    val: Features | tuple[ArrayLike, ArrayLike] | None = None,
    groups: ArrayLike | None = None,
    tasks: str | Sequence[str] | None = TASKS,
    preset: str = "uni",
    seed: int = 0,
    dataset: str | None = None,
    encoder: str | None = None,
    results: str | Path | None = None,
    **options: Any,
) -> Benchmark:
    """Evaluate features, or arrays with labels; nothing is written unless `results` is given.

    Everything is checked before the first task runs. A task that cannot be run on these features is left out
    with a warning that says why, and is in `left_out` of what comes back; where that leaves none, or where
    one goes wrong, it is an error.

    Parameters
    ----------
    train, test : features of a split, or numbers [n, d]
    train_labels, test_labels : labels [n] of arrays, whole numbers or texts; classes are in their order
    val : features, or a pair (numbers [n, d], labels [n])
    groups : the patients or slides [n] of the test images, where arrays are given
    tasks : one or several of Linear-Probe, KNN, Proto, Few-shot, Zero-shot, Retrieval, Label-efficiency
    preset : the recipe: uni, sklearn, thunder or eva
    seed : of everything that is drawn, a whole number from 0 up
    dataset, encoder : what they are called in tables (default: as in the features, else data and encoder)
    results : a folder for the result files of `histobench run`
    options : the knobs of the tasks, such as `n_neighbors`, `n_iter`, or a list of `n_shot`

    Examples
    --------
    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> y = np.arange(60) % 2
    >>> X = draw.normal(size=(60, 8)) + 3 * y[:, None]
    >>> done = evaluate(X[:40], X[40:], y[:40], y[40:], tasks=["Proto"])
    >>> done.table().query("metric == 'balanced_accuracy'")["value"].item()
    1.0
    """
    from histobench.api.benchmark import Benchmark, open_results
    from histobench.api.validation import Given, checked_parts
    from histobench.roi.comparison.tidy_rows import write_whole_table
    from histobench.roi.evaluation.request import EvaluationRequest
    from histobench.roi.evaluation.run import evaluate as evaluate_features
    from histobench.roi.options import Options
    from histobench.roi.presets import get_preset
    from histobench.roi.task_catalogue import ROBUSTNESS, canonical_task

    for option in options:
        if option not in Options.__dataclass_fields__:
            known = did_you_mean(option, Options.__dataclass_fields__)
            raise InvalidParameterError(f"unknown option {option!r}; {known}")
    knobs = Options(**options)
    asked = tuple(map(canonical_task, texts(TASKS if tasks is None else tasks, "tasks")))
    get_preset(preset)
    seed = whole_number(seed, "seed", least=0)
    names = {
        "dataset": None if dataset is None else text(dataset, "dataset"),
        "encoder": None if encoder is None else text(encoder, "encoder"),
    }
    folder = None if results is None else folder_path(results, "results")
    if folder is None and ROBUSTNESS in asked:
        raise InvalidParameterError(
            f"results: {ROBUSTNESS} writes its measures to files; name a folder for them"
        )
    given = [
        Given("train", _split(train, "train"), train_labels),
        Given("test", _split(test, "test"), test_labels, groups),
        *([] if val is None else [Given("val", *_pair(val))]),
    ]
    parts = checked_parts(given, metadata={key: name or _CALLED[key] for key, name in names.items()})
    keeper = None
    if folder is None:
        keeper = TemporaryResults()
        folder = keeper.folder
    done = evaluate_features(
        EvaluationRequest(
            tasks=asked,
            train=parts.sets["train"],
            test=parts.sets["test"],
            val=parts.sets.get("val"),
            results_dir=folder,
            classes=parts.classes,
            dataset=names["dataset"],
            encoder=names["encoder"],
            preset=preset,
            seed=seed,
            options=knobs,
        )
    )
    with renamed(model_name="encoder"):
        if done.failed or not done.rows:
            raise HistobenchError(_told(done.failed or done.skipped))
    for task, reason in done.skipped.items():
        log.warning("%s was left out: %s", task, reason)
    if keeper is None:
        write_whole_table(folder)
    if {row.task for row in done.rows} == {ROBUSTNESS}:
        return Benchmark(folder, (), left_out=done.skipped)
    return replace(open_results(folder, keeper=keeper), left_out=done.skipped)


#: What arrays are called in tables.
_CALLED = {"dataset": "data", "encoder": "encoder"}


def _split(given: Any, name: str) -> Any:
    """The features behind what `extract` gave for a split; arrays as they are."""
    if isinstance(given, FeatureSets):
        raise InvalidParameterError(
            f"{name}: these are all splits ({', '.join(given)}); give one of them, such as "
            f"features.{name if name in given else next(iter(given), 'train')}"
        )
    return given.features if isinstance(given, Features) else given


def _pair(val: Any) -> tuple[Any, Any]:
    """Validation features and, beside an array, its labels."""
    given = _split(val, "val")
    if given is not val:
        return given, None
    if not isinstance(val, tuple | list) or len(val) != 2:
        raise InvalidParameterError(
            "val: expected features or a pair (numbers of shape [images, dimension], labels), found "
            f"{type(val).__name__}"
        )
    return _split(val[0], "val"), val[1]


def _told(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{task}: {reason}" for task, reason in reasons.items())
