"""Where the images of a dataset are, and the pictures that pages show."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from histobench.core.errors import HistobenchError, did_you_mean, error_text
from histobench.report.inventory import Inventory
from histobench.roi.data.roi_dataset import SPLITS, Reading, RoiDataset
from histobench.roi.data.source import DatasetSource
from histobench.roi.plan.notes import DATASETS, read_dataset_notes

log = logging.getLogger(__name__)
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".jp2"})


@dataclass(frozen=True)
class ImageSource:
    """The files of a dataset by image name, and the dataset itself where the source is one."""

    paths: Mapping[str, Path]
    reading: Reading | None = None
    place: Path = Path()

    def without_folders(self, text: str) -> str:
        """A text about images with file names instead of paths: a site may be public."""
        for folder in self._folders:
            text = text.replace(folder, "")
        return text

    @cached_property
    def _folders(self) -> list[str]:
        folders = {self.place.parent, self.place} | {path.parent for path in self.paths.values()}
        return sorted({f"{folder.as_posix()}/" for folder in folders if folder.name}, key=len, reverse=True)

    def path(self, name: str) -> Path | None:
        """The file of an image, or None; a path is also tried by its file name."""
        return self.paths.get(name) or self.paths.get(PurePosixPath(name.replace("\\", "/")).name)

    @property
    def dataset(self) -> RoiDataset | None:
        return None if self.reading is None else self.reading.dataset


def finder(sources: Mapping[str, ImageSource]) -> Callable[[str, str], Path | None]:
    """The file of an image by the name of its dataset and its own."""
    return lambda dataset, name: sources[dataset].path(name) if dataset in sources else None


def relevant_sources(
    sources: Mapping[str, ImageSource], names: Mapping[str, set[str]]
) -> dict[str, ImageSource]:
    """Only sources that hold most of a dataset's test images: one source may be given for several."""
    kept = {}
    for dataset, source in sources.items():
        known = sum(source.path(name) is not None for name in names.get(dataset, ()))
        if 2 * known >= len(names.get(dataset, ())) and known:
            kept[dataset] = source
        elif known:
            log.warning("%s: only %d of the test images are in %s", dataset, known, source.place.name)
    return kept


def image_sources(
    inventory: Inventory,
    given: str | Path | Mapping[str, str | Path] | None,
    *,
    results_dir: Path | None = None,
) -> dict[str, ImageSource]:
    """The source of each dataset: what the user names, else what `run` noted, where it still exists."""
    named = given if isinstance(given, Mapping) else {} if given is None else {"": given}
    for name, place in named.items():
        if not inventory.datasets:
            raise HistobenchError("`images`: the results are of agents only, which have no test images")
        if not Path(place).exists():
            raise HistobenchError(f"`images`: there is no {place} (a CSV file, a folder or TAR shards)")
        if name and name not in inventory.datasets:
            raise HistobenchError(
                f"`images`: there are no results of {name!r}; {did_you_mean(name, inventory.datasets)}"
            )
    notes = {} if results_dir is None else noted_datasets(results_dir)
    found: dict[str, ImageSource] = {}
    opened: dict[str, ImageSource] = {}
    for dataset in inventory.datasets:
        note = notes.get(dataset)
        given_place = named.get(dataset, named.get(""))
        if given_place is not None and (note is None or Path(given_place).resolve() != Path(note.source)):
            key = str(given_place)
            opened[key] = opened.get(key) or open_source(given_place)
            found[dataset] = opened[key]
        elif note is not None:
            try:
                reading = note.read()  # as the run had them: same splits, same patients
                found[dataset] = ImageSource(_with_file_names(_paths(reading)), reading, Path(note.source))
            except (HistobenchError, OSError) as error:
                log.warning("no thumbnails for %s: %s", dataset, error_text(error))
    return found


def noted_datasets(results_dir: Path) -> dict[str, DatasetSource]:
    """What runs below a folder noted about their datasets; the outermost folder has the last word."""
    notes: dict[str, DatasetSource] = {}
    for path in sorted(results_dir.rglob(DATASETS), key=lambda path: -len(path.parts)):
        notes |= read_dataset_notes(path.parent)
    return notes


def open_source(place: str | Path) -> ImageSource:
    """A dataset (CSV, folder of class folders, shards), or any folder with images somewhere in it."""
    path = Path(place)
    try:
        reading = DatasetSource(str(path)).read()
        if paths := _paths(reading):
            return ImageSource(_with_file_names(paths), reading, path)
    except (HistobenchError, OSError):
        if not path.is_dir():
            raise
    files = {
        file.relative_to(path).as_posix(): file
        for file in sorted(path.rglob("*"))
        if file.suffix.lower() in _SUFFIXES and file.is_file()
    }
    if not files:
        raise HistobenchError(f"no images in {path}")
    return ImageSource(_with_file_names(files), None, path)


def _paths(reading: Reading) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    for split in SPLITS:
        for image in reading.dataset.splits.get(split, ()):
            paths.setdefault(image.name, image.path)
    return paths


def _with_file_names(paths: Mapping[str, Path]) -> dict[str, Path]:
    """Also known by the file name alone, unless several images have it."""
    by_file: dict[str, Path | None] = {}
    for name, path in paths.items():
        file = PurePosixPath(name.replace("\\", "/")).name
        by_file[file] = path if file not in by_file or by_file[file] == path else None
    return {name: path for name, path in by_file.items() if path is not None} | dict(paths)
