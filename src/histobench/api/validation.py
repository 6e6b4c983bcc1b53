"""The door for features that come as arrays: what the evaluation gets is clean, or the parameter is named.

Everything is looked at before any work: kinds, shapes, lengths, finite values, labels, groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError, InvalidParameterError
from histobench.roi.data.targets import Target, TargetColumns
from histobench.roi.task_catalogue import TARGETS, a_target

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
    def is_array(self) -> bool:
        """Whether the labels come beside it."""
        from histobench.roi.features.feature_file import FeatureSet

        return not isinstance(self.features, FeatureSet)

    @property
    def labels_name(self) -> str:
        """What the user calls the labels."""
        if not self.is_array:
            return self.split
        return "val[1]" if self.split == "val" else f"{self.split}_labels"

    @property
    def groups_name(self) -> str:
        """What the user calls the groups."""
        return {"test": "groups", "val": "val[2]"}.get(self.split, f"{self.split}_groups")


@dataclass(frozen=True)
class Parts:
    """Splits that can be used together; `classes` are the names of labels that came beside arrays."""

    sets: Mapping[str, FeatureSet]
    classes: tuple[str, ...] | None


def checked_parts(given: list[Given], *, metadata: Mapping[str, Any]) -> Parts:
    """The splits as feature sets of one width over the same classes; `train` comes first.

    Labels beside arrays may be whole numbers or texts of any kind: they are numbered in their order, as
    scikit-learn does. Beside a split that has classes of its own they are its class ids or names.
    """
    _same_columns([part for part in given if part.is_array])
    rows = {part.split: _features_of(part) for part in given if part.is_array}
    labels = {
        part.split: label_array(part.labels, part.labels_name, len(rows[part.split]))
        for part in given
        if part.is_array
    }
    known = [part.features for part in given if not part.is_array]
    classes: tuple[str, ...] | None = None
    if known:
        metadata = {key: known[0].metadata[key] for key in ("dataset", "encoder") if key in known[0].metadata}
        ids = {part.split: _known_ids(part, labels[part.split], known[0]) for part in given if part.is_array}
    else:
        ids, classes = _numbered(given, labels)
    sets = {}
    for part in given:
        if part.is_array:
            sets[part.split] = _feature_set(part, rows[part.split], ids[part.split], metadata)
        else:
            _no_labels_beside(part)
            sets[part.split] = part.features
    _check_together(given, sets, classes or _classes_of(known[0]))
    return Parts(sets, classes)


def target_parts(given: list[Given], kind: str, metadata: Mapping[str, Any]) -> Parts:
    """The splits as feature sets with a target that is not a class; labels: numbers [n] or [n, columns]."""
    _same_columns([part for part in given if part.is_array])
    target = TargetColumns(kind, TARGETS[kind].columns or _label_names(given))
    sets = {}
    for part in given:
        if not part.is_array:
            _no_labels_beside(part)
            sets[part.split] = part.features
            continue
        rows = _features_of(part)
        values = as_array(part.labels, part.labels_name)
        values = values[:, None] if values.ndim == 1 else values
        if values.shape != (len(rows), len(target.names)) or values.dtype.kind not in "fiub":
            shape = f"[{len(rows)}]" if len(target.names) == 1 else f"[{len(rows)}, {len(target.names)}]"
            raise InvalidParameterError(
                f"{part.labels_name}: {a_target(kind)} needs numbers {shape} ({', '.join(target.names)}), "
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
        plain = _feature_set(part, rows, np.zeros(len(rows), dtype=np.int64), metadata)
        sets[part.split] = replace(plain, target=found, metadata={**plain.metadata, "classes": [kind]})
    check_scale(sets["train"].embeddings.numpy(), "train")
    return Parts(sets, None)


def _label_names(given: list[Given]) -> tuple[str, ...]:
    """What several labels are called: the columns of a table, or label_1, label_2, ..."""
    labels = next((part.labels for part in given if part.is_array and part.labels is not None), None)
    shape: tuple[int, ...] = np.shape(labels) if labels is not None else ()
    if len(shape) != 2 or shape[1] < 2:
        raise InvalidParameterError(f"train_labels: several labels need numbers [n, labels], found {shape}")
    named = _column_names(labels)
    return tuple(named) if named else tuple(f"label_{place + 1}" for place in range(shape[1]))


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
    items = _one_per_image(value, name, count)
    if all(isinstance(item, str | bool) for item in items):
        return np.array([str(item) for item in items])
    whole = [
        isinstance(item, int | float) and -(2**63) <= item < 2**63 and item == int(item) for item in items
    ]
    if all(whole):
        return np.array([int(item) for item in items], dtype=np.int64)
    raise InvalidParameterError(
        f"{name}: expected class ids (0, 1, 2, ...) or names, found {items[whole.index(False)]!r} and others"
    )


def group_names(value: Any, name: str, count: int) -> tuple[str, ...]:
    """Return the patient or slide of each of `count` images, as texts."""
    return tuple(str(item) for item in _one_per_image(value, name, count))


def _one_per_image(value: Any, name: str, count: int) -> list[Any]:
    """Return a list or column of `count` plain values, none of them missing."""
    value = _plain(value, name)
    items = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(items, str | bytes | Mapping) or not np.iterable(items):
        raise InvalidParameterError(
            f"{name}: expected {count} values, one per image, found {type(value).__name__}"
        )
    items = list(items)
    if len(items) != count:
        raise InvalidParameterError(f"{name}: expected {count} values, one per image, found {len(items)}")
    items = [item.item() if getattr(item, "ndim", None) == 0 else item for item in items]
    if any(isinstance(item, list | tuple) or getattr(item, "ndim", 0) for item in items):
        raise InvalidParameterError(f"{name}: expected one value per image, found {type(items[0]).__name__}s")
    missing = sum(is_missing(item) for item in items)
    if missing:
        raise InvalidParameterError(f"{name}: {missing} of {count} are missing")
    return items


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


def _features_of(part: Given) -> NDArray[np.float32]:
    rows = feature_array(part.features, _features_name(part))
    if part.labels is None:
        raise InvalidParameterError(f"{part.labels_name} is missing: arrays of features need their labels")
    return rows


def _same_columns(given: list[Given]) -> None:
    """Refuse tables whose columns are called otherwise or stand in another order, as scikit-learn does."""
    named = [(part, names) for part in given if (names := _column_names(part.features)) is not None]
    for part, names in named[1:]:
        first, expected = named[0]
        if len(names) == len(expected) and names != expected:
            place = next(place for place, name in enumerate(names) if name != expected[place])
            raise InvalidParameterError(
                f"{_features_name(part)}: column {place} is {names[place]!r}, but {expected[place]!r} in "
                f"{_features_name(first)}; give both the same columns in the same order"
            )


def _column_names(features: Any) -> list[str] | None:
    """The names of the columns of a table; None for arrays, and where they are only numbered."""
    names = getattr(features, "column_names", None)  # Arrow; its `columns` are the values
    if names is None and hasattr(features, "columns") and hasattr(features, "shape"):
        names = list(features.columns)
    return names if names and all(isinstance(name, str) for name in names) else None


def _features_name(part: Given) -> str:
    return "val[0]" if part.split == "val" else part.split


def _no_labels_beside(part: Given) -> None:
    labels = "val[1]" if part.split == "val" else f"{part.split}_labels"
    for name, value in ((labels, part.labels), (part.groups_name, part.groups)):
        if value is not None:
            raise InvalidParameterError(
                f"{name}: is for arrays, but {part.split} is a set of features, which brings its own"
            )


def _numbered(
    given: list[Given], labels: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[np.int64]], tuple[str, ...]]:
    """Class ids from 0 on and the names of the classes, in the order of the labels."""
    first, *others = given
    for part in others:
        if labels[part.split].dtype.kind != labels[first.split].dtype.kind:
            kinds = [
                "texts" if labels[each.split].dtype.kind == "U" else "whole numbers" for each in (part, first)
            ]
            raise InvalidParameterError(
                f"{part.labels_name}: {kinds[0]}, but {first.labels_name} are {kinds[1]}; give both alike"
            )
    values, ids = np.unique(np.concatenate([labels[part.split] for part in given]), return_inverse=True)
    ends = np.cumsum([len(labels[part.split]) for part in given])[:-1]
    parted = np.split(ids.astype(np.int64), ends)
    return {part.split: each for part, each in zip(given, parted, strict=True)}, tuple(map(str, values))


def _known_ids(part: Given, labels: NDArray[Any], known: FeatureSet) -> NDArray[np.int64]:
    """The class ids of labels beside an array, by the classes of a split that has its own."""
    classes = _classes_of(known)
    if labels.dtype.kind == "U":
        position = {name: number for number, name in enumerate(classes)}
        unknown = [name for name in np.unique(labels).tolist() if name not in position]
        ids = np.array([position.get(name, -1) for name in labels.tolist()], dtype=np.int64)
    else:
        ids = labels
        unknown = np.unique(ids[(ids < 0) | (ids >= len(classes))]).tolist()
    if unknown:
        raise InvalidParameterError(
            f"{part.labels_name}: {unknown[0]!r} is not a class of the other splits; "
            f"their ids go from 0 to {len(classes) - 1} ({classes[-1]})"
        )
    return ids


def _classes_of(features: FeatureSet) -> tuple[str, ...]:
    stored = tuple(map(str, features.metadata.get("classes") or ()))
    return stored or tuple(map(str, range(int(features.labels.max()) + 1)))


def _feature_set(
    part: Given, rows: NDArray[np.float32], ids: NDArray[np.int64], metadata: Mapping[str, Any]
) -> FeatureSet:
    import torch

    from histobench.roi.features.feature_file import FeatureSet

    return FeatureSet(
        embeddings=torch.from_numpy(rows),
        labels=torch.from_numpy(ids),
        img_names=tuple(f"{part.split}-{row}" for row in range(len(rows))),
        groups=None if part.groups is None else group_names(part.groups, part.groups_name, len(rows)),
        metadata={**metadata, "split": part.split},
    )


def _check_together(given: list[Given], sets: Mapping[str, FeatureSet], classes: tuple[str, ...]) -> None:
    """One width, at least two classes, and none that the training images never show."""
    first, *others = given
    train = sets[first.split]
    check_scale(train.embeddings.numpy(), first.split)
    seen = set(train.labels.tolist())
    if len(seen) == 1:
        name = _name(classes, seen.pop())
        raise InvalidParameterError(
            f"{first.labels_name}: all images are of one class ({name}); two are needed"
        )
    for part in others:
        features = sets[part.split]
        if features.embeddings.shape[1] != train.embeddings.shape[1]:
            raise InvalidParameterError(
                f"{part.split} has {features.embeddings.shape[1]} dimensions and {first.split} has "
                f"{train.embeddings.shape[1]}: were both made by the same encoder?"
            )
        unseen = sorted(set(features.labels.tolist()) - seen)
        if unseen:
            raise InvalidParameterError(
                f"{part.labels_name}: class {_name(classes, unseen[0])} has no training images "
                f"({first.labels_name}): every class of {part.split} needs some"
            )


def _name(classes: tuple[str, ...], label: int) -> str:
    return repr(classes[label]) if label < len(classes) else str(label)


def is_missing(item: Any) -> bool:
    """None, NaN, an empty text, or what pandas puts where nothing is."""
    return (
        item is None
        or (isinstance(item, str) and not item.strip())
        or type(item).__name__ in ("NAType", "NaTType")
        or (isinstance(item, float) and item != item)
    )
