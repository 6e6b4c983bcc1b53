"""Task folders of published benchmarks as they are: Patho-Bench, HEST-Benchmark and plismbench.

The folds of a folder are kept in one column (`FOLDS`): a letter per fold, t for train, v for val, e for test.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.plain_data import parse_json, read_yaml
from histobench.roi.data.roi_dataset import SPLITS, Problem, Reading, RoiDataset, RoiImage
from histobench.roi.data.sites import FOLDS, SAMPLE, wanted_columns
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
    if kind != PATHO_BENCH:
        return REGRESSION if kind == HEST else CLASS
    with _of_published_form(folder, kind):
        return SURVIVAL if _config(folder)["task_col"].startswith(_SURVIVAL_TASKS) else CLASS


def read_task_folder(folder: Path, name: str | None, site_columns: Sequence[str] = ()) -> Reading:
    """The rows of a task folder; what is wrong with them comes back beside what could be read."""
    kind = kind_of_folder(folder)
    with _of_published_form(folder, kind):
        if kind == PATHO_BENCH:
            return _patho_bench(folder, name, site_columns)
        return _hest(folder, name) if kind == HEST else _plism(folder, name)


@contextmanager
def _of_published_form(folder: Path, kind: str) -> Iterator[None]:
    """Other files than the published ones are one error, not one for everything that may be different."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise HistobenchError(
            f"{folder} does not have the published form of {kind} ({type(error).__name__}: {error})"
        ) from error


def _config(folder: Path) -> Any:
    path = folder / CONFIG
    return read_yaml(read_text(path, what="Patho-Bench config"), where=str(path))


def _patho_bench(folder: Path, name: str | None, site_columns: Sequence[str]) -> Reading:
    config = _config(folder)
    path = folder / TABLE
    rows = _table(path, "\t")
    header = list(rows[0][1])
    task, sample_column = config["task_col"], config["sample_col"]
    survival = (f"{task}_days", f"{task}_event") if task.startswith(_SURVIVAL_TASKS) else ()
    folds = sorted(
        (column for column in header if "fold_" in column), key=lambda column: int(column.rpartition("_")[2])
    )
    target = TargetColumns(SURVIVAL, survival) if survival else None
    names = {int(label): str(text) for label, text in config["label_dict"].items()}
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
        if wrong is not None:
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
            image = RoiImage(folder / slide, label, slide, origin, case, tuple(sites.items()), numbers)
            splits[values[1]].append(image)
    classes = (SURVIVAL,) if target else tuple(names[label] for label in range(len(names)))
    found = {split: tuple(images) for split, images in splits.items() if images}
    data = RoiDataset(name or folder.resolve().name, classes, found, target, pool="slides")
    return Reading(data, tuple(problems))


def _table(path: Path, separator: str) -> list[tuple[int, dict[str, str]]]:
    """The rows of a table with their lines, all cells as they are written."""
    reader = csv.DictReader(io.StringIO(read_text(path, what="table"), newline=""), delimiter=separator)
    return [(reader.line_num, {name: cell.strip() for name, cell in row.items()}) for row in reader]


def _whole(text: str) -> int:
    """A label of a table, where pandas may have written 1.0; -1 for another text."""
    return int(float(text)) if re.fullmatch(r"\d+(\.0+)?", text) else -1


def _hest(folder: Path, name: str | None) -> Reading:
    """Spots of every sample as rows: image, barcode, log1p counts of the genes, folds of the sample."""
    genes = tuple(dict.fromkeys(parse_json(read_text(folder / GENES, what="HEST gene list"))["genes"]))
    target = TargetColumns(REGRESSION, genes)
    folds = _hest_folds(folder)
    splits: dict[str, list[RoiImage]] = {split: [] for split in SPLITS}
    for sample, (patches, expression, patient, words) in folds.items():
        letters = "".join(_LETTERS[word] for word in words)
        with _open(patches) as box:
            barcodes = as_barcodes(box["barcode" if "barcode" in box else "barcodes"][()])
        counts = _expression(expression, barcodes, genes)
        for row, (barcode, values) in enumerate(zip(barcodes, np.log1p(counts).tolist(), strict=True)):
            path, known_as = Path(f"{patches}/img/{row}"), f"{sample}_{barcode}"
            sites = ((FOLDS, letters),)
            splits[words[0]].append(RoiImage(path, 0, known_as, str(patches), patient, sites, tuple(values)))
    found = {split: tuple(images) for split, images in splits.items() if images}
    return Reading(RoiDataset(name or folder.resolve().name, (REGRESSION,), found, target))


def _hest_folds(folder: Path) -> dict[str, tuple[Path, Path, str, list[str]]]:
    """Of every sample its patches, its expression, its patient, and its part in every fold."""
    found: dict[str, tuple[Path, Path, str, list[str]]] = {}
    count = len(list((folder / "splits").glob("test_*.csv")))
    for fold in range(count):
        for word in ("test", "train"):
            for line, row in _table(folder / "splits" / f"{word}_{fold}.csv", ","):
                sample = row["sample_id"]
                places = folder / row["patches_path"], folder / row["expr_path"]
                patient = row.get("patient") or sample
                words = found.setdefault(sample, (*places, patient, []))[3]
                if len(words) != fold:
                    raise ValueError(f"{word}_{fold}.csv:{line}: {sample} must be once in every fold")
                words.append(word)
    if short := [sample for sample, (*_, words) in found.items() if len(words) != count]:
        raise ValueError(f"{short[0]} is not in every fold")
    return found


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
        values = h5ad_matrix(box["X"], [columns[gene] for gene in genes])
    counts = np.asarray(values[[rows[barcode] for barcode in barcodes]], dtype=np.float64)
    if not (counts >= 0).all():
        raise ValueError(f"{path.name}: counts below 0 or missing")
    return counts


def _open(path: Path) -> Any:
    try:
        return h5py_module().File(path, "r")
    except OSError as error:
        reason = "it does not exist" if not path.exists() else str(error).splitlines()[0][:100]
        raise HistobenchError(f"{path} cannot be read as HDF5: {reason}") from None


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


def _plism(folder: Path, name: str | None) -> Reading:
    """Every slide of an extractor's folder; its tiles are places that all slides show."""
    images = []
    for file in sorted(folder.glob("*/features.npy")):
        slide = file.parent.name
        staining, scanner = slide.split("_")[:2]
        sites = (("staining", staining), ("scanner", scanner))
        images.append(RoiImage(file.parent, 0, slide, str(file), None, sites))
    return Reading(RoiDataset(name or folder.resolve().name, ("tissue",), {"test": tuple(images)}))
