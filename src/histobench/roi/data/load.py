"""The one door for datasets: a CSV file, a folder, TAR shards, or the name of a public dataset."""

from __future__ import annotations

from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.roi.data.class_map import read_class_map
from histobench.roi.data.csv_dataset import scan_csv
from histobench.roi.data.dataset import RoiDataset
from histobench.roi.data.folder_dataset import scan_folder
from histobench.roi.data.problem import Reading
from histobench.roi.data.split import parse_fractions
from histobench.roi.data.tar_dataset import scan_tar, shards_in
from histobench.roi.registry.catalogue import is_name
from histobench.roi.registry.install import require

Fractions = tuple[float, float, float]


def load_dataset(
    source: str | Path,
    *,
    classes_file: str | Path | None = None,
    name: str | None = None,
    split: str | Fractions | None = None,
    group_regex: str | None = None,
    group_column: str | None = None,
    seed: int = 0,
) -> RoiDataset:
    """The dataset of a CSV file, a folder or TAR shards; all that is wrong with it is one error.

    Without a class map the classes are the sorted names (folders, or labels that are names), or the ids.
    """
    return scan_dataset(
        source,
        classes_file=classes_file,
        name=name,
        split=split,
        group_regex=group_regex,
        group_column=group_column,
        seed=seed,
    ).checked()


def scan_dataset(
    source: str | Path,
    *,
    classes_file: str | Path | None = None,
    name: str | None = None,
    split: str | Fractions | None = None,
    group_regex: str | None = None,
    group_column: str | None = None,
    seed: int = 0,
) -> Reading:
    """As `load_dataset`, but what is wrong comes back beside what could be read."""
    if not Path(source).exists() and is_name(str(source)):
        public = require(str(source))
        source, name = public.table, name or public.name
        classes_file = classes_file or public.classes_file
    source = Path(source)
    if not source.exists() and not source.suffix:
        raise HistobenchError(
            f"{source} does not exist (expected a CSV file, a folder of class folders,"
            " TAR shards, or a name of: histobench data list)"
        )
    fractions = parse_fractions(split) if isinstance(split, str) else split
    classes = read_class_map(classes_file) if classes_file is not None else None
    is_shards = source.suffix.lower() == ".tar" or (source.is_dir() and shards_in(source))
    if group_column is not None and (is_shards or source.is_dir()):
        raise HistobenchError(f"{source} has no columns; use --group-regex, or give a CSV")
    if is_shards:
        return scan_tar(source, classes, name, split=fractions, group_regex=group_regex, seed=seed)
    if not source.is_dir():
        return scan_csv(
            source,
            classes,
            name,
            split=fractions,
            group_regex=group_regex,
            group_column=group_column,
            seed=seed,
        )
    return scan_folder(source, classes, name, split=fractions, group_regex=group_regex, seed=seed)
