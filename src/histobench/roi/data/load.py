"""The one door for datasets: a CSV file, a folder, TAR shards, or the name of a public dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from histobench.core.parameters import shares
from histobench.roi.data.dataset import RoiDataset
from histobench.roi.data.problem import Reading
from histobench.roi.data.source import DatasetSource, Fractions


def load_dataset(
    source: str | Path,
    *,
    classes_file: str | Path | None = None,
    name: str | None = None,
    split: str | Fractions | None = None,
    group_regex: str | None = None,
    group_column: str | None = None,
    site_regex: str | None = None,
    site_columns: Sequence[str] = (),
    seed: int = 0,
) -> RoiDataset:
    """The dataset of a CSV file, a folder or TAR shards; see `DatasetSource` for the arguments."""
    return DatasetSource(
        str(source),
        classes_file=None if classes_file is None else str(classes_file),
        name=name,
        split=None if split is None else shares(split, "split"),
        group_regex=group_regex,
        group_column=group_column,
        site_regex=site_regex,
        site_columns=tuple(site_columns),
        seed=seed,
    ).load()


def scan_dataset(source: str | Path, *, classes_file: str | Path | None = None) -> Reading:
    """A dataset that says itself how it is split, with what is wrong beside what could be read."""
    return DatasetSource(str(source), None if classes_file is None else str(classes_file)).read()
