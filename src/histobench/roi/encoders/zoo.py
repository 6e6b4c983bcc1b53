"""Reads the zoo: the encoders that come with histobench, and the user's own YAML files."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

import yaml

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.plain_data import read_yaml
from histobench.roi.encoders.encoder_spec import EncoderSpec, parse_spec

BUILT_IN = Path(__file__).with_name("zoo.yaml")


def load_zoo(*extra: str | Path) -> dict[str, EncoderSpec]:
    """All encoders by name: the built-in ones, those of `HISTOBENCH_ZOO` (files), and those of `extra`."""
    paths = [Path(part) for part in os.environ.get("HISTOBENCH_ZOO", "").split(os.pathsep) if part]
    zoo: dict[str, EncoderSpec] = {}
    for path in (BUILT_IN, *paths, *map(Path, extra)):
        zoo.update(_read_file(path, path.stat().st_mtime_ns if path.exists() else 0))
    aliases_of(zoo)
    return zoo


def aliases_of(zoo: dict[str, EncoderSpec]) -> dict[str, str]:
    """Other names under which the encoders and their outputs are known, each with the name used here."""
    names: dict[str, str] = {}
    for spec in zoo.values():
        outputs = {
            variant.alias: f"{spec.name}@{key}" for key, variant in spec.variants.items() if variant.alias
        }
        for alias, name in (dict.fromkeys(spec.aliases, spec.name) | outputs).items():
            if alias in zoo or names.setdefault(alias, name) != name:
                raise HistobenchError(f"zoo: the name {alias!r} of {spec.name} is taken")
    return names


@lru_cache(maxsize=16)
def _read_file(path: Path, stamp: int) -> dict[str, EncoderSpec]:
    """The entries of one file; `stamp` makes an edited file be read again."""
    content = read_yaml(read_plain_text(path), where=str(path), loader=_Loader)
    if not isinstance(content, dict):
        raise HistobenchError(f"{path}: expected one entry per encoder (name: fields)")
    return {str(name): parse_spec(str(name), entry, where=path.name) for name, entry in content.items()}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe YAML loader, for which `1e-5` is a number, too."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
