"""Masks: the class of every pixel, from PNG, NumPy or TIFF files of codes and a declared map of these."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json
from histobench.roi.data.image_ref import locate
from histobench.roi.data.image_table import ImageColumns
from histobench.roi.data.roi_dataset import SPLITS, Reading
from histobench.roi.data.split import SPLIT_WORDS
from histobench.roi.data.table_reader import Collected, Wanted
from histobench.roi.data.targets import IGNORE, TargetColumns
from histobench.roi.task_catalogue import BACKGROUND

Codes = tuple[tuple[int, str], ...]
CLASSES = "classes.json"
#: The class id of pixels that do not count: those of the class "ignore", and padding.
IGNORED = 255


def read_codes(said: str | None, source: Path) -> Codes:
    """The class of each code, from `0:background,1:tumor,255:ignore` or JSON, else from `classes.json`."""
    if said and not said.endswith(".json"):
        where = "`mask_classes`"
        pairs = [part.partition(":")[::2] for part in said.split(",") if part.strip()]
    else:
        beside = (source if source.is_dir() else source.parent) / CLASSES
        where = str(Path(said).expanduser() if said else beside)
        try:
            pairs = list(parse_json(read_plain_text(Path(where))).items())
        except FileNotFoundError as error:
            raise HistobenchError(
                f"no file {where}: which code of the masks is which class? Give `mask_classes`, such as "
                "0:background,1:tumor,255:ignore"
            ) from error
        except (ValueError, AttributeError) as error:
            raise HistobenchError(f"{where}: expected {{'0': 'background', ...}} ({error})") from error
    codes: dict[int, str] = {}
    for code, name in pairs:
        if not str(code).strip().isdecimal() or not str(name).strip() or int(code) in codes:
            raise HistobenchError(f"{where}: {code}:{name} is not a new code and a class, such as 1:tumor")
        codes[int(code)] = str(name).strip()
    if len(set(classes_of(tuple(codes.items())))) < 2:
        raise HistobenchError(f"{where}: name two classes or more besides {IGNORE}")
    return tuple(codes.items())


def classes_of(codes: Codes) -> tuple[str, ...]:
    """The classes in the order of their first codes, background first, without what is ignored."""
    names = dict.fromkeys(name for _, name in codes if name.lower() != IGNORE)
    return tuple(sorted(names, key=lambda name: name.lower() != BACKGROUND))


def read_mask(path: Path, codes: Codes) -> NDArray[np.uint8]:
    """The class id of every pixel [h, w]; `IGNORED` where it does not count. An unknown code is an error."""
    values = _values(path)
    classes = classes_of(codes)
    table = np.full(max(code for code, _ in codes) + 2, -1, dtype=np.int16)
    for code, name in codes:
        table[code] = IGNORED if name.lower() == IGNORE else classes.index(name)
    known = table[np.clip(values, -1, len(table) - 1)]  # the last one is of no code
    if (known < 0).any():
        code, listed = int(values[known < 0][0]), ", ".join(f"{code}:{name}" for code, name in codes)
        raise HistobenchError(f"{path}: the code {code} is not in `mask_classes` ({listed})")
    return known.astype(np.uint8)


def _values(path: Path) -> NDArray[np.int64]:
    try:
        data = io.BytesIO(locate(path).read())
        if path.suffix.lower() == ".npy":
            values = np.load(data, allow_pickle=False)
        elif path.suffix.lower() in (".tif", ".tiff"):
            import tifffile

            values = tifffile.imread(data)
        else:
            values = np.asarray(Image.open(data))  # of a palette the indices
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition(" <_io")[0]
        raise HistobenchError(f"{path}: not a mask: {reason}") from error
    if values.ndim == 3 and (values == values[..., :1]).all():
        values = values[..., 0]
    if values.ndim != 2 or values.dtype.kind not in "iub":
        raise HistobenchError(
            f"{path}: a mask has one whole number per pixel, not {values.dtype} of shape {values.shape}; "
            "save indices, not colors"
        )
    return values.astype(np.int64)


def is_mask_folder(folder: Path) -> bool:
    return (folder / "images").is_dir() and (folder / "masks").is_dir()


def scan_masks(folder: Path, wanted: Wanted, target: TargetColumns) -> Reading:
    """Read `images/` and `masks/` with files of the same names, in train, val and test folders or in none."""
    masks = dict(_files(folder / "masks"))
    found = Collected(ImageColumns(folder), replace(wanted, classes=(target.kind,)), target)
    for stem, path in _files(folder / "images"):
        word = SPLIT_WORDS.get(stem.split("/")[0].lower()) if "/" in stem else None
        if word is None and wanted.split is None:
            raise HistobenchError(
                f"{folder}: {path} is not below one of {', '.join(SPLITS)}; give `split` 0.7/0.1/0.2"
            )
        if stem not in masks:
            found.report(0, f"there is no mask {folder / 'masks' / stem}.*", "label", "mask", str(path))
            continue
        name, mask = (file.relative_to(folder).as_posix() for file in (path, masks[stem]))
        found.add(0, None if wanted.split else word, name, target.kind, None, {}, mask=mask)
    if not len(found.columns) and not found.problems:
        raise HistobenchError(f"{folder / 'images'} has no images")
    return found.reading(folder.resolve().name)


def _files(folder: Path) -> list[tuple[str, Path]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return [(path.relative_to(folder).with_suffix("").as_posix(), path) for path in files]
