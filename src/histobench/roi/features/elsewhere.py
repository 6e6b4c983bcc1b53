"""Features that another tool computed: read, matched with a table of labels, exported again."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import atomic_path, read_plain_text, regular
from histobench.core.folders import cache_dir
from histobench.core.version import __version__
from histobench.roi.data.image_table import ImageTable, RoiImage
from histobench.roi.data.image_table import file_name as file_of
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset
from histobench.roi.data.sites import PAIR_COLUMN, PLACE_COLUMNS, SAMPLE, Place, TilePlaces, place_columns
from histobench.roi.data.targets import TargetColumns
from histobench.roi.data.task_folders import as_barcodes, h5ad_matrix, h5ad_texts
from histobench.roi.encoders.own_name import COMPUTED_ELSEWHERE, elsewhere_path, label_of
from histobench.roi.features.assemble import file_name, labelled
from histobench.roi.features.feature_file import FeatureSet, load, plain_tensors, save
from histobench.roi.features.shard_plan import Extraction
from histobench.roi.registry.unpack import h5py_module

log = logging.getLogger(__name__)

SUFFIXES = (".h5", ".hdf5", ".pt", ".pth", ".npz", ".npy", ".parquet", ".h5ad")
#: What arrays and columns may be called, the first that is there.
FEATURES = ("features", "embeddings", "embedding", "feats", "X", "arr_0")
NAMES = (
    *("img_names", "names", "name", "image", "image_path", "path", "file", "filename", "tile", "slide_id"),
    *("images", "paths", "files", "filenames", "ids"),
)
#: Columns with the slide of a row, in AnnData also under the name that LazySlide gives it.
SLIDES = ("slide", "slide_id", "library_id")
EXPORTS = ("h5ad", "parquet", "npz")
#: What the file with the names of an array's rows is called after the stem of the array.
_NAMES_BESIDE = (".txt", "_names.txt", "_names.npy")
_NAMED = (
    f"which a .npz does with one of {', '.join(NAMES)}, and a .npy with a file next to it, one name per line "
    f"(STEM{_NAMES_BESIDE[0]} or STEM{_NAMES_BESIDE[1]})"
)

Rows = NDArray[np.float32]
_T = TypeVar("_T")


class _BadFileError(Exception):
    """What is wrong with a file; `_naming` adds which."""


def _naming(file: Path, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except HistobenchError:
        raise
    except _BadFileError as error:
        raise HistobenchError(f"{file} {error}") from error
    except Exception as error:  # a foreign file may be damaged in any way
        reason = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        raise HistobenchError(f"{file} cannot be read ({reason})") from error


@dataclass(frozen=True)
class ForeignPart:
    """One file: the tiles of a slide, one vector of a slide, or the rows of many images."""

    file: Path
    #: A name per row, of a slide `SLIDE_x_y`; none where rows are in the order of the table of labels.
    names: tuple[str, ...]
    load: Callable[[], Rows]
    #: The slide; empty where the file has the rows of many images.
    slide: str = ""
    #: Where the rows are and, where they are of several slides, the slide of each.
    places: TilePlaces | None = None
    slides: tuple[str, ...] = ()
    #: Columns that the file gives for its rows.
    sites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Rows without a name.
    unnamed: int = 0

    def read(self) -> Rows:
        return _naming(self.file, self.load)

    def place(self, row: int) -> Place | None:
        """Where a row is on its slide; None where that is not known."""
        return None if self.places is None else self.places.row(row)


def find_parts(path: Path) -> list[ForeignPart]:
    """The files of features at a place, with the names of their rows; the numbers are read later."""
    if not path.exists():
        raise HistobenchError(f"{path} does not exist")
    if not path.is_dir():
        return [_part(path)]
    if plism := sorted(path.glob("*/features.npy")):
        return [_naming(file, partial(_plism, file)) for file in plism]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    kinds = sorted({file.suffix.lower() for file in files})
    if not files:
        below = {file.parent for kind in ("h5", "pt") for file in path.glob(f"*/*.{kind}")}
        below |= set(path.glob("*/*features_*"))
        hint = f"; did you mean {min(below)}?" if below else ""
        raise HistobenchError(f"{path} has no feature files ({', '.join(SUFFIXES)}){hint}")
    if len(kinds) > 1:
        raise HistobenchError(f"{path} has files of several kinds ({', '.join(kinds)}); give one")
    parts = [_part(file) for file in files if not (kinds == [".npy"] and file.stem.endswith("_names"))]
    if unnamed := [part for part in parts if part.unnamed]:
        raise HistobenchError(f"{unnamed[0].file} does not name its {unnamed[0].unnamed} rows, {_NAMED}")
    return parts


def _part(file: Path) -> ForeignPart:
    if file.suffix.lower() not in SUFFIXES:
        raise HistobenchError(f"{file} is not one of {', '.join(SUFFIXES)}")
    readers = (_hdf5, _hdf5, _torch, _torch, _npz, _npy, _parquet, _anndata)
    return _naming(file, partial(dict(zip(SUFFIXES, readers, strict=True))[file.suffix.lower()], file))


def _hdf5(file: Path) -> ForeignPart:
    h5py = h5py_module()
    with h5py.File(regular(file), "r") as box:
        key = _features_key([name for name in box if isinstance(box.get(name, getlink=True), h5py.HardLink)])
        shape = box[key].shape
        coords = _coordinates(box["coords"][()]) if "coords" in box else None
        barcodes = as_barcodes(box["barcodes"][()]) if "barcodes" in box else []  # of HEST-Benchmark
    if len(shape) == 1 and shape[0]:
        coords = None  # one vector of a slide; TRIDENT keeps the coordinates of its tiles beside it
    names = tuple(f"{file.stem}_{barcode}" for barcode in barcodes)
    if len(names) != _row_count(shape):
        names = _tile_names(file.stem, _row_count(shape), coords)

    def load() -> Rows:
        with h5py.File(regular(file), "r") as box:
            return _matrix(box[key][:])

    return ForeignPart(file, names, load, file.stem, _placed(coords, [file.stem] * len(names)))


def _placed(coords: NDArray[np.float64] | None, slides: Sequence[str]) -> TilePlaces | None:
    if coords is None:
        return None
    return TilePlaces.read({"x": coords[:, 0], "y": coords[:, 1], "slide": slides}, len(coords))


def _plism(file: Path) -> ForeignPart:
    """The tiles of a slide as plismbench keeps them: level, x and y, then the features."""
    array = np.load(regular(file), mmap_mode="r", allow_pickle=False)
    places = np.asarray(array[:, :3], dtype=np.float64)
    pairs = tuple(f"{level:g}_{x:g}_{y:g}" for level, x, y in places)
    slide = file.parent.name
    names = tuple(f"{slide}_{pair}" for pair in pairs)
    sites = {PAIR_COLUMN: pairs}
    placed = _placed(places[:, 1:], [slide] * len(places))
    return ForeignPart(file, names, lambda: _matrix(array[:, 3:]), slide, placed, sites=sites)


def _tile_names(slide: str, count: int, coords: NDArray[np.float64] | None) -> tuple[str, ...]:
    """The names of the tiles of a slide: by coordinates, else by number; one vector is the slide itself."""
    if coords is None:
        return (slide,) if count == 1 else tuple(f"{slide}_{row}" for row in range(count))
    if len(coords) != count or (count and coords.shape[1] != 2):
        raise _BadFileError(f"has {count} rows of features but coordinates of shape {coords.shape}")
    return tuple(f"{slide}_{int(x)}_{int(y)}" for x, y in coords)


def _coordinates(coords: Any) -> NDArray[np.float64]:
    found = np.asarray(coords, dtype=np.float64)
    return found.reshape(-1, found.shape[-1]) if found.size else np.empty((0, 2))


def _torch(file: Path) -> ForeignPart:
    content = plain_tensors(file)
    if isinstance(content, np.ndarray | torch.Tensor):  # of TRIDENT, of CLAM
        rows = _matrix(content.float().numpy() if isinstance(content, torch.Tensor) else content)
        beside = file.parent.parent / "h5_files" / f"{file.stem}.h5"  # where CLAM keeps the coordinates
        if len(rows) < 2 or not beside.is_file():
            return ForeignPart(file, _tile_names(file.stem, len(rows), None), lambda: rows, file.stem)
        placed = _hdf5(beside)
        if len(placed.names) != len(rows):
            raise _BadFileError(f"has {len(rows)} rows, but {beside} has {len(placed.names)} coordinates")
        return replace(placed, file=file, load=lambda: rows)
    if not isinstance(content, dict):
        raise _BadFileError(f"holds a {type(content).__name__} instead of a tensor or named arrays")
    sites = content.get("sites")  # of histobench's own files
    known = sites if isinstance(sites, dict) else {}
    places = {name: known[f"tile:{name}"] for name in PLACE_COLUMNS if f"tile:{name}" in known}
    return _named_arrays(file, {**content, **places})


def _named_arrays(file: Path, content: Mapping[str, Any]) -> ForeignPart:
    rows = _matrix(np.asarray(content[_features_key(list(content))]))
    if "coords" in content:
        coords = _coordinates(content["coords"])
        names = _tile_names(file.stem, len(rows), coords)
        return ForeignPart(file, names, lambda: rows, file.stem, _placed(coords, [file.stem] * len(rows)))
    key = next((name for name in NAMES if name in content), None)
    if key is None and file.suffix != ".npz":
        raise _BadFileError(f"does not name its rows: it needs one of {', '.join(NAMES)}")
    values = list(content[key]) if key is not None else []
    names = tuple(
        each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in values
    )
    if key is not None and len(names) != len(rows):
        raise _BadFileError(f"has {len(rows)} rows of features but {len(names)} names ({key})")
    known = {name: content[name] for name in place_columns(content)}
    places = TilePlaces.read(known, len(rows)) if known else None
    slides = () if places is None else tuple(map(str, places.columns["slide"]))
    unnamed = len(rows) if key is None else 0
    return ForeignPart(file, names, lambda: rows, places=places, slides=slides, unnamed=unnamed)


def _npz(file: Path) -> ForeignPart:
    with np.load(regular(file), allow_pickle=False) as box:
        return _named_arrays(file, dict(box))


def _npy(file: Path) -> ForeignPart:
    shape = np.load(regular(file), mmap_mode="r", allow_pickle=False).shape

    def load() -> Rows:
        return _matrix(np.load(regular(file), allow_pickle=False))

    if len(shape) == 1:
        return ForeignPart(file, (file.stem,), load)
    count = _row_count(shape)
    beside = [file.with_name(f"{file.stem}{end}") for end in _NAMES_BESIDE]
    found = next((each for each in beside if each.is_file()), None)
    if found is None:
        return ForeignPart(file, (), load, unnamed=count)
    if found.suffix == ".npy":
        names = [str(name) for name in np.load(regular(found), allow_pickle=False)]
    else:
        names = [line.strip() for line in read_plain_text(found, encoding="utf-8-sig").splitlines()]
    names = [name for name in names if name]
    if len(names) != count:
        raise _BadFileError(f"has {count} rows of features but {found.name} has {len(names)} names")
    return ForeignPart(file, tuple(names), load)


def _parquet(file: Path) -> ForeignPart:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(regular(file))
    are_lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    lists = [field.name for field in table.schema if any(check(field.type) for check in are_lists)]
    key = next((name for name in FEATURES if name in lists), None)
    if key is not None:
        rows = np.stack([np.asarray(row, dtype=np.float32) for row in table[key].to_pylist()])
    else:
        used = _numbered([field.name for field in table.schema if pa.types.is_floating(field.type)])
        log.warning("%s: features from the %d columns %s to %s", file.name, len(used), used[0], used[-1])
        rows = np.column_stack([table[name].to_numpy() for name in used])
    wanted = [name for name in table.column_names if name in (*NAMES, *PLACE_COLUMNS)]
    return _named_arrays(file, {FEATURES[0]: rows, **{name: table[name].to_pylist() for name in wanted}})


def _numbered(names: Sequence[str]) -> list[str]:
    """The columns of features: those of one name with a number at the end; others are never features."""
    series: dict[str, list[str]] = {}
    for name in names:
        if found := re.fullmatch(r"(.*?)[_.-]?\d+", name):
            series.setdefault(found[1], []).append(name)
    many = [columns for columns in series.values() if len(columns) > 1]
    if len(many) != 1:
        shown = "; ".join(f"{columns[0]} to {columns[-1]}" for columns in many) or "none"
        raise _BadFileError(
            "has no features: expected one column of lists (embedding), or columns of numbers with one name "
            f"(x0, x1, ...); such columns: {shown}"
        )
    return many[0]


def _anndata(file: Path) -> ForeignPart:
    """AnnData's file layout by its published encoding: X or obsm["X_..."], names in obs."""
    with h5py_module().File(regular(file), "r") as box:
        entry = box.get("X")
        # A missing X is left out, without columns, or an empty dataset whose shape is None.
        shape = (0,) if entry is None else entry.attrs.get("shape", getattr(entry, "shape", ()))
        if shape is None or 0 in tuple(shape):
            layers = sorted(name for name in box.get("obsm", {}) if name.startswith("X_"))
            if len(layers) != 1:
                raise _BadFileError(f"has no X, and {len(layers)} entries X_... in obsm; keep one")
            entry = box["obsm"][layers[0]]
        rows = _matrix(h5ad_matrix(entry))
        obs = box["obs"]
        sliced = next((name for name in SLIDES if name in obs), None)
        slides = () if sliced is None else tuple(map(str, h5ad_texts(obs[sliced])))
        # A slide names its rows only where each has a slide of its own.
        taken = SLIDES if len(set(slides)) < len(slides) else ()
        named = next((name for name in NAMES if name in obs and name not in taken), None)
        names = tuple(map(str, h5ad_texts(obs[named or obs.attrs.get("_index", "_index")])))
        spatial = box["obsm"]["spatial"][:] if "spatial" in box.get("obsm", {}) else None
    coords = None if spatial is None else _coordinates(spatial)[:, :2]
    slides = slides if taken else ("",) * len(names)
    return ForeignPart(file, names, lambda: rows, places=_placed(coords, slides), slides=slides)


def _features_key(names: Sequence[str]) -> str:
    found = next((name for name in FEATURES if name in names), None)
    if found is None:
        listed = ", ".join(map(str, names)) or "nothing"
        raise _BadFileError(f"has no features: expected one of {', '.join(FEATURES)}, found {listed}")
    return found


def _row_count(shape: Sequence[int]) -> int:
    """Rows of features [d], [rows, d] or [1, rows, d], none in [0]; `_matrix` refuses other shapes.

    >>> _row_count((8,)), _row_count((5, 8)), _row_count((1, 5, 8)), _row_count((0,))
    (1, 5, 5, 0)
    """
    if len(shape) == 1:
        return min(shape[0], 1)
    return shape[1] if len(shape) == 3 and shape[0] == 1 else shape[0]


def _matrix(values: Any) -> Rows:
    array = np.asarray(values)
    array = array.reshape(_row_count(array.shape), -1 if array.size else 0) if array.ndim == 1 else array
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 2:
        raise _BadFileError(f"has features of shape {array.shape}; expected [rows, dimension]")
    rows = np.ascontiguousarray(array, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise _BadFileError(f"has NaN or infinite features in {len(bad)} rows (the first is row {bad[0]})")
    return rows


class _Found(NamedTuple):
    """The rows of an image in a file; `is_slide` where they are all tiles of a slide."""

    part: ForeignPart
    rows: Sequence[int]
    is_slide: bool = False


#: Images with their rows, None for one that the features do not have.
Matches = Iterable[tuple[RoiImage, _Found | None]]


def import_features(
    dataset: RoiDataset, name: str, save_dir: Path | None, *, skip_missing: bool = False
) -> tuple[list[Extraction], dict[str, FeatureSet]]:
    """The features of `NAME=features:PATH` for the images of a table, by split; written to a given folder."""
    path, label = elsewhere_path(name), label_of(name)
    parts = find_parts(path)
    index = _in_order(parts[0], dataset) if len(parts) == 1 and parts[0].unnamed else _index(parts)
    matches = {
        split: [(image, _find(index, image)) for image in images] for split, images in dataset.splits.items()
    }
    if dataset.pool:
        matches = {split: _once_each(images) for split, images in matches.items()}
    every = [pair for images in matches.values() for pair in images]
    missing = [image.name for image, found in every if found is None]
    total = sum(map(len, dataset.splits.values()))
    if missing and (not skip_missing or len(missing) == total):
        raise HistobenchError(
            f"{len(missing)} of {total} images of {dataset.name} are not in {path} "
            f"(first: {missing[0]}; {did_you_mean(Path(missing[0]).stem, list(index)[:10_000])}); are these "
            "the features of other images? `on_bad_image` skip leaves them out"
        )
    _check_listed_once(every)
    extractions, sets = [], {}
    cache: dict[Path, Rows] = {}
    for split, images in matches.items():
        if not images:
            continue
        who = f"the {split} images of {dataset.name}"
        features = _matched(who, images, cache, dataset.target, dataset.pool)
        digest = hashlib.sha256(features.embeddings.numpy().tobytes())
        digest.update("\n".join(features.img_names).encode())
        mark = digest.hexdigest()
        features.metadata.update(
            dataset=dataset.name,
            split=split,
            classes=list(dataset.classes),
            encoder=label,
            size="unknown",
            dim=int(features.embeddings.shape[1]),
            fingerprint=mark,
            provenance=COMPUTED_ELSEWHERE,
            identity={"encoder": label, "provenance": COMPUTED_ELSEWHERE, "path": str(path)},
            skipped=[{"image": image, "reason": "not in the features"} for image in missing],
            versions={"histobench": __version__},
        )
        sets[split] = features
        if save_dir is not None:
            target = save_dir / file_name(dataset.name, label, "unknown", split)
            save(features, target)
            extractions.append(Extraction(label, name, split, target, len(features), 0, mark))
    return extractions, sets


def _find(index: Mapping[str, _Found], image: RoiImage) -> _Found | None:
    sample = dict(image.sites).get(SAMPLE, "")  # Patho-Bench's own vectors are called after it
    keys = (image.name, str(image.path), file_of(image.name), _stem(image.name), sample)
    return next((index[key] for key in keys if key in index), None)


def _check_listed_once(matches: Matches) -> None:
    """Refuse a table that names the same features twice: they would count twice, or be in two splits."""
    listed: dict[tuple[Path, int], RoiImage] = {}
    for image, found in matches:
        for row in found.rows if found else ():
            other = listed.setdefault((found.part.file, row), image) if found else image
            if other is not image:
                raise HistobenchError(
                    f"{image.name} ({image.origin}) is listed twice, also at {other.origin}; keep "
                    "one row of each image or slide"
                )


def _index(parts: Sequence[ForeignPart]) -> dict[str, _Found]:
    """Rows by name, and by the name without folder and ending where that is unique; tiles by slide."""
    slides: dict[str, _Found] = {}
    names: dict[str, _Found] = {}
    short: dict[str, _Found | None] = {}
    for part in parts:
        for row, name in enumerate(part.names):
            if name in names:
                raise HistobenchError(f"{name} occurs twice, in {names[name].part.file} and {part.file}")
            names[name] = found = _Found(part, (row,))
            for key in {file_of(name), _stem(name)}:
                short[key] = None if key in short else found
        if part.slide and part.names != (part.slide,):  # else it is one vector of a slide
            slides[part.slide] = _Found(part, range(len(part.names)), is_slide=True)
    for part in parts:
        rows: dict[str, list[int]] = {}
        for row, slide in enumerate(part.slides):
            if slide:
                rows.setdefault(slide, []).append(row)
        for slide, members in rows.items():
            if slide in slides and slides[slide].part is not part:
                both = f"{slides[slide].part.file} and {part.file}"
                raise HistobenchError(f"tiles of {slide} are in {both}; keep one")
            slides[slide] = _Found(part, members, is_slide=True)
    return {**{key: found for key, found in short.items() if found}, **names, **slides}


def _in_order(part: ForeignPart, dataset: RoiDataset) -> dict[str, _Found]:
    """The rows of an array without names, which are those of the table."""
    tables = [images for images in dataset.splits.values() if isinstance(images, ImageTable)]
    columns = tables[0].columns if tables else None
    kept = cache_dir() / "frames"  # a DataFrame is kept by split, not in its order
    if columns is None or len(set(columns.lines)) < len(columns) or columns.root == kept:
        raise HistobenchError(f"{part.file} needs a table with a row for each image, or names, {_NAMED}")
    if len(columns) != part.unnamed:
        raise HistobenchError(
            f"{part.file} has {part.unnamed} rows, but {dataset.name} lists {len(columns)} images; rows "
            f"without names must be those of the table in its order. Name them, {_NAMED}"
        )
    log.warning("%s: no names; its rows are taken in the order of the table", part.file.name)
    rows: dict[str, _Found] = {}
    for row in range(len(columns)):
        rows.setdefault(columns.image(row).name, _Found(part, (row,)))
    return rows


def _stem(name: str) -> str:
    endings = r"\.(png|jpe?g|tiff?|bmp|webp|svs|ndpi|mrxs|h5|pt)$"
    return re.sub(endings, "", file_of(name), flags=re.IGNORECASE)


def _once_each(matches: Matches) -> list[tuple[RoiImage, _Found | None]]:
    """The images without those whose features another image of the same sample has."""
    seen: dict[object, tuple[RoiImage, _Found | None]] = {}
    for image, found in matches:
        key = image.name if found is None else (_sample(image), found.part.file, tuple(found.rows))
        seen.setdefault(key, (image, found))
    return list(seen.values())


def _sample(image: RoiImage) -> str:
    """What the features of an image are averaged over: its sample, patient, or itself."""
    return dict(image.sites).get(SAMPLE) or image.group or _stem(image.name)


def _pooled(features: FeatureSet, images: Sequence[RoiImage], counts: Sequence[int], pool: str) -> FeatureSet:
    """One row per sample from one row per slide: their mean, or that of all tiles (`counts` of each)."""
    rows: dict[str, list[int]] = {}
    for row, image in enumerate(images):
        rows.setdefault(_sample(image), []).append(row)
    weights = torch.tensor(counts if pool == "tiles" else [1] * len(counts), dtype=torch.float64)
    slides = features.embeddings.double() * weights[:, None]
    means = [slides[members].sum(0) / weights[members].sum() for members in rows.values()]
    firsts = [members[0] for members in rows.values()]
    labels = features.labels
    for name, members in rows.items():
        if len(set(labels[members].tolist())) > 1:
            raise HistobenchError(f"{name} has several labels; give every patient one, or leave out `pool`")
    return FeatureSet(
        embeddings=torch.stack(means).float(),
        labels=labels[firsts],
        img_names=tuple(rows),
        groups=tuple(images[row].group or name for name, row in zip(rows, firsts, strict=True)),
        metadata={},
        sites={name: tuple(values[row] for row in firsts) for name, values in features.sites.items()},
        target=features.target and features.target.take(np.array(firsts)),
    )


def _matched(
    who: str, matches: Matches, cache: dict[Path, Rows], target: TargetColumns | None, pool: str
) -> FeatureSet:
    pairs = [(image, found) for image, found in matches if found]
    has_slides = any(found.is_slide for _, found in pairs)
    blocks: list[NDArray[np.floating]] = []
    owners: list[RoiImage] = []
    counts: list[int] = []
    empty: list[str] = []
    for image, (part, rows, is_slide) in pairs:
        if part.file not in cache:
            if part.slide:  # its rows are together in the table, as a rule
                cache.clear()
            cache[part.file] = part.read()
        if not rows:
            empty.append(part.file.name)
            continue
        whole = cache[part.file]
        block = whole if len(rows) == len(whole) else whole[list(rows)]
        if pool:
            blocks.append(block.mean(0, dtype=np.float64, keepdims=True))
            owners.append(image)
            counts.append(len(rows))
            continue
        blocks.append(block)
        group = _stem(image.name) if image.group is None and has_slides else image.group
        for row in rows:  # what the table says of a tile goes before what the file says
            sites = {name: column[row] for name, column in part.sites.items()} | dict(image.sites)
            name, place = part.names[row] if is_slide else image.name, image.place or part.place(row)
            owners.append(image._replace(name=name, group=group, sites=tuple(sites.items()), place=place))
    if empty:
        log.warning("%d of %s have no tiles and are left out, such as %s", len(empty), who, empty[0])
    widths = sorted({block.shape[1] for block in blocks})
    if len(widths) != 1:
        lengths = ", ".join(map(str, widths)) or "none"
        raise HistobenchError(f"{who} must have features of one length, found: {lengths}")
    features = labelled(owners, torch.from_numpy(np.concatenate(blocks)), {}, target)
    return _pooled(features, owners, counts, pool) if pool else features


def combine_features(name: str, parts: Sequence[dict[str, Path]], save_dir: Path) -> list[Extraction]:
    """Write the features of several encoders side by side, each standardized by its training images."""
    label = label_of(name)
    written, scales = [], None
    for split in (split for split in SPLITS if all(split in part for part in parts)):
        sets = [load(part[split]) for part in parts]
        first = sets[0]
        for other in sets[1:]:
            if other.img_names != first.img_names or not torch.equal(other.labels, first.labels):
                raise HistobenchError(
                    f"{label}: the {split} features of {first.metadata.get('encoder')} and "
                    f"{other.metadata.get('encoder')} are of different images; combine features of the "
                    "same ones"
                )
        if scales is None:  # the first split is train; a constant feature keeps its size
            scales = [torch.std_mean(each.embeddings.double(), dim=0, correction=0) for each in sets]
        sides = [
            (features.embeddings - mean.float()) / torch.where(spread > 0, spread, 1.0).float()
            for features, (spread, mean) in zip(sets, scales, strict=True)
        ]
        marks = [str(features.metadata.get("fingerprint", "")) for features in sets]
        mark = hashlib.sha256("|".join((label, *marks)).encode()).hexdigest()
        joined = FeatureSet(
            embeddings=torch.cat(sides, dim=1).contiguous(),
            labels=first.labels,
            img_names=first.img_names,
            groups=first.groups,
            metadata={
                **{key: first.metadata.get(key) for key in ("dataset", "split", "classes", "skipped")},
                "encoder": label,
                "size": "combined",
                "dim": sum(int(side.shape[1]) for side in sides),
                "fingerprint": mark,
                "provenance": "features side by side, each standardized on the training images",
                "identity": {
                    "encoder": label,
                    "parts": [features.metadata.get("identity") for features in sets],
                },
                "versions": {"histobench": __version__},
            },
            sites=first.sites,
            target=first.target,
            places=first.places,
        )
        target = save_dir / file_name(str(first.metadata.get("dataset")), label, "combined", split)
        save(joined, target)
        written.append(Extraction(label, name, split, target, len(joined), 0, mark))
    return written


def export_features(sets: Sequence[FeatureSet], target: Path, kind: str) -> Path:
    names = {str(features.metadata.get("encoder", "")) for features in sets}
    if len(names) > 1:
        raise HistobenchError(f"the feature files are of several encoders: {', '.join(sorted(names))}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(target) as temporary:
        {"npz": _to_npz, "parquet": _to_parquet, "h5ad": _to_anndata}[kind](sets, temporary)
    return target


def _columns(sets: Sequence[FeatureSet]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {key: [] for key in ("name", "label", "class", "group", "split")}
    for features in sets:
        classes = list(features.metadata.get("classes") or ())
        labels = features.labels.tolist()
        columns["name"] += features.img_names
        columns["label"] += labels
        columns["class"] += [str(classes[i]) if i < len(classes) else str(i) for i in labels]
        columns["group"] += features.groups or [""] * len(features)
        columns["split"] += [str(features.metadata.get("split", ""))] * len(features)
    for site in sorted({site for features in sets for site in features.sites}):
        columns[site] = [
            value for features in sets for value in features.sites.get(site, ("",) * len(features))
        ]
    targets = [features.target for features in sets if features.target is not None]
    for place, name in enumerate(targets[0].names if targets else ()):
        key = f"target_{name}" if name in columns else name
        columns[key] = [value for target in targets for value in target.values[:, place].tolist()]
    placed = (features.places or TilePlaces.read({}, len(features)) for features in sets)
    return columns | {
        name: values.tolist() for name, values in reduce(TilePlaces.joined, placed).known.items()
    }


def _metadata(sets: Sequence[FeatureSet]) -> str:
    keep = ("dataset", "encoder", "size", "precision", "identity", "transform", "provenance", "versions")
    return json.dumps({key: sets[0].metadata[key] for key in keep if key in sets[0].metadata}, default=str)


def _embedding(sets: Sequence[FeatureSet]) -> Rows:
    return np.concatenate([features.embeddings.numpy() for features in sets])


def _to_npz(sets: Sequence[FeatureSet], path: Path) -> None:
    columns = _columns(sets)
    content: dict[str, Any] = {"features": _embedding(sets), "img_names": np.asarray(columns.pop("name"))}
    content |= {key: np.asarray(values) for key, values in columns.items()}
    with path.open("wb") as handle:
        np.savez(handle, **content, metadata=np.asarray(_metadata(sets)))


def _to_parquet(sets: Sequence[FeatureSet], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = _embedding(sets)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    table = pa.table(
        {**{key: pa.array(values) for key, values in _columns(sets).items()}, "embedding": lists}
    )
    table = table.replace_schema_metadata({"histobench": _metadata(sets)})
    with path.open("wb") as sink:
        pq.write_table(table, sink)


def _to_anndata(sets: Sequence[FeatureSet], path: Path) -> None:
    h5py = h5py_module()
    columns = _columns(sets)
    names = columns.pop("name")
    spatial = (
        np.asarray([columns["x"], columns["y"]]).T
        if {"x", "y"} <= columns.keys()
        else np.full((1, 2), np.nan)
    )
    index = names if len(set(names)) == len(names) else [f"{row}_{name}" for row, name in enumerate(names)]
    rows = _embedding(sets)
    with h5py.File(path, "w") as box:
        box.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        _array(box, "X", rows)
        _frame(box, "obs", index, columns)
        _frame(box, "var", [str(number) for number in range(rows.shape[1])], {})
        for name in ("layers", "obsm", "obsp", "varm", "varp", "uns"):
            box.create_group(name).attrs.update({"encoding-type": "dict", "encoding-version": "0.1.0"})
        if np.isfinite(spatial).all():
            _array(box["obsm"], "spatial", spatial)
        box["uns"]["histobench"] = _metadata(sets)
        box["uns"]["histobench"].attrs.update({"encoding-type": "string", "encoding-version": "0.2.0"})


def _array(box: Any, name: str, values: NDArray[Any]) -> None:
    box.create_dataset(name, data=values).attrs.update(
        {"encoding-type": "array", "encoding-version": "0.2.0"}
    )


def _frame(box: Any, name: str, index: Sequence[str], columns: dict[str, list[Any]]) -> None:
    import h5py

    group = box.create_group(name)
    text = h5py.string_dtype()
    order = np.asarray(list(columns), dtype=object) if columns else np.empty(0, dtype=object)
    group.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"})
    group.attrs.create("column-order", order, dtype=text)
    for key, values in {"_index": list(index), **columns}.items():
        if values and isinstance(values[0], str):
            group.create_dataset(key, data=np.asarray(values, dtype=object), dtype=text).attrs.update(
                {"encoding-type": "string-array", "encoding-version": "0.2.0"}
            )
        else:
            _array(group, key, np.asarray(values))
