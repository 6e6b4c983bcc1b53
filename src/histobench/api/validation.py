"""Features that are given as arrays, checked and made into feature sets; every error names the parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError, InvalidParameterError
from histobench.roi.data.targets import Target, TargetColumns
from histobench.roi.task_catalogue import CLASS, TARGETS, a_target

if TYPE_CHECKING:
    from histobench.roi.features.feature_file import FeatureSet

#: Lengths are divided by, unless they are below 1e-12.
_SMALLEST = 1e-10


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
    _check_columns(given)
    rows = {part.split: feature_array(part.features, part.features_name) for part in given}
    for part in given:
        if part.labels is None:
            raise InvalidParameterError(
                f"{part.labels_name} is missing: arrays of features need their labels"
            )
    sets, classes = {}, None
    if kind == CLASS:
        ids, classes = _numbered(given, rows)
        sets = {part.split: _feature_set(part, rows[part.split], ids[part.split], metadata) for part in given}
    else:
        target = TargetColumns(kind, TARGETS[kind].columns or _label_names(given))
        for part in given:
            count = len(rows[part.split])
            plain = _feature_set(part, rows[part.split], np.zeros(count, dtype=np.int64), metadata)
            found = _target(part, target, count)
            sets[part.split] = replace(plain, target=found, metadata={**plain.metadata, "classes": [kind]})
    _check_together(given, sets, classes)
    return sets, classes


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
    return _column_names(labels) or tuple(f"label_{place + 1}" for place in range(shape[1]))


def feature_array(value: Any, name: str) -> NDArray[np.float32]:
    """Return numbers [n, d] in float32, all finite; at least one row and one column."""
    from sklearn.utils import check_array

    value = _plain(value, name)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what becomes infinite is refused
            rows = check_array(value, dtype=np.float32, input_name=name)
    except (ValueError, TypeError) as error:
        raise InvalidParameterError(f"{name}: {str(error).splitlines()[0]}") from None
    return np.require(rows, np.float32, ["C", "W"])  # PyTorch warns of what cannot be written to


def check_range(array: NDArray[Any], name: str) -> None:
    """Refuse finite numbers [n, d] that float32 cannot hold."""
    if np.abs(array).max() > np.finfo(np.float32).max:
        raise InvalidParameterError(f"{name}: values beyond the range of float32; scale the features first")


def check_scale(array: NDArray[Any], name: str) -> None:
    """Refuse training features [n, d] that are so small that their lengths count as none."""
    largest = float(np.abs(array).max())
    if 0 < largest < _SMALLEST:
        raise InvalidParameterError(
            f"{name}: no value is larger than {largest:.3g}, which counts as zero; scale the features first"
        )


def label_array(value: Any, name: str, count: int) -> NDArray[Any]:
    """Return labels [count] as int64 or texts; whole floats count as whole numbers."""
    from sklearn.utils.multiclass import check_classification_targets

    labels = _one_per_image(value, name, count)
    if len({isinstance(label, str) for label in labels.tolist()}) > 1:
        raise InvalidParameterError(f"{name}: texts and numbers; make all of them texts")
    labels = np.array(labels.tolist())  # the type of its items
    try:
        check_classification_targets(labels)
    except (ValueError, TypeError) as error:
        raise InvalidParameterError(f"{name}: {error}") from None
    return labels.astype(np.int64 if labels.dtype.kind in "iuf" else str)


def _one_per_image(value: Any, name: str, count: int) -> NDArray[Any]:
    """Return [count] values, none of them missing or an empty text."""
    import pandas as pd
    from sklearn.utils import column_or_1d

    try:
        values = column_or_1d(as_array(value, name), warn=False)
    except ValueError as error:
        raise InvalidParameterError(f"{name}: {error}") from None
    if len(values) != count:
        raise InvalidParameterError(f"{name}: expected {count} values, one per image, found {len(values)}")
    missing = int(sum(pd.isna(item) or not str(item).strip() for item in values))
    if missing:
        raise InvalidParameterError(f"{name}: {missing} of {count} are missing")
    return np.asarray(values)


def as_array(value: Any, name: str) -> NDArray[Any]:
    """Return an array of anything array-like, also of a tensor on any device."""
    try:
        return np.asarray(_plain(value, name))
    except (ValueError, TypeError) as error:
        raise InvalidParameterError(f"{name}: cannot be read as an array: {error}") from None


def _plain(value: Any, name: str) -> Any:
    """Return a tensor, wherever it is, as an array; refuse masked values."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InvalidParameterError(f"{name}: {int(np.ma.getmaskarray(value).sum())} values are masked")
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    return value


def _check_columns(given: list[Given]) -> None:
    """Refuse tables with other columns, or with the same in another order, as scikit-learn does."""
    named = [(part, names) for part in given if (names := _column_names(part.features))]
    for part, names in named[1:]:
        first, expected = named[0]
        if len(names) == len(expected) and names != expected:
            place = next(place for place, name in enumerate(names) if name != expected[place])
            raise InvalidParameterError(
                f"{part.features_name}: column {place} is {names[place]!r}, but {expected[place]!r} in "
                f"{first.features_name}; give both the same columns in the same order"
            )


def _column_names(features: Any) -> tuple[str, ...]:
    """The names of the columns of a table; none for arrays, and where they are only numbered."""
    names = getattr(features, "column_names", getattr(features, "columns", ()))  # of Arrow; of pandas
    return tuple(names) if all(isinstance(name, str) for name in names) else ()


def _numbered(
    given: list[Given], rows: Mapping[str, NDArray[np.float32]]
) -> tuple[dict[str, NDArray[np.int64]], tuple[str, ...]]:
    """Class ids of labels that come beside arrays, and the classes in sorted order."""
    labels = [label_array(part.labels, part.labels_name, len(rows[part.split])) for part in given]
    for part, each in zip(given, labels, strict=True):
        if each.dtype.kind != labels[0].dtype.kind:
            kinds = ["texts" if of.dtype.kind == "U" else "whole numbers" for of in (each, labels[0])]
            raise InvalidParameterError(
                f"{part.labels_name}: {kinds[0]}, but {given[0].labels_name} are {kinds[1]}; use one kind"
            )
    values, ids = np.unique(np.concatenate(labels), return_inverse=True)
    parted = np.split(ids.astype(np.int64), np.cumsum(list(map(len, labels)))[:-1])
    return {part.split: each for part, each in zip(given, parted, strict=True)}, tuple(map(str, values))


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
    check_scale(train.embeddings.numpy(), first.split)
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
