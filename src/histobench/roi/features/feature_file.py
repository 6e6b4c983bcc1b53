"""Feature sets and their files: plain tensors, read without executing anything."""

from __future__ import annotations

import codecs
import hashlib
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import atomic_path, regular
from histobench.roi.data.sites import NUMBERS, TilePlaces
from histobench.roi.data.targets import Target, TargetColumns

log = logging.getLogger(__name__)
#: Under this key a file keeps the checksum of everything else in it.
CHECKSUM = "checksum"
#: Where `load` notes the file a set was read from; it is never written back.
SOURCE = "source"
#: In a file, coordinates and targets are texts among the sites, under names that begin like this.
_TILE, _TARGET = "tile:", "target:"


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


def text_columns(features: FeatureSet) -> dict[str, tuple[str, ...]]:
    """Sites, coordinates and targets as a file keeps them: columns of texts.

    >>> one = Target(TargetColumns("regression", ("age",)), np.array([[61.5]]))
    >>> text_columns(FeatureSet(torch.zeros(1, 2), torch.zeros(1), ("a",), target=one))
    {'target:regression:age': ('61.5',)}
    """
    columns: dict[str, tuple[str, ...]] = {}
    for name, values in features.places.known.items() if features.places else ():
        texts = (
            "" if each != each else f"{each:.12g}" if name in NUMBERS else each for each in values.tolist()
        )
        columns[_TILE + name] = tuple(texts)
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
    tiles = {name.removeprefix(_TILE): cells for name, cells in columns.items() if name.startswith(_TILE)}
    if tiles:
        places = TilePlaces.read(tiles, len(next(iter(tiles.values()))))
    return sites, target, places


def fingerprint_of(*sets: FeatureSet) -> str:
    """One name for the features that went in; files of other tools are named by their content."""
    digest = hashlib.sha256()
    for features in sets:
        if known := features.metadata.get("fingerprint"):
            digest.update(str(known).encode())
        else:
            content = hashlib.sha256(features.embeddings.contiguous().numpy().tobytes())
            content.update(features.labels.numpy().tobytes())
            digest.update(content.digest())
    return digest.hexdigest()[:16]


def save(features: FeatureSet, path: str | Path) -> Path:
    """Write a feature set as `.pt`, whose bytes depend on the content alone; with a checksum of it."""
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
        try:
            torch.save(content, handle)
        except RuntimeError as error:  # what torch makes of a full disk
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
    return Path(path)


def _apart(texts: Sequence[str]) -> list[str]:
    """The texts as objects of their own: pickle writes an object that it has seen in another way."""
    return [text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass") for text in texts]


def load(path: str | Path) -> FeatureSet:
    """Read a feature file of this tool or of HistoROIBench (NumPy arrays and lists inside)."""
    path = Path(path)
    content = plain_tensors(path)
    if not isinstance(content, dict):
        raise _bad(path, f"holds a {type(content).__name__} instead of named arrays")
    for key in ("embeddings", "labels"):
        if key not in content:
            known = [str(name) for name in content]
            raise _bad(path, f"has no {key!r}; {did_you_mean(key, known) if known else 'it is empty'}")
    if CHECKSUM not in content:
        log.warning("feature file %s has no checksum: damage would not be noticed", path)
    elif content[CHECKSUM] != _checksum(content):
        raise _bad(path, "is damaged (wrong checksum); extract the features again")
    embeddings = _embeddings(content["embeddings"], path)
    labels = _labels(content["labels"], path)
    count = len(embeddings)
    names, groups = _texts(content.get("img_names")), _texts(content.get("groups"))
    sites = {str(column): _texts(values) or () for column, values in (content.get("sites") or {}).items()}
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
        columns, target, places = typed_columns(sites)
    except HistobenchError as error:
        raise _bad(path, f"has a wrong target: {error}") from error
    return FeatureSet(
        embeddings=embeddings,
        labels=labels,
        img_names=names if names is not None else tuple(f"image-{row}" for row in range(count)),
        groups=groups,
        metadata={**(metadata if isinstance(metadata, dict) else {}), SOURCE: str(path)},
        sites=columns,
        target=target,
        places=places,
    )


def check_pair(train: FeatureSet, test: FeatureSet) -> None:
    """Raise unless two feature sets can be used together: dimension, classes, encoder."""
    first = train.metadata.get(SOURCE, "the training features")
    second = test.metadata.get(SOURCE, "the test features")

    def differ(what: str, one: Any, other: Any) -> HistobenchError:
        return HistobenchError(
            f"{first} and {second} differ in {what} ({_short(one)} and {_short(other)}): extract both with "
            "the same settings and class map"
        )

    if train.embeddings.shape[1] != test.embeddings.shape[1]:
        raise differ("dimension", train.embeddings.shape[1], test.embeddings.shape[1])
    for key, what in (
        ("encoder", "encoder"),
        ("size", "image size"),
        ("encoder_fingerprint", "weights, transform or precision"),
        ("classes", "classes"),
    ):
        one, other = train.metadata.get(key), test.metadata.get(key)
        if one is not None and other is not None and one != other:
            raise differ(what, one, other)
    unknown = sorted(set(test.labels.tolist()) - set(train.labels.tolist()))
    if unknown:
        raise HistobenchError(
            f"{second} has label {', '.join(map(str, unknown))}, which {first} never shows: "
            "every class of the test set needs training images"
        )


def _checksum(content: dict[str, Any]) -> str:
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
    except Exception as error:  # truncated archives raise many kinds: RuntimeError, EOFError, KeyError, ...
        why = "is damaged, or holds more than plain arrays (code is not run); extract the features again"
        raise _bad(path, why) from error


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
    if tensor.ndim != 2 or not tensor.numel():
        raise _bad(path, f"has embeddings of shape {tuple(tensor.shape)}; expected [images, dimension]")
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


def _texts(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist()
    return tuple(item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in value)


def _bad(path: Path, what: str) -> HistobenchError:
    return HistobenchError(f"feature file {path} {what}")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:12] + "..."
