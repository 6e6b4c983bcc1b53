"""One public dataset as data: files, layout, classes, splits, and what of it is not confirmed."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import yaml

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.records import Entry, read_entry

#: How a checksum or a count is known: two independent sources, one source, or not confirmed at all.
CONFIDENCES = ("A", "B", "C")
#: open: a plain download; token: a gated hub; form: files come by request and are put in place by hand.
ACCESS = ("open", "token", "form")


@dataclass(frozen=True)
class RemoteFile(Entry):
    """A file to fetch; `bytes`, `md5` and `sha256` are None where no one published them."""

    name: str
    url: str | None = None
    bytes: int | None = None
    md5: str | None = None
    sha256: str | None = None
    confidence: str | None = field(default=None, metadata={"words": CONFIDENCES})
    confirmed_by: tuple[str, ...] = ()
    note: str | None = None
    size_text: str | None = None

    @property
    def pinned(self) -> bool:
        return bool(self.md5 or self.sha256)


@dataclass(frozen=True)
class PeerSplit(Entry):
    """A published split under its name (`bach@eva`); `rule` says how it is drawn."""

    name: str
    rule: str
    options: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    md5: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class DatasetFacts(Entry):
    """Where the license of a dataset was read, and when."""

    date: str
    license: str


@dataclass(frozen=True)
class PublicDataset(Entry):
    """An entry of `datasets.yaml`."""

    name: str
    title: str
    task: str
    organ: str
    license: str
    facts: DatasetFacts
    access: str = field(metadata={"words": ACCESS})
    homepage: str
    citation: str
    files: tuple[RemoteFile, ...]
    layout: tuple[Mapping[str, Any], ...]
    classes: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    counts_confidence: str = "B"
    image: Mapping[str, Any] = field(default_factory=dict)
    official_split: str = "none"
    splits: Mapping[str, PeerSplit] = field(default_factory=dict)
    group: str | None = None
    sites: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None
    recommended: str | None = None  # the published split that is meant where none is asked for
    instructions: str | None = None
    unconfirmed: tuple[str, ...] = ()
    traps: tuple[str, ...] = ()
    prompts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def size_text(self) -> str:
        """The size for people: "12.5 GB", "about 10.4 GB", "at least 3.1 GB", or "size not published"."""
        stated = [file.size_text for file in self.files if file.size_text]
        known = sum(file.bytes or 0 for file in self.files)
        if not known:
            return f"about {' + '.join(stated)}" if stated else "size not published"
        whole = all(file.bytes is not None for file in self.files)
        return size_in_words(known) if whole else f"at least {size_in_words(known)}"

    @property
    def site_columns(self) -> tuple[str, ...]:
        """The columns beside the group (site, scanner, slide ...) that its table has."""
        names = dict.fromkeys(self.sites)
        for rule in self.layout:
            names |= dict.fromkeys((*rule.get("columns", ()), *rule.get("site_columns", ())))
            names |= dict.fromkeys(re.findall(r"\(\?P<(\w+)>", rule.get("path", "")))
        return tuple(name for name in names if name not in ("label", "split", "group"))

    def split(self, name: str) -> PeerSplit:
        if name not in self.splits:
            known = ", ".join(f"{self.name}@{split}" for split in self.splits) or "none"
            raise HistobenchError(f"{self.name} has no split {name!r}; published splits: {known}")
        return self.splits[name]


def size_in_words(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


@functools.cache
def all_datasets() -> dict[str, PublicDataset]:
    text = resources.files("histobench.roi.registry").joinpath("datasets.yaml").read_text(encoding="utf-8")
    found = {}
    for name, raw in yaml.safe_load(text).items():
        splits = {split: {"name": split, **entry} for split, entry in raw.get("splits", {}).items()}
        entry = {**raw, "name": name, "splits": splits}
        found[name] = read_entry(PublicDataset, entry, f"dataset registry, {name}")
    return found


def find(name: str) -> tuple[PublicDataset, str | None]:
    """The dataset and, for `bach@eva`, the published split."""
    base, _, split = name.partition("@")
    datasets = all_datasets()
    if base not in datasets:
        raise HistobenchError(f"no public dataset is called {base!r}; {did_you_mean(base, datasets)}")
    if split:
        datasets[base].split(split)
    return datasets[base], split or None


def not_found(text: str) -> str:
    """What to say of a source that is neither a file nor a public dataset."""
    text = text[:300]
    folder = os.path.dirname(text) or "."
    there = os.listdir(folder) if os.path.isdir(folder) else []
    beside = [os.path.normpath(os.path.join(folder, name)) for name in there]
    hint = did_you_mean(text, [*all_datasets(), *beside])
    if hint.startswith("did you mean"):
        return f"{text} does not exist; {hint}"
    return (
        f"{text} does not exist (expected a CSV file, a folder of class folders, TAR shards, "
        "hf:OWNER/DATASET, or a name of: histobench data list)"
    )


def is_name(text: str) -> bool:
    return text.partition("@")[0] in all_datasets()


def select(
    *, organ: str | None = None, license: str | None = None, site: bool = False, open_only: bool = False
) -> list[PublicDataset]:
    """The datasets of an organ, with a license (by its beginning), with sites, openly downloadable."""
    return [
        entry
        for entry in all_datasets().values()
        if (organ is None or organ.lower() in entry.organ.lower())
        and (license is None or entry.license.lower().startswith(license.lower()))
        and (not site or "site" in entry.site_columns)
        and (not open_only or entry.access == "open")
    ]
