"""Features for Python users: extracted once per dataset and encoder, evaluated in memory."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from histobench.api.benchmark import Benchmark
    from histobench.api.dataset import Dataset
    from histobench.api.encoder import Encoder
    from histobench.roi.features.feature_set import FeatureSet


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
            raise HistobenchError(f"there are no {split} images; splits: {', '.join(self.sets)}")
        return self.sets[split]

    def __repr__(self) -> str:
        return (
            f"FeatureSets: {', '.join(f'{split} {len(part):,}' for split, part in self.sets.items())} images"
        )


def extract(
    data: Dataset | str | Path,
    encoder: str | Encoder,
    *,
    folder: str | Path = "ROI_Features",
    device: str | None = None,
    size: int | None = None,
    weights: str | None = None,
    batch_size: int | str = "auto",
    num_workers: int = 8,
    precision: str = "auto",
    on_bad_image: str = "stop",
) -> FeatureSets:
    """The features of every split by one encoder, from the cache where they are known; written to `folder`.

    `encoder` is a name of the zoo, `my_file.py:MyEncoder`, or what `create_encoder` gave.
    """
    from histobench.api.dataset import Dataset, load_dataset
    from histobench.api.encoder import Encoder
    from histobench.api.progress_bar import ProgressBar
    from histobench.roi.features.extract import extract as extract_files
    from histobench.roi.features.feature_file import load
    from histobench.roi.features.settings import EncoderRecipe

    data = data if isinstance(data, Dataset) else load_dataset(data)
    given = encoder.module if isinstance(encoder, Encoder) else EncoderRecipe(encoder, size, weights)
    done = extract_files(
        data.roi,
        given,
        folder,
        device=device or (encoder.device if isinstance(encoder, Encoder) else None),
        batch_size=batch_size,
        num_workers=num_workers,
        precision=precision,
        on_bad_image=on_bad_image,
        progress=ProgressBar(),
    )
    return FeatureSets(
        {item.split: Features(load(item.path)) for item in done}, {item.split: item.path for item in done}
    )


class TemporaryResults:
    """A folder of results that nobody asked to keep: it goes with the last who holds this."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="histobench-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


def evaluate(
    train: Features | ArrayLike,
    test: Features | ArrayLike,
    train_labels: ArrayLike | None = None,
    test_labels: ArrayLike | None = None,
    *,
    val: Features | None = None,
    groups: Sequence[str] | None = None,
    tasks: Sequence[str] = ("Linear-Probe", "KNN", "Proto"),
    preset: str = "uni",
    seed: int = 0,
    dataset: str = "data",
    encoder: str = "encoder",
    results: str | Path | None = None,
    **options: Any,
) -> Benchmark:
    """Evaluate features, or arrays [n, d] with labels; nothing is written unless `results` is given.

    `groups` are the patients or slides of the test images where arrays are given. `options` are the knobs of
    the tasks, such as `n_neighbors`, `n_iter` or `n_shot`.

    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> y = np.arange(60) % 2
    >>> X = draw.normal(size=(60, 8)) + 3 * y[:, None]
    >>> done = evaluate(X[:40], X[40:], y[:40], y[40:], tasks=["Proto"])
    >>> done.table().query("metric == 'balanced_accuracy'")["value"].item()
    1.0
    """
    from histobench.api.benchmark import open_results
    from histobench.roi.evaluation.request import EvaluationRequest, Options
    from histobench.roi.evaluation.run import evaluate as evaluate_features

    unknown = set(options) - set(Options.__dataclass_fields__)
    if unknown:
        known = ", ".join(Options.__dataclass_fields__)
        raise HistobenchError(f"unknown option {sorted(unknown)[0]!r}; known: {known}")
    keeper = TemporaryResults() if results is None else None
    results = keeper.folder if keeper else Path(str(results))
    done = evaluate_features(
        EvaluationRequest(
            tasks=tuple(tasks),
            train=_set(train, train_labels, "train", dataset, encoder),
            test=_set(test, test_labels, "test", dataset, encoder, groups),
            val=None if val is None else val.features,
            results_dir=results,
            dataset=dataset if not isinstance(test, Features) else None,
            encoder=encoder if not isinstance(test, Features) else None,
            preset=preset,
            seed=seed,
            options=Options(**options),
        )
    )
    if done.failed:
        task, reason = next(iter(done.failed.items()))
        raise HistobenchError(f"{task}: {reason}")
    return open_results(results, keeper=keeper)


def _set(
    given: Features | ArrayLike,
    labels: ArrayLike | None,
    split: str,
    dataset: str,
    encoder: str,
    groups: Sequence[str] | None = None,
) -> FeatureSet:
    """The door for arrays: shapes, kinds, finite values and whole labels are checked here, once."""
    import torch

    from histobench.roi.features.feature_set import FeatureSet

    if isinstance(given, Features):
        return given.features
    if labels is None:
        raise HistobenchError(f"{split}_labels is missing: arrays of features need their labels")
    X, y = np.asarray(given), np.asarray(labels)
    if X.ndim != 2 or X.dtype.kind not in "fiu" or not X.size:
        raise HistobenchError(
            f"{split}: expected numbers of shape [images, dimension], found {X.dtype} {X.shape}"
        )
    if not np.isfinite(X).all():
        raise HistobenchError(
            f"{split}: {int((~np.isfinite(X)).any(axis=1).sum())} rows have NaN or infinite features"
        )
    if y.shape != (len(X),):
        raise HistobenchError(f"{split}_labels: expected {len(X)} labels, found shape {y.shape}")
    if y.dtype.kind not in "iu" or y.min() < 0:
        raise HistobenchError(f"{split}_labels: expected class ids 0, 1, 2, ..., found {y.dtype}")
    if groups is not None and len(groups) != len(X):
        raise HistobenchError(f"groups: expected {len(X)}, found {len(groups)}")
    return FeatureSet(
        embeddings=torch.from_numpy(np.ascontiguousarray(X, dtype=np.float32)),
        labels=torch.from_numpy(y.astype(np.int64)),
        img_names=tuple(f"{split}-{row}" for row in range(len(X))),
        groups=None if groups is None else tuple(map(str, groups)),
        metadata={"dataset": dataset, "encoder": encoder, "split": split},
    )
