"""Datasets for Python users: loaded, looked at, checked."""

from __future__ import annotations

import hashlib
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    import pandas as pd

    from histobench.roi.data.check import Findings
    from histobench.roi.data.dataset import RoiDataset
    from histobench.roi.data.problem import Reading

#: What a column of a DataFrame may be called.
_COLUMNS = {
    "image_path": ("image_path", "path", "paths", "file", "filename", "image"),
    "label": ("label", "labels", "class"),
    "split": ("split", "splits"),
    "group": ("group", "groups", "patient", "slide"),
}


@dataclass(frozen=True, repr=False)
class Dataset:
    """A dataset with its splits; `source` says how it was read, so that it can be read again."""

    reading: Reading
    source: Mapping[str, Any]
    seed: int | None = None  # of the split, where one was drawn

    @property
    def name(self) -> str:
        """Its name in tables and files."""
        return self.roi.name

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; the class id is the position."""
        return self.roi.classes

    @property
    def roi(self) -> RoiDataset:
        """The dataset as the rest of histobench knows it."""
        return self.reading.dataset

    def __len__(self) -> int:
        return sum(len(images) for images in self.roi.splits.values())

    def frame(self) -> pd.DataFrame:
        """One row per image: path, label, class, split, group."""
        import pandas as pd

        rows = [
            (str(image.path), image.label, self.classes[image.label], split, image.group)
            for split, images in self.roi.splits.items()
            for image in images
        ]
        return pd.DataFrame(rows, columns=["image", "label", "class", "split", "group"])

    def check(self, *, workers: int | None = None) -> Findings:
        """Look at every image and at the splits; errors and warnings come back as objects."""
        from histobench.roi.data.check import check_dataset

        return check_dataset(self.reading, workers=workers)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(images):,} {split}" for split, images in self.roi.splits.items())
        groups = {image.group for images in self.roi.splits.values() for image in images} - {None}
        return f"Dataset {self.name!r}: {len(self.classes)} classes, {counts} images" + (
            f", {len(groups):,} groups" if groups else ", no groups"
        )

    def _repr_html_(self) -> str:
        splits = list(self.roi.splits)
        counts = {split: Counter(image.label for image in self.roi.splits[split]) for split in splits}
        head = "".join(f"<th>{html.escape(text)}</th>" for text in ("class", *splits))
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td>"
            + "".join(f"<td style='text-align:right'>{counts[split][label]:,}</td>" for split in splits)
            + "</tr>"
            for label, name in enumerate(self.classes)
        )
        return f"<p>{html.escape(repr(self))}</p><table><tr>{head}</tr>{rows}</table>"


def load_dataset(
    source: str | Path | pd.DataFrame,
    *,
    name: str | None = None,
    split: str | None = None,
    classes: str | Path | None = None,
    group_regex: str | None = None,
    group_column: str | None = None,
    site_regex: str | None = None,
    site_columns: Sequence[str] = (),
    seed: int = 0,
) -> Dataset:
    """Read a folder of class folders, a CSV, TAR shards, a public dataset by name, or a DataFrame.

    Parameters
    ----------
    source : the data; a DataFrame has columns of paths and labels, and may have splits and groups
    name : what the dataset is called in tables (default: the file's or folder's name)
    split : shares of train/val/test where the data has none, such as "0.7/0.1/0.2"
    classes : class map file (default: from the folders or labels)
    group_regex : finds the patient or slide in a path; groups are never divided between splits
    group_column : column of the CSV with the patient or slide (default: group)
    site_regex : finds hospital, scanner or stain in a path, as named groups of the expression
    site_columns : columns with hospital, scanner, stain, ... (default: site, scanner, stain, ... where there)
    seed : of the split
    """
    from histobench.roi.data.source import DatasetSource

    if not isinstance(source, str | Path):
        asked = (*site_columns, *([group_column] if group_column else ()))
        source, name = _written(source, asked), name or "data"
    given = {
        "source": str(source),
        "class2id": None if classes is None else str(classes),
        "name": name,
        "split": split,
        "group_regex": group_regex,
        "group_column": group_column,
        "site_regex": site_regex,
        "site_columns": list(site_columns) or None,
    }
    reading = DatasetSource(
        str(source),
        classes_file=None if classes is None else str(classes),
        name=name,
        split=split,
        group_regex=group_regex,
        group_column=group_column,
        site_regex=site_regex,
        site_columns=tuple(site_columns),
        seed=seed,
    ).read()
    reading.checked()
    known = {key: value for key, value in given.items() if value is not None}
    return Dataset(reading, known, None if split is None else seed)


def _written(frame: pd.DataFrame, more: Sequence[str]) -> Path:
    """The DataFrame as the long CSV, kept in the cache folder under the hash of its content."""
    from histobench.core.atomic import write_text
    from histobench.core.cache_folder import cache_dir

    if not hasattr(frame, "columns"):
        raise HistobenchError(f"source: expected a path, a name or a DataFrame, found {type(frame).__name__}")
    chosen: dict[str, Any] = {}
    for column, names in _COLUMNS.items():
        # By the order of the names, not of the columns: a patient comes before a slide.
        fitting = (item for name in names for item in frame.columns if str(item).lower() == name)
        found = next(fitting, None)
        if found is not None:
            chosen[column] = frame[found]
    for column in ("image_path", "label"):
        if column not in chosen:
            known = ", ".join(map(str, frame.columns))
            raise HistobenchError(f"source: the DataFrame has no column {column!r} (it has: {known})")
    for column in more:
        if column not in frame.columns:
            known = ", ".join(map(str, frame.columns))
            raise HistobenchError(f"source: the DataFrame has no column {column!r} (it has: {known})")
        chosen[column] = frame[column]
    from histobench.roi.data.sites import SITE_COLUMNS

    chosen.update({str(item): frame[item] for item in frame.columns if str(item).lower() in SITE_COLUMNS})
    import pandas as pd

    table = pd.DataFrame(chosen)
    table["image_path"] = [str(Path(str(path)).expanduser().absolute()) for path in table["image_path"]]
    text = table.to_csv(index=False)
    target = cache_dir() / "frames" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.csv"
    write_text(target, text)
    return target
