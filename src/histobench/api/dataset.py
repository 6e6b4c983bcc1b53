"""Datasets for Python users: loaded, looked at, checked."""

from __future__ import annotations

import html
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError
from histobench.core.parameters import (
    InvalidParameterError,
    file_path,
    renamed,
    shares,
    text,
    texts,
    whole_number,
)
from histobench.core.text import check_plain_name

#: Problems of a DataFrame that are spelled out.
_SHOWN = 3

if TYPE_CHECKING:
    import pandas as pd

    from histobench.api.frame_table import FrameTable
    from histobench.roi.data.check import Findings
    from histobench.roi.data.roi_dataset import Reading, RoiDataset


@dataclass(frozen=True, repr=False)
class Dataset:
    """A dataset with its splits; `source` says how it was read, so that it can be read again."""

    reading: Reading
    source: Mapping[str, Any]
    seed: int | None = None  # of the split, where one was drawn
    table: FrameTable | None = None  # of the DataFrame, where the images come from one

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

        if workers is not None:
            workers = whole_number(workers, "workers", least=0)
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
    split: str | Sequence[float] | None = None,
    classes: str | Path | None = None,
    group_regex: str | None = None,
    group_column: str | None = None,
    site_regex: str | None = None,
    site_columns: str | Sequence[str] = (),
    seed: int = 0,
) -> Dataset:
    """Read a folder of class folders, a CSV, TAR shards, a public dataset by name, or a DataFrame.

    Parameters
    ----------
    source : the data; a DataFrame has columns of paths and labels, and may have splits and groups. Relative
        paths are meant from the current folder as it is now, for a CSV's images from the CSV's folder
    name : what the dataset is called in tables (default: the file's or folder's name)
    split : shares of train/val/test where the data has none: "0.7/0.1/0.2" or (0.7, 0.1, 0.2); two are
        train/test
    classes : class map file (default: from the folders or labels)
    group_regex : finds the patient or slide in a path; groups are never divided between splits
    group_column : column of the table with the patient or slide (default: group)
    site_regex : finds hospital, scanner or stain in a path, as named groups of the expression
    site_columns : columns with hospital, scanner, stain, ... (default: site, scanner, stain, ... where there)
    seed : of the split, a whole number
    """
    from histobench.api.frame_table import write_frame
    from histobench.roi.data.roi_dataset import listing
    from histobench.roi.data.source import DatasetSource

    seed = whole_number(seed, "seed", least=0)
    given: dict[str, Any] = {
        parameter: None if value is None else text(value, parameter)
        for parameter, value in (("name", name), ("group_column", group_column))
    }
    for parameter, regex in (("group_regex", group_regex), ("site_regex", site_regex)):
        if regex is not None and (not isinstance(regex, str) or not regex):
            found = "a compiled one; give its text" if isinstance(regex, re.Pattern) else repr(regex)
            raise InvalidParameterError(f"{parameter}: expected a regular expression, found {found}")
        given[parameter] = regex
    if given["name"] is not None:
        # Brackets and slashes are replaced in the names of files.
        check_plain_name(re.sub(r"[\[\]/\\]", "_", given["name"]), what="name:")
    given["split"] = None if split is None else shares(split, "split")
    nothing = site_columns is None or (isinstance(site_columns, list | tuple) and not site_columns)
    columns = () if nothing else tuple(texts(site_columns, "site_columns"))
    table = None
    if not isinstance(source, str | os.PathLike):
        asked = (*columns, *([given["group_column"]] if group_column else ()))
        table = write_frame(source, asked)
        given["name"] = given["name"] or "data"
    place = str(table.path) if table else _place(file_path(source, "source"))
    classes_file = None if classes is None else str(file_path(classes, "classes").expanduser().absolute())
    reading_from = DatasetSource(place, classes_file=classes_file, site_columns=columns, seed=seed, **given)
    with table.told_in_rows("source") if table else nullcontext(), renamed(class2id_txt="classes"):
        reading = reading_from.read()
    if table:
        reading = table.reading_in_rows(reading)
        if reading.problems:
            raise HistobenchError(f"source: {listing(reading.problems, shown=_SHOWN)}")
    reading.checked()
    noted = {"source": place, "class2id": classes_file, "site_columns": list(columns) or None, **given}
    known = {key: value for key, value in noted.items() if value is not None}
    return Dataset(reading, known, None if split is None else seed, table)


def _place(source: Path) -> str:
    """Where the source is, whatever the current folder will be; a public dataset keeps its name."""
    path = source.expanduser()
    return str(path.absolute()) if os.path.exists(path) else str(source)
