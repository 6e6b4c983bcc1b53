"""Feature sets and their files: plain tensors, read without executing anything."""

from __future__ import annotations

import codecs
import hashlib
import json
import logging
import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import atomic_path, regular
from histobench.roi.data.sites import TilePlaces, coordinate
from histobench.roi.data.targets import Target, TargetColumns
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.own_name import label_of

# A feature set: embeddings with their labels and names, and where they came from.


@dataclass(frozen=True)
class FeatureSet:
    """The embeddings of one split of one dataset by one encoder.

    `metadata` holds plain JSON values: dataset, encoder, split, size, fingerprint, transform, precision,
    classes, projected (whether the embeddings already live in the shared image-text space), versions.
    Files of other tools may lack any of them. `groups` are patients or slides; `sites` are named columns
    beside them, such as hospital, scanner and stain.
    """

    embeddings: Tensor  # [n, d] float32
    labels: Tensor  # [n] int64
    img_names: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    sites: dict[str, tuple[str, ...]] = field(default_factory=dict)  # column -> [n], "" where not known
    target: Target | None = None  # what is predicted where it is not the label
    places: TilePlaces | None = None  # coordinates on slides

    def __len__(self) -> int:
        return int(self.embeddings.shape[0])


#: In a file, coordinates and targets are texts among the sites, under names that begin like this.
_TILE, _TARGET = "tile:", "target:"


def text_columns(features: FeatureSet) -> dict[str, tuple[str, ...]]:
    """Sites, coordinates and targets as a file keeps them: columns of texts.

    >>> one = Target(TargetColumns("regression", ("age",)), np.array([[61.5]]))
    >>> text_columns(FeatureSet(torch.zeros(1, 2), torch.zeros(1), ("a",), target=one))
    {'target:regression:age': ('61.5',)}
    """
    columns: dict[str, tuple[str, ...]] = {}
    if features.places is not None:
        for name, values in zip("xy", features.places.coords.T.tolist(), strict=True):
            columns[_TILE + name] = tuple("" if value != value else f"{value:.12g}" for value in values)
        if any(features.places.slides):
            columns[f"{_TILE}slide"] = features.places.slides
    columns |= features.sites
    if features.target is not None:
        for name, numbers in zip(features.target.names, features.target.values.T.tolist(), strict=True):
            columns[f"{_TARGET}{features.target.kind}:{name}"] = tuple(map(repr, numbers))
    return columns


def typed_columns(
    columns: Mapping[str, tuple[str, ...]],
) -> tuple[dict[str, tuple[str, ...]], Target | None, TilePlaces | None]:
    """What `text_columns` gave, as sites, target and places."""
    sites = {name: values for name, values in columns.items() if not name.startswith((_TILE, _TARGET))}
    named = [name for name in columns if name.startswith(_TARGET)]
    target, places = None, None
    if named:
        of = TargetColumns(named[0].split(":")[1], tuple(name.split(":", 2)[2] for name in named))
        rows = [of.row(cells) for cells in zip(*(columns[name] for name in named), strict=True)]
        target = Target(of, np.array(rows, dtype=np.float64).reshape(len(rows), len(named)))
    if {f"{_TILE}x", f"{_TILE}y"} <= columns.keys():
        cells = [[coordinate(cell) for cell in columns[_TILE + name]] for name in "xy"]
        slides = columns.get(f"{_TILE}slide") or ("",) * len(cells[0])
        places = TilePlaces(np.array(cells, dtype=np.float64).T, slides)
    return sites, target, places


def fingerprint_of(*sets: FeatureSet) -> str:
    """One name for the features that went in; files of other tools are named by their content."""
    digest = hashlib.sha256()
    for features in sets:
        known = features.metadata.get("fingerprint")
        digest.update(str(known).encode() if known else _content(features))
    return digest.hexdigest()[:16]


def _content(features: FeatureSet) -> bytes:
    digest = hashlib.sha256(features.embeddings.contiguous().numpy().tobytes())
    digest.update(features.labels.numpy().tobytes())
    return digest.digest()


log = logging.getLogger(__name__)
#: Under this key a file keeps the checksum of everything else in it.
CHECKSUM = "checksum"
#: Where `load` notes the file a set was read from; it is never written back.
SOURCE = "source"


def save(features: FeatureSet, path: str | Path) -> Path:
    """Write a feature set as `.pt`; `torch.load(path, weights_only=True)` gives back the same values.

    The bytes depend on the content alone, so equal feature sets are equal files. A checksum of the content
    is in the file, which `load` compares.
    """
    content: dict[str, Any] = {
        "embeddings": features.embeddings,
        "labels": features.labels,
        "img_names": _apart(features.img_names),
        "groups": None if features.groups is None else _apart(features.groups),
        "metadata": {key: value for key, value in features.metadata.items() if key != SOURCE},
    }
    if columns := text_columns(features):
        content["sites"] = {column: _apart(values) for column, values in columns.items()}
    content[CHECKSUM] = _checksum(content)
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        # Through a handle, because torch writes the file's own (temporary) name into the archive otherwise.
        watched = _WatchedFile(handle)
        try:
            torch.save(content, watched)  # type: ignore[arg-type]
        except RuntimeError:
            # torch turns a full disk into an error of its own.
            raise (watched.error or OSError(None, "the file cannot be written")) from None
    return Path(path)


def _apart(texts: Sequence[str]) -> list[str]:
    """The texts as objects of their own: pickle writes an object that it has seen in another way."""
    return [text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass") for text in texts]


def load(path: str | Path) -> FeatureSet:
    """Read a feature file of this tool or of HistoROIBench (NumPy arrays and lists inside).

    A file that is no longer what was written is refused. Files of other tools, and of versions before the
    checksum, are read with a note that this could not be found out.
    """
    path = Path(path)
    content = plain_tensors(path)
    if not isinstance(content, dict):
        raise _bad(path, f"holds a {type(content).__name__} instead of named arrays")
    for key in ("embeddings", "labels"):
        if key not in content:
            known = [str(name) for name in content]
            raise _bad(path, f"has no {key!r}; {did_you_mean(key, known) if known else 'it is empty'}")
    if CHECKSUM not in content:
        log.warning("feature file %s has no checksum: whether it is damaged cannot be found out", path)
    elif content[CHECKSUM] != _checksum(content):
        raise _bad(path, "is damaged: it is not what was written (checksum); extract the features again")
    embeddings = _embeddings(content["embeddings"], path)
    labels = _labels(content["labels"], path)
    count = len(embeddings)
    names = _texts(content.get("img_names"), "img_names", path)
    groups = _texts(content.get("groups"), "groups", path)
    sites = _sites(content.get("sites"), path)
    for key, length in (
        ("labels", len(labels)),
        ("img_names", count if names is None else len(names)),
        ("groups", count if groups is None else len(groups)),
        *((f"sites ({column})", len(values)) for column, values in sites.items()),
    ):
        if length != count:
            raise _bad(path, f"has {count} embeddings but {length} {key}")
    metadata = content.get("metadata")
    try:
        places_of_origin, target, places = typed_columns(sites)
    except HistobenchError as error:
        raise _bad(path, f"has a wrong target: {error}") from error
    return FeatureSet(
        embeddings=embeddings,
        labels=labels,
        img_names=names if names is not None else tuple(f"image-{row}" for row in range(count)),
        groups=groups,
        metadata={**(metadata if isinstance(metadata, dict) else {}), SOURCE: str(path)},
        sites=places_of_origin,
        target=target,
        places=places,
    )


def check_pair(train: FeatureSet, test: FeatureSet) -> None:
    """Raise unless two feature sets can be used together: dimension, classes, encoder."""
    first, second = _called(train, "the training features"), _called(test, "the test features")
    wide, narrow = train.embeddings.shape[1], test.embeddings.shape[1]
    if wide != narrow:
        raise HistobenchError(
            f"{first} has {wide}-dimensional features but {second} has {narrow}: "
            "were both made by the same encoder?"
        )
    for key, what in (
        ("encoder", "encoder"),
        ("size", "image size"),
        ("encoder_fingerprint", "weights, transform or precision"),
    ):
        one, other = train.metadata.get(key), test.metadata.get(key)
        if one is not None and other is not None and one != other:
            raise HistobenchError(
                f"{first} and {second} differ in {what} ({_short(one)} and {_short(other)}): "
                "extract both with the same settings"
            )
    one, other = train.metadata.get("classes"), test.metadata.get("classes")
    if one is not None and other is not None and list(one) != list(other):
        raise HistobenchError(
            f"{first} has the classes {', '.join(map(str, one))} but {second} has "
            f"{', '.join(map(str, other))}: use one class map for both"
        )
    unknown = sorted(set(test.labels.tolist()) - set(train.labels.tolist()))
    if unknown:
        raise HistobenchError(
            f"{second} has label {', '.join(map(str, unknown))}, which {first} never shows: "
            "every class of the test set needs training images"
        )


def _checksum(content: dict[str, Any]) -> str:
    """A digest of the arrays, names, groups and metadata of a feature file."""
    digest = hashlib.sha256()
    for key in sorted(str(name) for name in content if name != CHECKSUM):
        value = content.get(key)
        if isinstance(value, Tensor):
            digest.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            plain = json.dumps(value, sort_keys=True, default=repr)
            digest.update(f"{key} {plain}\n".encode("utf-8", "surrogatepass"))
    return f"sha256:{digest.hexdigest()}"


class _WatchedFile:
    """A file that remembers why it could not be written to."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._handle.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._handle.flush()


def plain_tensors(path: Path) -> Any:
    """What a `.pt` file holds, read without running anything in it."""
    if not path.exists():
        raise HistobenchError(f"there is no feature file {path}")
    try:
        with torch.serialization.safe_globals(_numpy_globals()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols, of no use to a reader
            return torch.load(regular(path), map_location="cpu", weights_only=True)
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        if foreign := _foreign_globals(path, error):
            raise _bad(path, f"refused: it holds more than plain arrays ({foreign[0]})") from error
        raise _bad(path, "is damaged or is not a feature file; extract the features again") from error
    except Exception as error:  # truncated archives raise many kinds: RuntimeError, EOFError, KeyError, ...
        raise _bad(path, "is damaged or truncated; extract the features again") from error


def _foreign_globals(path: Path, refusal: Exception) -> list[str]:
    """The functions and classes that a file asks for beyond the allowed ones; none where it is damaged."""
    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # files of torch before 1.6 are not archives: only the refusal names it
        return re.findall(r"GLOBAL ([\w.]+)", str(refusal))


def _numpy_globals() -> list[Any]:
    """What a pickled NumPy array of numbers or text refers to, under the names of NumPy 1 and 2."""
    array, scalar = np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]  # what pickle would name
    dtypes = [type(np.dtype(kind)) for kind in "?bBhHiIlLqQefdgSUOV"]
    pairs: list[Any] = [np.ndarray, np.dtype, *dtypes, (codecs.encode, "_codecs.encode")]
    pairs += [(bytes, "builtins.bytes"), (bytes, "__builtin__.bytes")]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        pairs += [(array, f"{module}._reconstruct"), (scalar, f"{module}.scalar")]
    return pairs


def _embeddings(value: Any, path: Path) -> Tensor:
    tensor = _tensor(value, "embeddings", path)
    if tensor.ndim != 2:
        raise _bad(path, f"has embeddings of shape {tuple(tensor.shape)}; expected [images, dimension]")
    if not tensor.shape[0] or not tensor.shape[1]:
        raise _bad(path, "has no embeddings in it")
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise _bad(path, f"has embeddings of type {tensor.dtype}")
    tensor = tensor.to(torch.float32)
    finite = torch.isfinite(tensor).all(dim=1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0, 0])
        raise _bad(
            path, f"has NaN or infinite features in {int((~finite).sum())} rows (the first is row {row})"
        )
    return tensor.contiguous()


def _labels(value: Any, path: Path) -> Tensor:
    tensor = _tensor(value, "labels", path).reshape(-1)
    whole = tensor.to(torch.int64)
    if not bool((whole == tensor).all()):
        raise _bad(path, "has labels that are not whole numbers")
    if len(whole) and int(whole.min()) < 0:
        raise _bad(path, f"has the negative label {int(whole.min())}")
    return whole


def _tensor(value: Any, key: str, path: Path) -> Tensor:
    try:
        if isinstance(value, Tensor):
            return value.detach()
        if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
            return torch.stack([item.detach() for item in value])
        return torch.from_numpy(np.ascontiguousarray(np.asarray(value)))
    except (TypeError, ValueError, RuntimeError) as error:
        raise _bad(path, f"has {key} that are not an array of numbers") from error


def _texts(value: Any, key: str, path: Path) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise _bad(path, f"has {key} that are not a list of texts")
    return tuple(item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in value)


def _sites(value: Any, path: Path) -> dict[str, tuple[str, ...]]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _bad(path, "has sites that are not named lists")
    return {str(column): _texts(values, f"sites ({column})", path) or () for column, values in value.items()}


def _bad(path: Path, what: str) -> HistobenchError:
    return HistobenchError(f"feature file {path} {what}")


def _called(features: FeatureSet, otherwise: str) -> str:
    return str(features.metadata.get(SOURCE, otherwise))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:12] + "..."


def check_origin(path: Path, encoder: BasePatchEncoder) -> None:
    """Raise when `path` holds the features of another file's class, which is still there to be used."""
    if not encoder.origin or not path.is_file():
        return
    try:
        other = str(load(path).metadata.get("origin", ""))
    except HistobenchError:
        return  # nothing that could be lost
    if other not in ("", encoder.origin) and Path(other.rpartition(":")[0]).is_file():
        label = label_of(encoder.name)
        raise HistobenchError(
            f"{path} holds the features of {other}, which is called {label} as well; give this encoder a "
            f"name of its own ({label}2={encoder.origin}), or write to another folder"
        )
