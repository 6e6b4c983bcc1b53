"""Datasets for Python users: loaded, looked at, checked."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from histobench.core.errors import HistobenchError
from histobench.core.files import check_writable
from histobench.core.records import checked, from_values
from histobench.core.renamed import Renamed, renamed_parameters

if TYPE_CHECKING:
    from histobench.roi.data.check import Findings
    from histobench.roi.data.roi_dataset import Reading, RoiDataset


@dataclass(frozen=True, repr=False)
class Dataset:
    """A dataset with its splits; `load_dataset` and `demo_dataset` return one.

    `len(data)` is the number of images.

    Attributes
    ----------
    name : str
        Its name in tables and files.
    classes : tuple of str
        Class names; the class id is the position.
    seed : int or None
        Seed of the split, if one was drawn.

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> data = hb.demo_dataset(tempfile.mkdtemp(), train_per_class=3, test_per_class=2, size=64)
    >>> len(data), data.to_frame().columns.tolist()
    (45, ['image', 'label', 'class', 'split', 'group'])
    """

    _reading: Reading
    #: How it was read, so that it can be read again.
    _source: Mapping[str, Any]
    seed: int | None = None

    @property
    def name(self) -> str:
        """Its name in tables and files."""
        return self._roi.name

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; the class id is the position."""
        return self._roi.classes

    @property
    def _roi(self) -> RoiDataset:
        return self._reading.dataset

    def __len__(self) -> int:
        return sum(len(images) for images in self._roi.splits.values())

    frame = Renamed("to_frame")

    def to_frame(self) -> pd.DataFrame:
        """Return one row per image.

        Returns
        -------
        pandas.DataFrame
            image (path), label (class id), class (name), split, group (patient or slide); sites such as
            hospital and scanner, and the columns of another target than a class, where there are any.
        """
        target = self._roi.target
        names = target.names if target is not None and target.width else ()
        rows = [
            {
                "image": str(image.path),
                "label": image.label,
                "class": self.classes[image.label],
                "split": split,
                "group": image.group,
                **dict(image.sites),
                **dict(zip(names, image.target, strict=True)),
            }
            for split, images in self._roi.splits.items()
            for image in images
        ]
        return pd.DataFrame(rows)

    def check(self, *, workers: int | None = None) -> Findings:
        """Check every image and the splits before measuring.

        Parameters
        ----------
        workers : int, optional
            Processes that open images (default: one per core; 0: this process).

        Returns
        -------
        Findings
            `.errors` and `.warnings`: unreadable images, patients in two splits, duplicates, and so on.
        """
        from histobench.roi.data.check import check_dataset

        workers = None if workers is None else checked(int, workers, "workers", least=0)
        return check_dataset(self._reading, workers=workers)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(images):,} {split}" for split, images in self._roi.splits.items())
        groups = {image.group for images in self._roi.splits.values() for image in images} - {None}
        kind = str(self._source.get("target") or "")
        what = f"{kind} target" if kind else f"{len(self.classes)} classes"
        return f"Dataset {self.name!r}: {what}, {counts} images" + (
            f", {len(groups):,} groups" if groups else ", no groups"
        )

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        counts = pd.crosstab(frame["class"], frame["split"])[list(self._roi.splits)]
        return f"<p>{html.escape(repr(self))}</p>{counts.loc[list(dict.fromkeys(frame['class']))].to_html()}"


@renamed_parameters(source="data")
def load_dataset(
    data: str | Path | pd.DataFrame,
    *,
    name: str | None = None,
    split: str | Sequence[float] | None = None,
    classes: str | Path | None = None,
    group_regex: str | None = None,
    group_column: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    root: str | Path | None = None,
    tree: str | None = None,
    site_regex: str | None = None,
    site_columns: str | Sequence[str] = (),
    target: str = "class",
    target_columns: str | Sequence[str] = (),
    mask_classes: str | Path | None = None,
    seed: int = 0,
) -> Dataset:
    """Read a dataset: a folder of class folders, a CSV, TAR shards, a public dataset, or a DataFrame.

    Parameters
    ----------
    data : str, Path or DataFrame
        The data, or the name of a public dataset (`histobench data list`). A DataFrame has columns of paths
        and labels, and may have columns of splits and groups. Relative paths are relative to the current
        folder; those in a CSV, to the folder of the CSV. `hf:OWNER/DATASET` or `hf:FOLDER` is a dataset of
        the Hugging Face hub, or a folder of its parquet or Arrow files.
    name : str, optional
        Name in tables (default: that of the file or folder).
    split : str or sequence of float, optional
        Shares of train/val/test if the data has no splits: "0.7/0.1/0.2" or (0.7, 0.1, 0.2). Two shares are
        train/test.
    classes : str or Path, optional
        Class map file (default: from the folders or labels).
    group_regex : str, optional
        Regular expression that finds the patient or slide in a path. A group is never divided between splits.
    group_column : str, optional
        Column of the table with the patient or slide (default: "group", "patient", "patient_id", "case_id",
        "slide" or "slide_id").
    image_column, label_column, split_column : str, optional
        Columns of the table with images, labels and splits (default: "image_path", "path", "file", ...;
        "label" or "class"; "split").
    root : str or Path, optional
        Folder that relative paths start from (default: that of the CSV; the current one for a DataFrame).
    tree : str, optional
        What the folders above the images are, such as "split/class/patient" (default: recognized).
    site_regex : str, optional
        Regular expression whose named groups find hospital, scanner or stain in a path.
    site_columns : str or sequence of str, optional
        Further columns with a site (site, scanner, stain, hospital, ... are found by name).
    target : str, default "class"
        What is predicted: "class", "regression", "survival", "multilabel", "ordinal" or "mask".
    target_columns : str or sequence of str, optional
        Columns with the target (default: "label"; survival: "time" and "event";
        multilabel: name two or more columns of 0 and 1; mask: "mask_path").
    mask_classes : str or Path, optional
        Class of each code of the masks, such as "0:background,1:tumor,255:ignore", or a JSON file (default:
        classes.json beside the table).
    seed : int, default 0
        Seed of the split.

    Returns
    -------
    Dataset

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> tiles = hb.demo_dataset(tempfile.mkdtemp(), train_per_class=3, test_per_class=2, size=64)
    >>> frame = tiles.to_frame()[["image", "class", "group"]]  # as you may have one
    >>> hb.load_dataset(frame, name="mine", split=(0.6, 0.4))
    Dataset 'mine': 9 classes, 27 train, 18 test images, 2 groups
    """
    given = dict(locals())
    from histobench.roi.data.roi_dataset import listing
    from histobench.roi.data.source import DatasetSource, read_frame
    from histobench.roi.data.split import fractions_text, parse_fractions
    from histobench.roi.options import LoadOptions

    given["split"] = fractions_text(split)
    given |= {name: None for name in ("site_columns", "target_columns") if given[name] == []}
    for path in ("classes", "root"):
        if given[path] is not None:
            given[path] = str(checked(Path, given[path], path).absolute())
    if str(mask_classes).endswith(".json"):
        given["mask_classes"] = str(Path(str(mask_classes)).absolute())
    options = from_values(LoadOptions, given)
    if options.split is not None:
        parse_fractions(options.split)
    noted = options.noted()
    if isinstance(data, str | os.PathLike):
        located = checked(Path, data, "data")
        if os.path.exists(located):
            # Whatever the current folder will be; a public dataset keeps its name.
            located = located.absolute()
        noted["source"] = str(located)
        reading = DatasetSource.asked(str(located), options).read()
        reading.checked()
    else:
        noted["name"] = options.name or "data"
        try:
            reading = read_frame(data, replace(DatasetSource.asked("", options), name=noted["name"]))
            if reading.problems:
                raise HistobenchError(listing(reading.problems, shown=3))
        except HistobenchError as error:
            raise type(error)(f"data: {error}") from None
    codes = reading.dataset.target.codes if reading.dataset.target else ()
    noted["mask_classes"] = ",".join(f"{code}:{name}" for code, name in codes)
    known = {key: value for key, value in noted.items() if value}
    return Dataset(reading, known, options.seed if options.split else None)


#: Of a dataset's options, those that a plan has for all of its datasets.
TARGET_OPTIONS = ("target", "target_columns", "mask_classes")


def images_of(data: Dataset) -> RoiDataset:
    """Return the dataset as the modules below the Python API know it."""
    return data._roi  # noqa: SLF001


def origin_of(data: Dataset) -> Mapping[str, Any]:
    """Return how a dataset was read, as an entry of a plan."""
    return data._source  # noqa: SLF001


def plan_entry(data: Dataset) -> dict[str, Any]:
    """The entry of a dataset in a plan; a DataFrame is kept in a file, where workers and reports find it."""
    from histobench.roi.data.sites import SITE_COLUMNS
    from histobench.roi.data.source import keep_frame

    origin, images = origin_of(data), images_of(data)
    if "source" in origin:
        return {key: value for key, value in origin.items() if key not in TARGET_OPTIONS}
    table = keep_frame(images)
    sites = dict.fromkeys(name for part in images.splits.values() for each in part for name, _ in each.sites)
    entry = {
        "source": str(table),
        "name": data.name,
        "class2id": None if images.target else str(table.with_suffix(".txt")),
        "site_columns": [name for name in sites if name not in SITE_COLUMNS],
    }
    return {key: value for key, value in entry.items() if value}


@contextmanager
def read_for(function: Callable[..., Any], parameter: str) -> Iterator[None]:
    """An error that advises a parameter of `load_dataset` says so where `function` does not have it."""
    try:
        yield
    except HistobenchError as error:
        elsewhere = signature(load_dataset).parameters.keys() - signature(function).parameters.keys()
        named = [name for name in re.findall(r"`(\w+)`", str(error)) if name in elsewhere]
        if not named:
            raise
        call = f"load_dataset(..., {', '.join(f'{name}=...' for name in dict.fromkeys(named))})"
        raise type(error)(f"{error}. In {function.__name__}, pass {call} as `{parameter}`") from error


def demo_dataset(
    folder: str | Path,
    *,
    name: str = "synthetic-crc",
    train_per_class: int = 60,
    test_per_class: int = 30,
    size: int = 224,
    seed: int = 0,
    sites: Literal["", "crossed", "confounded"] = "",
    masks: bool = False,
) -> Dataset:
    """Draw the synthetic demo tiles and load them: nine tissue classes, no patient, no download.

    Results on these tiles say nothing about real histology. Tiles that are already there are kept.

    Parameters
    ----------
    folder : str or Path
        Where the tiles and the table go.
    name : str, default "synthetic-crc"
        Name of the dataset and its table.
    train_per_class, test_per_class : int, default 60 and 30
        Tiles per class; each synthetic patient has a few tiles of every class.
    size : int, default 224
        Side of a tile in pixels.
    seed : int, default 0
        Seed of the drawing.
    sites : {"", "crossed", "confounded"}, default ""
        Also name the scanner and the stain of each tile; "confounded" ties classes to scanners.
    masks : bool, default False
        Draw glands in stroma with masks for the task Segmentation instead (54 images of 18 patients); of the
        other parameters only `seed` counts.

    Returns
    -------
    Dataset

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> hb.demo_dataset(tempfile.mkdtemp(), train_per_class=3, test_per_class=2, size=64)
    Dataset 'synthetic-crc': 9 classes, 27 train, 18 test images, 2 groups
    """
    from histobench.roi.data.demo import write_demo_dataset
    from histobench.roi.data.demo_masks import draw_mask_tiles

    place = check_writable(checked(Path, folder, "folder"), "folder")
    if masks:
        return load_dataset(draw_mask_tiles(place, seed=checked(int, seed, "seed", least=0)), target="mask")
    table = write_demo_dataset(
        place,
        name=checked(str, name, "name"),
        train_per_class=checked(int, train_per_class, "train_per_class", least=1),
        test_per_class=checked(int, test_per_class, "test_per_class", least=1),
        size=checked(int, size, "size", least=1),
        seed=checked(int, seed, "seed", least=0),
        sites=sites,
    )
    return load_dataset(table, classes=table.with_suffix(".txt"))
