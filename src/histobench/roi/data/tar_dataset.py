"""Datasets in TAR shards of the WebDataset layout: `key.jpg` beside `key.cls` or `key.json`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.plain_data import parse_json
from histobench.core.plain_file import open_plain
from histobench.roi.data.dataset import RoiDataset, RoiImage
from histobench.roi.data.folder_dataset import IMAGE_SUFFIXES
from histobench.roi.data.image_names import image_names
from histobench.roi.data.image_ref import tar_members
from histobench.roi.data.labels import classes_of, label_reader
from histobench.roi.data.problem import Problem, Reading
from histobench.roi.data.sites import (
    Sites,
    as_sites,
    check_site_names,
    sites_in_path,
    wanted_columns,
)
from histobench.roi.data.split import SPLIT_WORDS, arrange, group_of

_LABEL_KEYS = ("label", "cls", "class")


@dataclass(frozen=True)
class _Sample:
    """One listed image, still as text."""

    path: Path  # shard.tar/member
    split: str | None
    label: str
    group: str | None
    sites: Sites


def shards_in(folder: Path) -> list[Path]:
    """The TAR files of a folder, or of its train/val/test folders, sorted."""
    below = [
        entry
        for entry in folder.iterdir()
        if entry.is_dir() and SPLIT_WORDS.get(entry.name.lower()) is not None
    ]
    return sorted(path for place in (folder, *below) for path in place.glob("*.tar") if path.is_file())


def scan_tar(
    source: str | Path,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    *,
    split: tuple[float, float, float] | None = None,
    group_regex: str | None = None,
    site_regex: str | None = None,
    site_columns: Sequence[str] = (),
    seed: int = 0,
) -> Reading:
    """Read one shard, or a folder of shards whose names or folders begin with train, val or test.

    The label is the text of `key.cls`, or `label` in `key.json`, which may also hold a `group` and sites.
    """
    source = Path(source)
    shards = shards_in(source) if source.is_dir() else [source]
    problems: list[Problem] = []
    check_site_names(site_columns)
    samples = [sample for shard in shards for sample in _samples(shard, problems, site_columns)]
    if split is None:
        unplaced = next((sample.path.parent for sample in samples if sample.split is None), None)
        if unplaced is not None:
            raise HistobenchError(
                f"{unplaced}: the name does not begin with train, val or test; give `split` 0.7/0.1/0.2"
            )
    if not samples and not problems:
        raise HistobenchError(f"{source} holds no images with labels (expected key.jpg beside key.cls)")
    texts = [sample.label for sample in samples]
    classes = tuple(classes) if classes is not None else classes_of(texts)
    read_label = label_reader(texts, classes)
    base = source if source.is_dir() else source.parent
    known_as = image_names([sample.path.relative_to(base).as_posix() for sample in samples])
    placed: list[tuple[str | None, RoiImage]] = []
    for sample, image_name in zip(samples, known_as, strict=True):
        origin = str(sample.path)
        group = sample.group if group_regex is None else group_of(image_name, group_regex)
        if group_regex is not None and group is None:
            message = f"`group_regex` {group_regex!r} finds no group in {image_name!r}"
            problems.append(Problem(origin, message, "groups", same=f"group {group_regex}"))
            continue
        found = {} if site_regex is None else sites_in_path(image_name, site_regex)
        if found is None:
            message = f"`site_regex` {site_regex!r} finds no site in {image_name!r}"
            problems.append(Problem(origin, message, "sites", same=f"site {site_regex}"))
            continue
        try:
            label = read_label(sample.label)
        except HistobenchError as error:
            problems.append(Problem(origin, str(error), "label"))
            continue
        sites = as_sites({**dict(sample.sites), **found})
        placed.append((sample.split, RoiImage(sample.path, label, image_name, origin, group, sites)))
    dataset = RoiDataset(name or source.stem, classes, arrange(placed, split, seed=seed))
    return Reading(dataset, tuple(problems))


def _samples(shard: Path, problems: list[Problem], site_columns: Sequence[str]) -> list[_Sample]:
    members = tar_members(str(shard))
    by_key: dict[str, dict[str, str]] = defaultdict(dict)
    for member in members:
        # As WebDataset has it: the key ends at the first dot of the file name.
        match = re.fullmatch(r"((?:.*/)?[^/]+?)\.([^/]*)", member)
        if match and not match[1].rpartition("/")[2].startswith("."):
            by_key[match[1]][f".{match[2].lower()}"] = member
    samples = []
    with open_plain(shard) as handle:

        def text_of(member: str) -> str:
            offset, size = members[member]
            handle.seek(offset)
            return handle.read(size).decode("utf-8-sig", "replace").strip()

        for parts in by_key.values():
            image = next((parts[suffix] for suffix in IMAGE_SUFFIXES if suffix in parts), None)
            if image is None:
                continue
            origin = shard / image
            about = _about(text_of(parts[".json"])) if ".json" in parts else {}
            written = [str(about[key]) for key in _LABEL_KEYS if key in about]
            label = text_of(parts[".cls"]) if ".cls" in parts else next(iter(written), "")
            if not label:
                problems.append(Problem(str(origin), "no label (expected .cls, or .json with 'label')"))
                continue
            group = str(about["group"]) if about.get("group") not in (None, "") else None
            said = {str(key).lower(): value for key, value in about.items()}
            named = wanted_columns(said, site_columns)
            sites = as_sites({name: "" if said[name] is None else str(said[name]) for name in named})
            samples.append(_Sample(origin, _split_of(shard), label, group, sites))
    return samples


def _about(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _split_of(shard: Path) -> str | None:
    word = re.match(r"[a-z]*", shard.name.lower())
    return SPLIT_WORDS.get(word[0] if word else "") or SPLIT_WORDS.get(shard.parent.name.lower())
