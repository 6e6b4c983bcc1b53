"""Features that are given as arrays, checked by scikit-learn; every error names the parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError, InvalidParameterError
from histobench.roi.data.targets import Target, TargetColumns
from histobench.roi.task_catalogue import CLASS, TARGETS, a_target

if TYPE_CHECKING:
    from histobench.roi.features.feature_file import FeatureSet


@dataclass(frozen=True)
class Given:
    """One split as the user gave it: a set of features, or an array with labels and perhaps groups."""

    split: str
    features: Any  # FeatureSet, or array-like [n, d]
    labels: Any = None
    groups: Any = None

    @property
    def features_name(self) -> str:
        return "val[0]" if self.split == "val" else self.split

    @property
    def labels_name(self) -> str:
        return "val[1]" if self.split == "val" else f"{self.split}_labels"

    @property
    def groups_name(self) -> str:
        return {"test": "groups", "val": "val[2]"}.get(self.split, f"{self.split}_groups")


def checked_parts(
    given: list[Given], kind: str, metadata: Mapping[str, Any]
) -> tuple[dict[str, FeatureSet], tuple[str, ...] | None]:
    """Return the splits as feature sets of one width, and the names of classes that came beside arrays.

    `train` comes first; all splits are arrays, or none is. Labels may be whole numbers or texts: they are
    numbered in their order, as scikit-learn does. Those of another `kind` of target are numbers [n] or
    [n, columns].
    """
    from histobench.roi.features.feature_file import FeatureSet

    ready = [part for part in given if isinstance(part.features, FeatureSet)]
    if ready:
        for part in given:
            for name, value in ((f"{part.split}_labels", part.labels), (part.groups_name, part.groups)):
                if value is not None:
                    raise InvalidParameterError(
                        f"{name}: is for arrays, but {ready[0].split} is a set of features"
                    )
            if part not in ready:
                raise InvalidParameterError(f"{part.split}: give features of hb.extract, as for the others")
        sets = {part.split: part.features for part in given}
        train: FeatureSet = sets["train"]
        stored = tuple(map(str, train.metadata.get("classes") or range(int(train.labels.max()) + 1)))
        _check_together(given, sets, stored if kind == CLASS else None)
        return sets, None
    rows = _feature_rows(given)
    for part in given:
        if part.labels is None:
            raise InvalidParameterError(
                f"{part.labels_name} is missing: arrays of features need their labels"
            )
    classes = None
    if kind == CLASS:
        labels = [label_array(part.labels, part.labels_name, len(rows[part.split])) for part in given]
        values, ids = np.unique(np.concatenate(labels), return_inverse=True)
        classes = tuple(map(str, values))
        parted = np.split(ids.astype(np.int64), np.cumsum(list(map(len, labels)))[:-1])
        sets = {
            part.split: _feature_set(part, rows[part.split], each, metadata)
            for part, each in zip(given, parted, strict=True)
        }
    else:
        sets, target = {}, TargetColumns(kind, TARGETS[kind].columns or _label_names(given))
        for part in given:
            count = len(rows[part.split])
            plain = _feature_set(part, rows[part.split], np.zeros(count, dtype=np.int64), metadata)
            found = _target(part, target, count)
            sets[part.split] = replace(plain, target=found, metadata={**plain.metadata, "classes": [kind]})
    _check_together(given, sets, classes)
    return sets, classes


def _feature_rows(given: list[Given]) -> dict[str, NDArray[np.float32]]:
    """Numbers [n, d] in float32 of every split, with the columns of the first."""
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import validate_data

    class Training(BaseEstimator):  # type: ignore[misc, unused-ignore]
        """Remembers the number and names of the columns."""

    training, found = Training(), {}
    for part in given:
        with _named(part.features_name):
            if part.split == "test" and np.ndim(part.features) < 2:
                raise ValueError(
                    "expected features [n, d]; the order is train, test, train_labels, test_labels"
                )
            value, first = _plain(part.features), part is given[0]
            rows = validate_data(training, value, reset=first, dtype=np.float32)
        found[part.split] = np.require(rows, np.float32, ["C", "W"])  # PyTorch warns of other arrays
    return found


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors of scikit-learn and NumPy in one line that begins with the parameter."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what becomes infinite is refused
            yield
    except (ValueError, TypeError) as error:
        raise InvalidParameterError(f"{name}: {str(error).splitlines()[0].rstrip(':')}") from None


def _target(part: Given, target: TargetColumns, count: int) -> Target:
    values = as_array(part.labels, part.labels_name)
    values = values[:, None] if values.ndim == 1 else values
    if values.shape != (count, len(target.names)) or values.dtype.kind not in "fiub":
        shape = f"[{count}]" if len(target.names) == 1 else f"[{count}, {len(target.names)}]"
        raise InvalidParameterError(
            f"{part.labels_name}: {a_target(target.kind)} needs numbers {shape} ({', '.join(target.names)}), "
            f"found {values.dtype} {values.shape}"
        )
    try:
        read = [target.row([repr(float(value)) for value in row]) for row in values]
    except HistobenchError as error:
        raise InvalidParameterError(f"{part.labels_name}: {error}") from None
    found = Target(target, np.array(read, dtype=np.float64))
    wrong = target.problem(found.values)
    if wrong and part.split == "train":
        raise InvalidParameterError(f"{part.labels_name}: {wrong}")
    return found


def _label_names(given: list[Given]) -> tuple[str, ...]:
    """What several labels are called: the columns of a table, or label_1, label_2, ..."""
    labels = given[0].labels
    shape: tuple[int, ...] = np.shape(labels)
    if len(shape) != 2 or shape[1] < 2:
        raise InvalidParameterError(f"train_labels: several labels need numbers [n, labels], found {shape}")
    columns = tuple(getattr(labels, "columns", ()))
    named = columns and all(isinstance(name, str) for name in columns)
    return columns if named else tuple(f"label_{place + 1}" for place in range(shape[1]))


def label_array(value: Any, name: str, count: int) -> NDArray[Any]:
    """Return labels [count] as int64 or texts; whole floats count as whole numbers."""
    from sklearn.utils.multiclass import check_classification_targets

    labels = np.array(_one_per_image(value, name, count).tolist())  # the type of its items
    with _named(name):
        check_classification_targets(labels)
    return labels.astype(np.int64 if labels.dtype.kind in "iuf" else str)


def _one_per_image(value: Any, name: str, count: int) -> NDArray[Any]:
    import pandas as pd
    from sklearn.utils import column_or_1d

    with _named(name):
        values: NDArray[Any] = column_or_1d(_plain(value), warn=False)
    if len(values) != count:
        raise InvalidParameterError(f"{name}: expected {count} values, one per image, found {len(values)}")
    if missing := sum(pd.isna(item) or not str(item).strip() for item in values):
        raise InvalidParameterError(f"{name}: {missing} of {count} are missing")
    return values


def as_array(value: Any, name: str) -> NDArray[Any]:
    """Return an array of anything array-like, also of a tensor on any device."""
    with _named(name):
        return np.asarray(_plain(value))


def _plain(value: Any) -> Any:
    """Return a tensor, wherever it is, as an array; anything else as it is."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    return value


def _feature_set(
    part: Given, rows: NDArray[np.float32], ids: NDArray[np.int64], metadata: Mapping[str, Any]
) -> FeatureSet:
    import torch

    from histobench.roi.features.feature_file import FeatureSet

    groups = part.groups
    if groups is not None:
        groups = tuple(map(str, _one_per_image(groups, part.groups_name, len(rows))))
    return FeatureSet(
        embeddings=torch.from_numpy(rows),
        labels=torch.from_numpy(ids),
        img_names=tuple(f"{part.split}-{row}" for row in range(len(rows))),
        groups=groups,
        metadata={**metadata, "split": part.split},
    )


def _check_together(
    given: list[Given], sets: Mapping[str, FeatureSet], classes: tuple[str, ...] | None
) -> None:
    """One width; of classes at least two, and none that the training images never show."""
    first, *others = given
    train = sets[first.split]
    for part in others:
        width, expected = sets[part.split].embeddings.shape[1], train.embeddings.shape[1]
        if width != expected:
            raise InvalidParameterError(
                f"{part.split} has {width} dimensions and {first.split} has {expected}: "
                "were both made by the same encoder?"
            )
    if classes is None:
        return

    def named(label: int) -> str:
        return repr(classes[label]) if label < len(classes) else str(label)

    seen = set(train.labels.tolist())
    if len(seen) == 1:
        raise InvalidParameterError(
            f"{first.labels_name}: all images are of one class ({named(seen.pop())}); two are needed"
        )
    for part in others:
        unseen = sorted(set(sets[part.split].labels.tolist()) - seen)
        if unseen:
            raise InvalidParameterError(
                f"{part.labels_name}: class {named(unseen[0])} has no training images "
                f"({first.labels_name}): every class of {part.split} needs some"
            )
