"""Task folders of published benchmarks as they are: Patho-Bench, HEST-Benchmark and plismbench.

    patho-bench   k=all.tsv and config.yaml: slides, samples, labels or survival, folds
    hest          splits/, adata/, patches/ and var_50genes.json: spots with the expression of 50 genes
    plism         one folder per slide with features.npy: the same places in several scanners and stainings

Each becomes rows like those of any other table. The folds that a folder gives are kept in one column
(`FOLDS`): a letter per fold, t for train, v for val, e for test.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.plain_data import parse_json, read_yaml
from histobench.roi.data.roi_dataset import SPLITS, Problem, Reading, RoiDataset, RoiImage
from histobench.roi.data.sites import FOLDS, SAMPLE, as_sites, wanted_columns
from histobench.roi.data.tables import read_text
from histobench.roi.data.targets import TargetColumns
from histobench.roi.registry.unpack import h5py_module
from histobench.roi.task_catalogue import CLASS, SURVIVAL

PATHO_BENCH, HEST, PLISM = "patho-bench", "hest", "plism"
REGRESSION = "regression"
TABLE, CONFIG, GENES = "k=all.tsv", "config.yaml", "var_50genes.json"
#: Tasks of Patho-Bench that are about survival begin like this.
_SURVIVAL_TASKS = ("OS", "PFS", "DSS", "DFS")
_LETTERS = {"train": "t", "val": "v", "test": "e"}
_EMPTY = ("", "nan", "NaN", "NA", "None")


def kind_of_folder(folder: Path) -> str:
    """Whose task folder this is; empty for any other place."""
    if (folder / TABLE).is_file() or ((folder / CONFIG).is_file() and any(folder.glob("k=*.tsv"))):
        return PATHO_BENCH
    if (folder / "splits").is_dir() and (folder / "adata").is_dir():
        return HEST
    return PLISM if folder.is_dir() and any(folder.glob("*/features.npy")) else ""


def target_of_folder(folder: Path) -> str:
    """What a task folder predicts: `class`, `survival` or `regression`."""
    kind = kind_of_folder(folder)
    if kind == PATHO_BENCH:
        return SURVIVAL if _config(folder)["task_col"].startswith(_SURVIVAL_TASKS) else CLASS
    return REGRESSION if kind == HEST else CLASS


def read_task_folder(folder: Path, name: str | None, site_columns: Sequence[str] = ()) -> Reading:
    """The rows of a task folder; what is wrong with it comes back beside what could be read."""
    kind = kind_of_folder(folder)
    if kind == PATHO_BENCH:
        return _patho_bench(folder, name, site_columns)
    return _hest(folder, name) if kind == HEST else _plism(folder, name)


# Patho-Bench


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    found = read_yaml(read_text(path, what="Patho-Bench config"), where=str(path))
    kinds = {"sample_col": str, "task_col": str, "extra_cols": list, "label_dict": dict, "metrics": list}
    for key, kind in kinds.items():
        if not isinstance(found, dict) or not isinstance(found.get(key), kind):
            raise HistobenchError(f"{path}: {key!r} ({kind.__name__}) is missing")
    return dict(found)


def _patho_bench(folder: Path, name: str | None, site_columns: Sequence[str]) -> Reading:
    config = _config(folder)
    path = folder / TABLE
    header, rows = _table(path, "\t")
    task, sample_column = config["task_col"], config["sample_col"]
    survival = (f"{task}_days", f"{task}_event") if task.startswith(_SURVIVAL_TASKS) else ()
    folds = sorted(
        (column for column in header if "fold_" in column), key=lambda column: _number(path, column)
    )
    for column in ("slide_id", sample_column, task, *survival):
        if column not in header:
            raise HistobenchError(f"{path} has no column {column!r}; {did_you_mean(column, header)}")
    if not folds:
        raise HistobenchError(f"{path} has no folds: no column is called fold_0, fold_1, ...")
    target = TargetColumns(SURVIVAL, survival) if survival else None
    names = {int(label): str(text) for label, text in config["label_dict"].items() if _is_whole(str(label))}
    if sorted(names) != list(range(len(config["label_dict"]))):
        raise HistobenchError(f"{folder / CONFIG}: label_dict must name the labels 0, 1, ..., without a gap")
    problems: list[Problem] = []
    splits: dict[str, list[RoiImage]] = {split: [] for split in SPLITS}
    samples: dict[str, tuple[tuple[str, ...], str]] = {}
    listed: set[tuple[str, str]] = set()
    for line, row in rows:
        if row[task] in _EMPTY:
            continue
        origin = f"{path}:{line}"
        slide, sample = row["slide_id"], row[sample_column]
        values = tuple(row[column] for column in (task, *folds))
        before = samples.setdefault(sample, (values, origin))
        wrong = next((cell for cell in values[1:] if cell not in SPLITS), None)
        if not slide or not sample:
            problems.append(Problem(origin, f"no {'slide_id' if not slide else sample_column}"))
        elif wrong is not None:
            problems.append(Problem(origin, f"fold {wrong!r} is not train, val or test", "row", "fold"))
        elif before[0] != values:
            what = "label" if before[0][0] != values[0] else "fold"
            problems.append(Problem(origin, f"{sample} has another {what} than at {before[1]}", "label"))
        elif not survival and _whole(row[task]) not in names:
            problems.append(
                Problem(origin, f"{task} {row[task]!r} is not in label_dict of {CONFIG}", "label")
            )
        elif (sample, slide) not in listed:
            listed.add((sample, slide))
            sites = {column: row[column] for column in wanted_columns(header, site_columns)}
            sites |= {SAMPLE: sample, FOLDS: "".join(_LETTERS[cell] for cell in values[1:])}
            try:
                numbers = target.row([row[column] for column in survival]) if target else ()
            except HistobenchError as error:
                problems.append(Problem(origin, f"{sample}: {error}", "label"))
                continue
            label = 0 if target else _whole(row[task])
            case = row.get("case_id") or sample
            image = RoiImage(folder / slide, label, slide, origin, case, as_sites(sites), numbers)
            splits[values[1]].append(image)
    classes = (SURVIVAL,) if target else tuple(names[label] for label in range(len(names)))
    found = {split: tuple(images) for split, images in splits.items() if images}
    data = RoiDataset(name or folder.resolve().name, classes, found, target, pool="slides")
    return Reading(data, tuple(problems))


def _table(path: Path, separator: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The header of a table and its rows with their lines, all cells as they are written."""
    reader = csv.reader(io.StringIO(read_text(path, what="table"), newline=""), delimiter=separator)
    header = next(reader)
    rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    called = "tabs" if separator == "\t" else "commas"
    if len(header) < 2:
        raise HistobenchError(f"{path} has one column ({header[0][:60]}); separate the columns by {called}")
    for line, cells in rows:
        if len(cells) != len(header):
            wrong = f"{len(cells)} cells separated by {called}, not {len(header)} as in the header"
            raise HistobenchError(f"{path}:{line}: {wrong}")
    return header, [(line, dict(zip(header, cells, strict=True))) for line, cells in rows]


def _number(path: Path, column: str) -> int:
    last = column.rpartition("_")[2]
    if not last.isdigit():
        raise HistobenchError(f"{path}: the column {column!r} does not end with the number of a fold")
    return int(last)


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"\d+(\.0+)?", text) is not None


def _whole(text: str) -> int:
    """A label of a table, where pandas may have written 1.0; -1 for another text."""
    return int(float(text)) if _is_whole(text) else -1


# HEST-Benchmark


def _hest(folder: Path, name: str | None) -> Reading:
    """Spots of every sample as rows: image, barcode, log1p counts of the genes, folds of the sample."""
    genes = _genes(folder)
    target = TargetColumns(REGRESSION, genes)
    folds = _hest_folds(folder)
    splits: dict[str, list[RoiImage]] = {split: [] for split in SPLITS}
    for sample, (patches, expression, patient, words) in folds.items():
        letters = "".join(_LETTERS[word] for word in words)
        barcodes = _barcodes(patches)
        counts = _expression(expression, barcodes, genes)
        for row, (barcode, values) in enumerate(zip(barcodes, np.log1p(counts).tolist(), strict=True)):
            path, known_as = Path(f"{patches}/img/{row}"), f"{sample}_{barcode}"
            sites = as_sites({FOLDS: letters})
            splits[words[0]].append(RoiImage(path, 0, known_as, str(patches), patient, sites, tuple(values)))
    found = {split: tuple(images) for split, images in splits.items() if images}
    return Reading(RoiDataset(name or folder.resolve().name, (REGRESSION,), found, target))


def _genes(folder: Path) -> tuple[str, ...]:
    path = folder / GENES
    try:
        found = parse_json(read_text(path, what="HEST gene list"))
    except ValueError as error:
        raise HistobenchError(f"{path}: not JSON: {error}") from None
    genes = found.get("genes") if isinstance(found, dict) else None
    if not isinstance(genes, list) or not genes or not all(isinstance(gene, str) for gene in genes):
        raise HistobenchError(f'{path}: expected {{"genes": [names]}}')
    return tuple(dict.fromkeys(genes))


def _hest_folds(folder: Path) -> dict[str, tuple[Path, Path, str, list[str]]]:
    """Of every sample its patches, its expression, its patient, and its part in every fold."""
    tables = sorted(
        ((int(match[2]), match[1], path) for path in (folder / "splits").iterdir()
         if (match := re.fullmatch(r"(train|test)_(\d+)\.csv", path.name))),
    )  # fmt: skip
    count = len({number for number, _, _ in tables})
    if not count or len(tables) != 2 * count:
        raise HistobenchError(f"{folder / 'splits'}: expected train_0.csv, test_0.csv, train_1.csv, ...")
    found: dict[str, tuple[Path, Path, str, list[str]]] = {}
    for number, (_, word, path) in enumerate(tables):
        header, rows = _table(path, ",")
        for column in ("sample_id", "patches_path", "expr_path"):
            if column not in header:
                raise HistobenchError(f"{path} has no column {column!r}; {did_you_mean(column, header)}")
        for line, row in rows:
            sample = row["sample_id"]
            patient = row.get("patient") or sample
            places = folder / row["patches_path"], folder / row["expr_path"]
            words = found.setdefault(sample, (*places, patient, []))[3]
            if len(words) != number // 2:
                once = (
                    "is in this fold twice" if len(words) > number // 2 else "is missing from an earlier fold"
                )
                raise HistobenchError(f"{path}:{line}: {sample} {once}")
            words.append(word)
    short = next((sample for sample, (*_, words) in found.items() if len(words) != count), None)
    if short is not None:
        raise HistobenchError(f"{folder / 'splits'}: {short} is not in every fold")
    return found


def _barcodes(path: Path) -> list[str]:
    with _open(path) as box:
        key = next((name for name in ("barcode", "barcodes") if name in box), None)
        if key is None:
            raise HistobenchError(f"{path} has no `barcode`; expected `img`, `coords`, `barcode` of HEST")
        return as_barcodes(box[key][()])


def as_barcodes(values: Any) -> list[str]:
    """Barcodes as HEST writes them: an array of bytes or texts, [n] or [n, 1]."""
    return [item.decode() if isinstance(item, bytes) else str(item) for item in np.asarray(values).ravel()]


def _expression(path: Path, barcodes: Sequence[str], genes: Sequence[str]) -> NDArray[np.float64]:
    """Raw counts [spots, genes] of an AnnData file, in the order of the barcodes and genes."""
    with _open(path) as box:
        rows, columns = (
            {
                str(text): place
                for place, text in enumerate(h5ad_texts(part[part.attrs.get("_index", "_index")]))
            }
            for part in (box["obs"], box["var"])
        )
        for what, wanted, known in (("spot", barcodes, rows), ("gene", genes, columns)):
            missing = [text for text in wanted if text not in known]
            if missing:
                raise HistobenchError(f"{path} has no {what} {missing[0]!r} (missing: {len(missing)})")
        values = h5ad_matrix(box["X"], [columns[gene] for gene in genes])
    counts = values[[rows[barcode] for barcode in barcodes]].astype(np.float64)
    if not (counts >= 0).all():
        raise HistobenchError(f"{path}: counts below 0 or missing; HEST-Benchmark has raw counts")
    return counts


def _open(path: Path) -> Any:
    h5py = h5py_module()
    try:
        return h5py.File(path, "r")
    except FileNotFoundError:
        raise HistobenchError(f"{path} does not exist; the split tables name it") from None
    except OSError as error:
        raise HistobenchError(f"{path} cannot be read as HDF5: {str(error).splitlines()[0][:100]}") from None


def h5ad_texts(column: Any) -> Any:
    """A column of texts of AnnData: plain, nullable (values and mask) or categorical."""
    if "codes" in getattr(column, "keys", tuple)():
        categories = h5ad_texts(column["categories"])
        return [categories[code] for code in column["codes"][:]]
    if "values" in getattr(column, "keys", tuple)():
        column = column["values"]
    return column.asstr()[:] if column.dtype.kind == "O" else column[:]


def h5ad_matrix(entry: Any, columns: Sequence[int] | None = None) -> Any:
    """A matrix of AnnData, dense or sparse, as an array; of a few columns where these are given."""
    if not hasattr(entry, "keys"):
        return entry[:] if columns is None else entry[:][:, list(columns)]
    from scipy.sparse import csc_matrix, csr_matrix

    kind = csc_matrix if str(entry.attrs.get("encoding-type")).startswith("csc") else csr_matrix
    parts = entry["data"][:], entry["indices"][:], entry["indptr"][:]
    whole = kind(parts, shape=tuple(entry.attrs["shape"]))
    return (whole if columns is None else whole[:, list(columns)]).toarray()


# plismbench


def _plism(folder: Path, name: str | None) -> Reading:
    """Every slide of an extractor's folder; its tiles are places that all slides show."""
    images = []
    for file in sorted(folder.glob("*/features.npy")):
        slide = file.parent.name
        parts = slide.split("_")
        if len(parts) < 2:
            raise HistobenchError(f"{file.parent}: expected STAINING_SCANNER..., such as GMH_S60_to_GMH_S60")
        sites = as_sites({"staining": parts[0], "scanner": parts[1]})
        images.append(RoiImage(file.parent, 0, slide, str(file), None, sites))
    return Reading(RoiDataset(name or folder.resolve().name, ("tissue",), {"test": tuple(images)}))
