"""Features for Python users: extracted once per dataset and encoder, evaluated in memory."""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from histobench.core.errors import HistobenchError, InvalidParameterError
from histobench.core.files import check_writable
from histobench.core.records import check_keys, checked, from_values
from histobench.core.renamed import Renamed

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from histobench.api.benchmark import Benchmark
    from histobench.api.dataset import Dataset
    from histobench.api.encoder import Encoder
    from histobench.roi.encoders.base import BasePatchEncoder
    from histobench.roi.encoders.registry import EncoderRecipe
    from histobench.roi.features.feature_file import FeatureSet


@dataclass(frozen=True, repr=False)
class Features:
    """The features of one split as NumPy arrays.

    Attributes
    ----------
    X : ndarray of float32, shape [n, d]
        Feature vectors.
    y : ndarray of int64, shape [n]
        Class ids.
    groups : ndarray of str, shape [n], or None
        Patient or slide of every image.
    names : ndarray of str, shape [n]
        Image names.
    classes : tuple of str
        Class names; the class id is the position.
    features : FeatureSet
        The same as tensors, with the metadata of the feature file.

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> data = hb.demo_dataset(tempfile.mkdtemp(), train_per_class=3, test_per_class=2, size=64)
    >>> train = hb.extract(data, "tiny-vl").train
    >>> train.X.shape, train.y.shape, train.to_frame().shape
    ((27, 256), (27,), (27, 260))
    """

    features: FeatureSet

    @property
    def X(self) -> NDArray[np.float32]:  # noqa: N802
        """Feature vectors [n, d]."""
        return np.asarray(self.features.embeddings)

    @property
    def y(self) -> NDArray[np.int64]:
        """Class ids [n]."""
        return np.asarray(self.features.labels)

    @property
    def groups(self) -> NDArray[Any] | None:
        """Patient or slide of every image [n]; None if the data names none."""
        return None if self.features.groups is None else np.asarray(self.features.groups)

    @property
    def names(self) -> NDArray[Any]:
        """Image names [n]."""
        return np.asarray(self.features.img_names)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, if the file holds them."""
        return tuple(self.features.metadata.get("classes") or ())

    frame = Renamed("to_frame")

    def to_frame(self) -> pd.DataFrame:
        """Return one row per image.

        Returns
        -------
        pandas.DataFrame
            image, label, class, group, the site columns (such as scanner), then x0, x1, ...: the features.
        """
        names = dict(enumerate(self.classes))
        about: dict[str, Any] = {
            "image": self.names,
            "label": self.y,
            "class": [names.get(label, str(label)) for label in self.y.tolist()],
            "group": [None] * len(self) if self.features.groups is None else list(self.features.groups),
            **{column: list(values) for column, values in self.features.sites.items()},
        }
        target, places = self.features.target, self.features.places
        if places is not None:
            about |= places.known
        if target is not None:
            about |= dict(zip(target.names, target.values.T, strict=True))
        numbers = pd.DataFrame(self.X, columns=[f"x{place}" for place in range(self.X.shape[1])])
        return pd.concat([pd.DataFrame(about), numbers], axis=1)

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        return f"Features: {len(self):,} images x {self.X.shape[1]} dimensions"


class MissingSplitError(HistobenchError, AttributeError):
    """A split that a dataset does not have; an AttributeError as well, so that `hasattr` says False."""


@dataclass(frozen=True, repr=False)
class FeatureSplits:
    """The features of a dataset by split; `extract` returns one.

    A split is an attribute, `features.train`, or an item, `features["train"]`. `"val" in features` says
    whether there is one, and iterating gives the names of the splits.

    Attributes
    ----------
    train, val, test : Features
        The splits; one that the dataset does not have raises an error that names the others.
    sets : dict of str to Features
        All splits by name.
    paths : dict of str to Path
        The feature files, where `extract` was given a folder.

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> data = hb.demo_dataset(tempfile.mkdtemp(), train_per_class=3, test_per_class=2, size=64)
    >>> features = hb.extract(data, "tiny-vl")
    >>> list(features), "val" in features
    (['train', 'test'], False)
    """

    sets: Mapping[str, Features]
    paths: Mapping[str, Path] = field(default_factory=dict)

    @property
    def train(self) -> Features:
        """The training split."""
        return self["train"]

    @property
    def val(self) -> Features:
        """The validation split."""
        return self["val"]

    @property
    def test(self) -> Features:
        """The test split."""
        return self["test"]

    frame = Renamed("to_frame")

    def to_frame(self) -> pd.DataFrame:
        """Return one row per image of all splits.

        Returns
        -------
        pandas.DataFrame
            split, image, label, class, group, the site columns (such as scanner), then x0, x1, ...: the
            features.
        """
        parts = [part.to_frame().assign(split=split) for split, part in self.sets.items()]
        whole = pd.concat(parts, ignore_index=True)
        return whole[["split", *whole.columns.drop("split")]]

    def export(self, path: str | Path) -> Path:
        """Write all splits with names, labels and groups to one file that other tools read.

        Parameters
        ----------
        path : str or Path
            The file; its ending says the format: `.h5ad` (AnnData), `.parquet` or `.npz`.

        Returns
        -------
        Path
            The file, which `load_features` and `run(features=...)` read again.
        """
        from histobench.roi.features.elsewhere import EXPORTS, export_features

        kind = Path(path).suffix.lower().removeprefix(".")
        if kind not in EXPORTS:
            endings = ", ".join(f".{name}" for name in EXPORTS)
            raise InvalidParameterError(f"path: {Path(path).name!r} does not end in one of {endings}")
        return export_features([part.features for part in self.sets.values()], Path(path), kind)

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

    def __dir__(self) -> list[str]:
        missing = {"train", "val", "test"} - set(self.sets)
        return sorted(set(super().__dir__()) - missing)

    def __repr__(self) -> str:
        parts = ", ".join(f"{split} {len(part):,}" for split, part in self.sets.items())
        width = next((f" x {part.X.shape[1]} dimensions" for part in self.sets.values()), "")
        return f"FeatureSplits: {parts} images{width}"


def extract(
    data: Dataset | str | Path | pd.DataFrame,
    encoder: str | Encoder,
    *,
    folder: str | Path | None = None,
    size: int | None = None,
    weights: str | Path | None = None,
    device: str | None = None,
    **options: Any,
) -> FeatureSplits:
    """Compute the features of every split with one encoder.

    Features are cached: a second call, or `run` on the same images, does not compute them again.

    Parameters
    ----------
    data : Dataset, path, name or DataFrame
        A dataset from `load_dataset`, or anything that `load_dataset` reads.
    encoder : str or Encoder
        A name from `list_encoders`, `my_file.py:MyEncoder`, or what `create_encoder` returned. The latter
        has its own `size` and `weights`.
    folder : str or Path, optional
        Also write the feature files (.pt) to this folder.
    size : int, optional
        Image size in pixels as the encoder sees it (default: the encoder's own).
    weights : str or Path, optional
        Checkpoint, folder of checkpoints, or table like model_weights.json.
    device : str, optional
        cpu, cuda:0, mps, or several: cuda:0,cuda:1 (default: the GPU if there is one).
    **options
        batch_size, num_workers, precision, compile, on_bad_image, recheck, no_cache, as in `run`.

    Returns
    -------
    FeatureSplits
        The features by split, as arrays.

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> data = hb.demo_dataset(tempfile.mkdtemp(), train_per_class=3, test_per_class=2, size=64)
    >>> features = hb.extract(data, "tiny-vl")
    >>> features
    FeatureSplits: train 27, test 18 images x 256 dimensions
    >>> features.train.X.shape, features.train.classes[:2]
    ((27, 256), ('NORM', 'STR'))
    """
    from histobench.api.dataset import Dataset, images_of, load_dataset, read_for
    from histobench.api.encoder import Encoder, device_text, encoder_settings
    from histobench.api.progress_bar import ProgressBar
    from histobench.roi.encoders.registry import EncoderRecipe
    from histobench.roi.features.feature_extraction import extract as extract_files
    from histobench.roi.features.feature_file import SOURCE, load
    from histobench.roi.options import SETTINGS_OF_PLANS, Settings

    # Checked before the dataset is read, which may take a while.
    chosen = asdict(from_values(Settings, {**SETTINGS_OF_PLANS, **options}, only=True))
    chosen["device"] = device_text(device)
    recipe: BasePatchEncoder | EncoderRecipe
    if isinstance(encoder, Encoder):
        for name, value in (("size", size), ("weights", weights)):
            if value is not None:
                raise InvalidParameterError(
                    f"{name}: the encoder exists already; pass this to create_encoder"
                )
        recipe, chosen["device"] = encoder.module, chosen["device"] or encoder.device
    else:
        name = checked(str, encoder, "encoder")
        recipe = EncoderRecipe(name, *encoder_settings(name, size, weights))
    target = None if folder is None else check_writable(checked(Path, folder, "folder"), "folder")
    with read_for(extract, "data"):
        data = data if isinstance(data, Dataset) else load_dataset(data)
    keeper = TemporaryResults()
    try:
        done = extract_files(
            images_of(data), recipe, target or keeper.folder, **chosen, progress=ProgressBar()
        )
    finally:
        if isinstance(encoder, Encoder):  # it may have been asked for on another device, for once
            encoder.module.to(encoder.device)
    sets = {item.split: Features(load(item.path)) for item in done}
    if target is None:
        for part in sets.values():
            part.features.metadata.pop(SOURCE, None)
    return FeatureSplits(sets, {} if target is None else {item.split: item.path for item in done})


def load_features(
    path: str | Path, labels: Dataset | str | Path | pd.DataFrame, *, name: str | None = None
) -> FeatureSplits:
    """Features that another tool computed, matched with a table of labels, groups and splits.

    Parameters
    ----------
    path : str or Path
        A TRIDENT or CLAM folder of `.h5` (one per slide, with coordinates), a `.pt`, `.npz`, `.parquet` or
        `.h5ad` file, or a folder of such files.
    labels : Dataset, path, name or DataFrame
        A dataset from `load_dataset`, or anything that it reads. Each row names an image, a tile
        (`SLIDE_x_y`), or a slide whose tiles all have its label.
    name : str, optional
        Name of the encoder in tables, which then say `NAME@elsewhere` (default: from the folder or file).

    Returns
    -------
    FeatureSplits
        The features by split, for `evaluate` and scikit-learn.

    Examples
    --------
    >>> import tempfile, numpy as np, pandas as pd, histobench as hb
    >>> names, file = [f"slide{k}" for k in range(8)], f"{tempfile.mkdtemp()}/mine.npz"
    >>> np.savez(file, features=np.eye(8, dtype="float32"), img_names=names)
    >>> splits = ["train"] * 4 + ["test"] * 4
    >>> labels = pd.DataFrame({"image_path": names, "label": list("ab") * 4, "split": splits})
    >>> hb.load_features(file, labels)
    FeatureSplits: train 4, test 4 images x 8 dimensions
    """
    from histobench.api.dataset import Dataset, images_of, load_dataset, read_for
    from histobench.roi.encoders.own_name import ELSEWHERE
    from histobench.roi.features.elsewhere import import_features

    place = checked(Path, path, "path")
    with read_for(load_features, "labels"):
        table = labels if isinstance(labels, Dataset) else load_dataset(labels)
    alias = "" if name is None else f"{checked(str, name, 'name')}="
    _, sets = import_features(images_of(table), f"{alias}{ELSEWHERE}{place}", None)
    return FeatureSplits({split: Features(found) for split, found in sets.items()})


class TemporaryResults:
    """A folder of results that no one asked to keep: it goes with the last who holds this."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="histobench-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


#: What `evaluate` does where no tasks are named.
TASKS = ("Linear-Probe", "KNN", "Proto")


def evaluate(
    train: FeatureSplits | Features | ArrayLike,
    test: Features | ArrayLike | None = None,
    train_labels: ArrayLike | None = None,
    test_labels: ArrayLike | None = None,
    *,
    val: Features | tuple[ArrayLike, ...] | None = None,
    groups: ArrayLike | None = None,
    train_groups: ArrayLike | None = None,
    target: str = "class",
    tasks: str | Sequence[str] | None = TASKS,
    preset: str = "uni",
    seed: int = 0,
    dataset: str | None = None,
    encoder: str | None = None,
    results: str | Path | None = None,
    **options: Any,
) -> Benchmark:
    """Evaluate features, or arrays with labels.

    Everything is checked before the first task runs. A task that cannot be run on these features is skipped
    with a warning, and `Benchmark.skipped` says why; if no task can be run, that is an error.

    Parameters
    ----------
    train, test : Features or array [n, d]
        Splits of `extract`, or numbers without NaN (arrays, DataFrames, tensors, lists); all alike. What
        `extract` returned may be given whole, as `train` alone.
    train_labels, test_labels : array [n], optional
        Labels of arrays: integers or strings. Classes are numbered in sorted order.
    val : Features or (array [n, d], array [n]) or (array [n, d], array [n], array [n]), optional
        Validation features with their labels and groups, used for model selection.
    groups : array [n], optional
        Patients or slides of the test images, if `test` is an array.
    train_groups : array [n], optional
        Patients or slides of the training images, if `train` is an array.
    target : str, default "class"
        What the labels of arrays are: "class"; numbers for "regression"; [n, 2], time and event, for
        "survival"; [n, labels], 0 or 1, for "multilabel"; whole numbers for "ordinal". Features
        of `extract` know it.
    tasks : str or list of str, default ("Linear-Probe", "KNN", "Proto"), or the task of the target
        One or more of Linear-Probe, KNN, Proto, Few-shot, Zero-shot, Retrieval, Label-efficiency,
        Robustness, Patient.
    preset : {"uni", "sklearn", "thunder", "eva"}, default "uni"
        The recipe.
    seed : int, default 0
        Seed of everything random.
    dataset, encoder : str, optional
        Names in tables (default: those of the features, else "data" and "encoder").
    results : str or Path, optional
        Folder for the result files that `run` writes. Without it nothing is written.
    **options
        n_neighbors (KNN); n_shot, n_way, n_iter, use_all_way, keep_probabilities (Few-shot); max_iteration,
        use_sklearn (Linear-Probe); zeroshot_model_name, zeroshot_prompt_file, zeroshot_batch_size;
        choose_by, cost, class_weight, cox_alpha, l1_ratio; `histobench evaluate --help` explains them.

    Returns
    -------
    Benchmark

    Examples
    --------
    >>> import numpy as np, histobench as hb
    >>> draw = np.random.default_rng(0)
    >>> y = np.arange(60) % 2
    >>> X = draw.normal(size=(60, 8)) + 3 * y[:, None]
    >>> done = hb.evaluate(X[:40], X[40:], y[:40], y[40:], tasks=["Proto"])
    >>> done.to_frame().query("metric == 'balanced_accuracy'")["value"].item()
    1.0
    """
    from histobench.api.benchmark import Benchmark, open_results
    from histobench.api.validation import Given, checked_parts
    from histobench.roi.comparison.tidy_rows import write_whole_table
    from histobench.roi.evaluation.evaluation_request import EvaluationRequest
    from histobench.roi.evaluation.evaluation_run import evaluate as evaluate_features
    from histobench.roi.options import Options, TargetOptions, feature_options
    from histobench.roi.presets import get_preset
    from histobench.roi.task_catalogue import CLASS, ROBUSTNESS, TARGETS, canonical_task

    parameters = [*signature(evaluate).parameters][:-1]  # without `options` itself
    check_keys(options, [*(each.name for each in feature_options()), *parameters])
    task_options = from_values(Options, options)
    if isinstance(train, FeatureSplits):
        val = train.sets.get("val") if val is None else val
        test = train.test if test is None else test
        train = train.train
    kind = TargetOptions(target=target).target
    arrays = [
        Given("train", _split(train, "train"), train_labels, train_groups),
        Given("test", _split(test, "test"), test_labels, groups),
        *([] if val is None else [Given("val", *_pair(val))]),
    ]
    if isinstance(train, Features) and train.features.target is not None:
        kind = train.features.target.kind
    usual = TASKS if kind == CLASS else (TARGETS[kind].task,)
    chosen = usual if tasks is None or tasks is TASKS else checked(tuple[str, ...], tasks, "tasks")
    asked = tuple(map(canonical_task, chosen))
    get_preset(preset)
    seed = checked(int, seed, "seed", least=0)
    for name, value in (("dataset", dataset), ("encoder", encoder)):
        if value is not None:
            checked(str, value, name)
    keeper = TemporaryResults() if results is None else None
    folder = keeper.folder if keeper else check_writable(checked(Path, results, "results"), "results")
    if keeper is not None and ROBUSTNESS in asked:
        raise InvalidParameterError(
            f"results: {ROBUSTNESS} writes its measures to files; name a folder for them"
        )
    called = {"dataset": dataset or "data", "encoder": encoder or "encoder"}
    sets, classes = checked_parts(arrays, kind, called)
    done = evaluate_features(
        EvaluationRequest(
            tasks=asked,
            train=sets["train"],
            test=sets["test"],
            val=sets.get("val"),
            results_dir=folder,
            classes=classes,
            dataset=dataset,
            encoder=encoder,
            preset=preset,
            seed=seed,
            options=task_options,
        )
    )
    if done.failed or not done.rows:
        reasons = (done.failed or done.skipped).items()
        raise HistobenchError("; ".join(f"{task}: {reason}" for task, reason in reasons))
    for task, reason in done.skipped.items():
        log.warning("%s was left out: %s", task, reason)
    if keeper is None:
        write_whole_table(folder)
    if {row.task for row in done.rows} == {ROBUSTNESS}:
        return Benchmark(folder, (), skipped=done.skipped)
    return replace(open_results(folder), skipped=done.skipped, _keeper=keeper)


def _split(given: Any, name: str) -> Any:
    """The features behind what `extract` gave for a split; arrays as they are."""
    if isinstance(given, FeatureSplits):
        given = given[name]
    return given.features if isinstance(given, Features) else given


def _pair(val: Any) -> tuple[Any, ...]:
    """Validation features and, beside an array, its labels and perhaps its groups."""
    given = _split(val, "val")
    if given is not val:
        return given, None
    if not isinstance(val, tuple | list) or len(val) not in (2, 3):
        raise InvalidParameterError(
            "val: expected features or a pair (numbers of shape [images, dimension], labels), found "
            f"{type(val).__name__}"
        )
    return _split(val[0], "val"), *val[1:]
