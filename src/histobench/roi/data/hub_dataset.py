"""Datasets of the Hugging Face hub, or a local `datasets` folder: images copied once into a TAR."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, write_text
from histobench.core.folders import cache_dir
from histobench.core.plain_data import parse_json
from histobench.core.text import csv_text
from histobench.roi.data.split import SPLIT_WORDS
from histobench.roi.registry.unpack import add_member, batches, suffix_of

HUB = "hf:"
ROW_FILES = (".parquet", ".arrow")
_SPLIT = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|dev|test)(?:[^a-z]|$)", re.IGNORECASE)
#: The names of a table's own columns.
_TAKEN = ("image_path", "label", "split")
_ENCODED = ("binary", "large_binary")


def is_hub_dataset(source: str | Path) -> bool:
    """Whether a source names a dataset of the hub, or a folder in its format."""
    return str(source).startswith(HUB)


def hub_name(source: str | Path) -> str:
    """What the dataset is called in tables: the last part of its name."""
    return Path(str(source).removeprefix(HUB).partition("@")[0]).name


def hub_table(
    source: str | Path, *, image_column: str | None = None, label_column: str | None = None
) -> Path:
    """The CSV of the dataset in the cache, made when it is not there; its other columns keep their names."""
    name = str(source).removeprefix(HUB)
    files = _files(name)
    stamp = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    asked = [image_column, label_column]
    key = hashlib.sha256(json.dumps([stamp, asked]).encode()).hexdigest()[:16]
    table = cache_dir() / "hub-datasets" / f"{hub_name(source)}-{key}" / f"{hub_name(source)}.csv"
    if not table.is_file():
        _write(name, files, table, *asked)
    return table


def _files(name: str) -> list[Path]:
    place = Path(name).expanduser()
    folder = place if place.is_dir() else _download(name)
    for suffix in ROW_FILES:
        found = sorted(path for path in folder.rglob(f"*{suffix}") if not path.name.startswith("cache-"))
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
    name: str, files: Sequence[Path], table: Path, image_column: str | None, label_column: str | None
) -> None:
    schema = next(iter(batches(files[0]))).schema
    image = _image_column(name, schema, image_column)
    label = _one_column(name, schema, label_column, "label", "label_column")
    names = _class_names(schema, label)
    taken = (image, label, *_TAKEN)
    plain = [field.name for field in schema if not field.type.num_fields and str(field.type) not in _ENCODED]
    others = [name for name in plain if name not in taken]
    # Files of one split only do not say what to test on: the user's `split` does.
    splits = {_split_of(path) for path in files}
    with_splits = "" not in splits and {"train", "test"} <= splits
    rows: list[list[str]] = []
    images = table.with_name("images.tar")
    with atomic_path(images) as temporary, tarfile.open(temporary, "w") as archive:
        for path in files:
            for row in (row for batch in batches(path) for row in batch.to_pylist()):
                member = _add(archive, len(rows), row[image], f"{path}: row {len(rows)}")
                values = [f"{images.name}/{member}", _text(row[label], names)]
                values += [_split_of(path)] if with_splits else []
                rows.append([*values, *(_text(row.get(other)) for other in others)])
    write_text(table, csv_text(["image_path", "label", *(["split"] if with_splits else []), *others], rows))


def _add(archive: tarfile.TarFile, number: int, value: Any, where: str) -> str:
    """Copy one image into the archive; the name of its member."""
    content, written = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, "")
    if not isinstance(content, bytes) or not content:
        raise HistobenchError(f"{where}: no image (expected encoded bytes, found {type(content).__name__})")
    member = f"{number:07d}{Path(written or '').suffix.lower() or suffix_of(content)}"
    add_member(archive, member, content)
    return member


def _image_column(name: str, schema: Any, asked: str | None) -> str:
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
    raise HistobenchError(
        f"{HUB}{name} has no column {wanted!r}; name it with `{option}`: {', '.join(schema.names)}"
    )


def _is_image(kind: Any) -> bool:
    is_encoded = str(kind).startswith("struct<") and kind.get_field_index("bytes") >= 0
    return is_encoded or str(kind) in _ENCODED


def _class_names(schema: Any, label: str) -> list[str]:
    """The names of the classes, which the `datasets` library keeps in the schema's notes."""
    note = parse_json((schema.metadata or {}).get(b"huggingface", "{}"))
    feature = note.get("info", {}).get("features", {}).get(label) or {}
    return [str(each) for each in feature.get("names", ())]


def _text(value: Any, names: Sequence[str] = ()) -> str:
    if names and isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return "" if value is None else str(value)


def _split_of(path: Path) -> str:
    """The split that the name of a file or of its folder says; empty for none."""
    found = _SPLIT.search(path.stem) or _SPLIT.search(path.parent.name)
    return SPLIT_WORDS[found[1].lower()] if found else ""
