"""Datasets of the Hugging Face hub, or a local `datasets` folder, as a table of images.

`hf:OWNER/DATASET[@revision]` and `hf:FOLDER` name parquet or Arrow files whose image column holds encoded
images ({bytes, path}). Their bytes are copied once, unchanged, into a TAR archive of the cache, with a CSV
beside it; from there on they are read like any other table.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import atomic_path
from histobench.core.folders import cache_dir
from histobench.core.plain_data import parse_json
from histobench.roi.data.split import SPLIT_WORDS
from histobench.roi.registry.unpack import add_member, batches, suffix_of

HUB = "hf:"
#: Kinds of files that hold rows; of several kinds the first that a dataset has is read.
ROW_FILES = (".parquet", ".arrow")
_SPLIT = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|dev|test)(?:[^a-z]|$)", re.IGNORECASE)
#: The names of a table's own columns.
_TAKEN = ("image_path", "label", "split")


def is_hub_dataset(source: str | Path) -> bool:
    """Whether a source names a dataset of the hub, or a folder in its format."""
    return str(source).startswith(HUB)


def hub_name(source: str | Path) -> str:
    """What the dataset is called in tables: the last part of its name."""
    return Path(str(source).removeprefix(HUB).partition("@")[0]).name


def hub_table(
    source: str | Path,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
) -> Path:
    """The CSV of the dataset in the cache, made when it is not there; its other columns keep their names."""
    name = str(source).removeprefix(HUB)
    files = _files(name)
    stamp = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    asked = [image_column, label_column]
    key = hashlib.sha256(json.dumps([stamp, asked]).encode()).hexdigest()[:16]
    folder = cache_dir() / "hub-datasets" / f"{hub_name(source)}-{key}"
    table = folder / f"{hub_name(source)}.csv"
    if not table.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _write(name, files, folder, table, *asked)
    return table


def _files(name: str) -> list[Path]:
    place = Path(name).expanduser()
    folder = place if place.is_dir() else _download(name)
    for suffix in ROW_FILES:
        found = sorted(
            path
            for path in folder.rglob(f"*{suffix}")
            if path.is_file() and not path.name.startswith("cache-")
        )
        if found:
            return found
    raise HistobenchError(f"{HUB}{name}: no {' or '.join(ROW_FILES)} files in {folder}")


def _download(name: str) -> Path:
    repo, _, revision = name.partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise HistobenchError(f"{HUB}{name}: expected OWNER/DATASET, or a folder that exists")
    from huggingface_hub import snapshot_download

    wanted = [f"*{ROW_FILES[0]}"]
    try:
        return Path(
            snapshot_download(repo, repo_type="dataset", revision=revision or None, allow_patterns=wanted)
        )
    except Exception as error:
        # The library raises errors of several packages: network, sign-in, a name that does not exist.
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise HistobenchError(
            f"{HUB}{name}: cannot be downloaded from the hub ({line}); without a network give a folder: "
            f"{HUB}/path/to/folder"
        ) from error


def _write(
    name: str,
    files: Sequence[Path],
    folder: Path,
    table: Path,
    image_column: str | None,
    label_column: str | None,
) -> None:
    schema = next(iter(batches(files[0]))).schema
    image = _image_column(name, schema, image_column)
    label = _one_column(name, schema, label_column, "label", "label_column")
    names = _class_names(schema, label)
    others = [
        field.name
        for field in schema
        if field.name not in (image, label, *_TAKEN) and not _is_nested(field.type)
    ]
    images = folder / "images.tar"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    # Files of one split only do not say what to test on: the user's `split` does.
    splits = {_split_of(path) for path in files}
    with_splits = "" not in splits and {"train", "test"} <= splits
    writer.writerow(["image_path", "label", *(["split"] if with_splits else []), *others])
    with atomic_path(images) as temporary, tarfile.open(temporary, "w") as archive:
        number = 0
        for path in files:
            for batch in batches(path):
                missing = {image, label} - set(batch.schema.names)
                if missing:
                    raise HistobenchError(f"{path} has no column {sorted(missing)[0]!r}, unlike {files[0]}")
                for row in batch.to_pylist():
                    member = _add(archive, number, row[image], f"{path}: row {number}", path.parent)
                    values = [f"{images.name}/{member}", _text(row[label], names)]
                    values += [_split_of(path)] if with_splits else []
                    writer.writerow([*values, *(_text(row.get(other)) for other in others)])
                    number += 1
    with atomic_path(table) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")


def _add(archive: tarfile.TarFile, number: int, value: Any, where: str, beside: Path) -> str:
    """Copy one image into the archive; the name of its member."""
    content = value.get("bytes") if isinstance(value, dict) else value
    written = str(value.get("path") or "") if isinstance(value, dict) else ""
    if content is None and written:
        file = beside / written
        if not file.is_file() or not file.resolve().is_relative_to(beside.resolve()):
            raise HistobenchError(f"{where}: the image {written} is not beside the table")
        with open(file, "rb") as handle:
            content = handle.read()
    if not isinstance(content, bytes) or not content:
        raise HistobenchError(f"{where}: no image (expected encoded bytes, found {type(content).__name__})")
    member = f"{number:07d}{Path(written).suffix.lower() or suffix_of(content)}"
    add_member(archive, member, content)
    return member


def _image_column(name: str, schema: Any, asked: str | None) -> str:
    """The column of images: the one asked for, or the only one of encoded images."""
    if asked is not None:
        return _one_column(name, schema, asked, "image", "image_column")
    found = [field.name for field in schema if _is_image(field.type)]
    if len(found) == 1:
        return str(found[0])
    what = f"several columns of images ({', '.join(found)})" if found else "no column of images"
    raise HistobenchError(f"{HUB}{name} has {what}; name one with `image_column`: {', '.join(schema.names)}")


def _one_column(name: str, schema: Any, asked: str | None, usual: str, option: str) -> str:
    wanted = asked or usual
    if wanted in schema.names:
        return wanted
    listed = ", ".join(schema.names)
    hint = did_you_mean(wanted, schema.names) if asked else f"name it with `{option}`: {listed}"
    raise HistobenchError(f"{HUB}{name} has no column {wanted!r}; {hint}")


def _is_nested(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _is_image(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_struct(kind):
        return "bytes" in {kind.field(index).name for index in range(kind.num_fields)}
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _class_names(schema: Any, label: str) -> list[str]:
    """The names of the classes, which the `datasets` library keeps in the schema's notes."""
    note = (schema.metadata or {}).get(b"huggingface")
    try:
        features = parse_json(note.decode())["info"]["features"] if note else {}
        return [str(each) for each in features[label]["names"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _text(value: Any, names: Sequence[str] = ()) -> str:
    if names and isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return "" if value is None else str(value)


def _split_of(path: Path) -> str:
    """The split that the name of a file or of its folder says; empty for none."""
    for part in (path.stem, path.parent.name):
        found = _SPLIT.search(part)
        if found:
            return SPLIT_WORDS[found[1].lower()]
    return ""
