"""Finds an encoder's weights: the user's own file first, the published one otherwise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.roi.encoders.download import fetch_from_hub, fetch_from_url, find_in_cache
from histobench.roi.encoders.spec import EncoderSpec

SUFFIXES = (".safetensors", ".bin", ".pth", ".pt", ".torch", ".ckpt")
#: What a hub-style folder calls its checkpoint, best first.
HUB_FILES = (
    "model.safetensors",
    "pytorch_model.bin",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "model.pth",
)
#: Other names and forms in which people keep the same tokenizer beside a checkpoint.
STAND_INS = {
    "conch_byte_level_bpe_uncased.json": ("tokenizer.json",),
    "tokenizer.json": ("vocab.txt",),
    "tokenizer.spm": ("sentencepiece.bpe.model", "tokenizer.model"),
}
TABLE = Path("model_utils") / "model_weights.json"


def resolve_weights(spec: EncoderSpec, weights: str | Path | None = None) -> Path:
    """The checkpoint file (or index of a sharded one) of `spec`, downloaded if need be and allowed.

    `weights` is a JSON table like `model_utils/model_weights.json`, a folder of checkpoints, or one
    checkpoint; without it `HISTOBENCH_WEIGHTS` and then the table of the current folder are asked.
    """
    local = find_local(spec, weights)
    if local is not None:
        return local
    source = spec.source
    if source.kind == "hub":
        return fetch_from_hub(spec, source.file)
    if source.kind == "url":
        return fetch_from_url(spec, source.url)
    if source.kind == "package":
        return _package_file(spec)
    raise HistobenchError(f"{spec.name} has no weights to load")


def find_weights(spec: EncoderSpec, weights: str | Path | None = None) -> Path | None:
    """The same without ever touching the network: None when the weights are not on this machine."""
    local = find_local(spec, weights)
    if local is not None:
        return local
    if spec.source.kind == "package":
        try:
            return _package_file(spec)
        except HistobenchError:
            return None
    return find_in_cache(spec, spec.source.file) if spec.source.kind in ("hub", "url") else None


def resolve_companion(spec: EncoderSpec, checkpoint: Path | None, file: str) -> Path:
    """A small file of the same release (a tokenizer): beside the checkpoint, or from the network."""
    if checkpoint is not None:
        for name in (file, *STAND_INS.get(file, ())):
            if (checkpoint.parent / name).is_file():
                return checkpoint.parent / name
    if spec.text is not None and spec.text.url:
        return fetch_from_url(spec, f"{spec.text.url}/{file}")
    if spec.source.kind == "hub":
        return fetch_from_hub(spec, file)
    raise HistobenchError(f"{spec.name} needs {file} beside its checkpoint")


def find_local(spec: EncoderSpec, weights: str | Path | None = None) -> Path | None:
    """The path the user has given for this encoder, checked to exist; None when there is none."""
    for place in _places(weights):
        if place.suffix == ".json" and not place.name.endswith(".index.json"):
            entry = _table_entry(place, spec)
            if entry is not None:
                return _checkpoint_in(entry, spec, given_by=str(place))
        elif place.is_dir():
            inside = _search_folder(place, spec)
            if inside is not None:
                return inside
        else:
            return _checkpoint_in(place, spec, given_by="the weights given")
    return None


def _places(weights: str | Path | None) -> list[Path]:
    """Where to look, in this order: the argument, the environment, the table of the current folder."""
    for given, by in (
        (weights, "the weights given"),
        (os.environ.get("HISTOBENCH_WEIGHTS"), "HISTOBENCH_WEIGHTS"),
    ):
        if given:
            path = Path(given).expanduser()
            if not path.exists():
                raise HistobenchError(f"{by}: {path} does not exist")
            return [path]
    here = [Path.cwd() / TABLE]
    # A source checkout has its own table; an installed package does not.
    root = Path(__file__).resolve().parents[4]
    if (root / "pyproject.toml").is_file():
        here.append(root / TABLE)
    return [table for table in dict.fromkeys(here) if table.is_file()]


def _table_entry(table: Path, spec: EncoderSpec) -> Path | None:
    entries = read_table(table)
    for name in (spec.full_name, spec.name, *spec.aliases):
        value = entries.get(name, "")
        if value:
            path = Path(value).expanduser()
            return path if path.is_absolute() else table.parent / path
    return None


def read_table(table: Path) -> dict[str, str]:
    """A table of checkpoint paths by encoder name, as in `model_utils/model_weights.json`."""
    try:
        content: Any = json.loads(table.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise HistobenchError(f"cannot read {table}: {error}") from error
    except json.JSONDecodeError as error:
        raise HistobenchError(f"{table} is not valid JSON: line {error.lineno}: {error.msg}") from error
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise HistobenchError(f'{table}: expected {{"encoder": "path or empty", ...}}')
    return content


def _search_folder(folder: Path, spec: EncoderSpec) -> Path | None:
    names = [spec.name, *spec.aliases]
    if spec.source.repo:
        owner, _, repo = spec.source.repo.partition("/")
        names += [repo, f"{owner}/{repo}", f"{owner}__{repo}", f"{owner}--{repo}"]
    for name in names:
        for suffix in SUFFIXES:
            if (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
        if (folder / name).is_dir():
            return _checkpoint_in(folder / name, spec, given_by=str(folder))
    return _file_of_folder(folder, spec)


def _checkpoint_in(path: Path, spec: EncoderSpec, *, given_by: str) -> Path:
    if path.is_file():
        if path.suffix not in SUFFIXES and not path.name.endswith(".index.json"):
            raise HistobenchError(
                f"{given_by}: {path} is not a checkpoint ({', '.join(SUFFIXES)} or a hub-style folder)"
            )
        return path
    if not path.exists():
        raise HistobenchError(f"{given_by}: the weights of {spec.name}, {path}, do not exist")
    inside = _file_of_folder(path, spec)
    if inside is None:
        wanted = spec.source.file or HUB_FILES[0]
        found = sorted(item.name for item in path.iterdir())
        raise HistobenchError(
            f"{given_by}: the folder {path} has no checkpoint of {spec.name} ({wanted}); "
            + (did_you_mean(wanted, found) if found else "it is empty")
        )
    return inside


def _file_of_folder(folder: Path, spec: EncoderSpec) -> Path | None:
    for name in (spec.source.file, Path(spec.source.file).name, *HUB_FILES):
        if name and (folder / name).is_file():
            return folder / name
    return None


def _package_file(spec: EncoderSpec) -> Path:
    from importlib.util import find_spec

    module = find_spec(spec.source.repo)
    if module is None or module.origin is None:
        package = spec.source.repo.replace("_", "-")
        raise HistobenchError(f"{spec.name} needs the package {package}; run: pip install {package}")
    path = Path(module.origin).parent / spec.source.file
    if not path.is_file():
        raise HistobenchError(f"the package {spec.source.repo} has no file {spec.source.file}; reinstall it")
    return path
