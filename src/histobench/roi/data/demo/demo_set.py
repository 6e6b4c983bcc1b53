"""The synthetic demo dataset as a folder: tiles, split CSV, class map, prompts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import read_plain_text, write_json, write_text
from histobench.core.plain_data import parse_json
from histobench.core.text import csv_text
from histobench.roi.data.demo.tile import CLASSES, TILES_PER_PATIENT, patient_of, slide_of, tile_jpeg

#: Raised whenever the same arguments would give other pixels.
GENERATOR_VERSION = 1
#: Test tiles are counted from here, so test patients never meet training patients.
FIRST_TEST_INDEX = 1_000_000

PROMPT_WORDS = {
    "NORM": "normal",
    "STR": "stroma",
    "TUM": "tumor",
    "MUS": "muscle",
    "MUC": "mucus",
    "LYM": "lymphocytes",
    "DEB": "debris",
    "BACK": "background",
    "ADI": "adipose",
}

_LAYOUTS = ("long", "wide")
_SITES = ("crossed", "confounded", "scanner")
_README = """\
SYNTHETIC DATA. No patient, no tissue, no scanner: every tile in this folder was computed from random
numbers by histobench (histobench.roi.data.demo). The nine classes are named after the CRC-100K data set
and imitate its looks; results on these tiles say nothing about real histology.

{name}.csv                      split file: {train} training and {test} test tiles
{name}.txt                      class map (name,id)
{name}-Zero_Shot_Prompts.txt    one prompt per class, in the order of the ids
tiles/CLASS/                    {size} x {size} px JPEG files
"""


@dataclass(frozen=True)
class _Recipe:
    """Everything that the content of the folder depends on."""

    name: str
    train_per_class: int
    test_per_class: int
    size: int
    seed: int
    layout: str
    generator_version: int = GENERATOR_VERSION
    sites: str = ""
    tiles_per_patient: int = TILES_PER_PATIENT

    def as_note(self) -> dict[str, object]:
        """What is written beside the tiles; later options only where they are not the default."""
        usual = {"sites": "", "tiles_per_patient": TILES_PER_PATIENT}
        found = {key: value for key, value in asdict(self).items() if value != usual.get(key, ...)}
        return {"synthetic": True, **found}


@dataclass(frozen=True)
class _Tile:
    class_name: str
    split: str
    index: int

    @property
    def number(self) -> int:
        return self.index - FIRST_TEST_INDEX if self.split == "test" else self.index

    @property
    def path(self) -> str:
        return f"tiles/{self.class_name}/synthetic-{self.class_name}-{self.split}-{self.number:04d}.jpg"

    @property
    def group(self) -> str:
        return f"synthetic-{self.split}-patient-{patient_of(self.number):03d}"


def write_demo_dataset(
    out: str | Path,
    *,
    name: str = "synthetic-crc",
    train_per_class: int = 60,
    test_per_class: int = 30,
    size: int = 224,
    seed: int = 0,
    layout: str = "long",
    sites: str = "",
    tiles_per_patient: int = TILES_PER_PATIENT,
    workers: int = 2,
) -> Path:
    """Write the synthetic demo dataset into the folder `out` and return the path of its split CSV.

    The long layout (`image_path,label,split,group`) names the synthetic patient of each tile; the wide
    layout has no room for it. A folder that already holds exactly this dataset is left as it is.

    With `sites="crossed"` the long table also names the scanner and the stain lot of each tile. With
    `sites="confounded"` every other class comes from one kind of scanner only: a set to be warned of. With
    `sites="scanner"` the table names only the scanner.

    `tiles_per_patient` is the number of tiles of each class that come from one patient, at most 5.
    """
    if layout not in _LAYOUTS:
        raise HistobenchError(f"unknown CSV layout {layout!r}; {did_you_mean(layout, _LAYOUTS)}")
    if sites and (sites not in _SITES or layout != "long"):
        raise HistobenchError(f"sites {sites!r}: expected {' or '.join(_SITES)}, with the long layout")
    if train_per_class < 1 or test_per_class < 1:
        raise HistobenchError("the demo dataset needs at least one training and one test tile per class")
    out = Path(out)
    if not 1 <= tiles_per_patient <= TILES_PER_PATIENT:
        raise HistobenchError(
            f"`tiles_per_patient` must be from 1 to {TILES_PER_PATIENT}, not {tiles_per_patient}"
        )
    recipe = _Recipe(
        name,
        train_per_class,
        test_per_class,
        size,
        seed,
        layout,
        sites=sites,
        tiles_per_patient=tiles_per_patient,
    )
    tiles = list(_listing(recipe))
    table, note = out / f"{name}.csv", out / f"{name}.recipe.json"
    if _is_complete(out, table, note, recipe, tiles):
        return table

    # The CSV is written last: while it is absent the folder is not a dataset.
    table.unlink(missing_ok=True)
    _remove_leftovers(out, tiles)
    for class_name in CLASSES:
        (out / "tiles" / class_name).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for _ in pool.map(lambda tile: _write_tile(out, tile, size=size, seed=seed), tiles):
            pass
    write_text(out / f"{name}.txt", "".join(f"{c},{i}\n" for i, c in enumerate(CLASSES)))
    prompts = out / f"{name}-Zero_Shot_Prompts.txt"
    if not prompts.exists():  # prompts are the user's to choose
        lines = [
            f"This is a pathology image showing {PROMPT_WORDS[c]} tissue characteristics\n" for c in CLASSES
        ]
        write_text(prompts, "".join(lines))
    counts = {"train": train_per_class * len(CLASSES), "test": test_per_class * len(CLASSES)}
    write_text(out / "README.txt", _README.format(name=name, size=size, **counts))
    write_json(note, recipe.as_note())
    write_text(table, _long_table(tiles, recipe) if layout == "long" else _wide_table(tiles))
    return table


def _listing(recipe: _Recipe) -> Iterator[_Tile]:
    for split, first, number in (
        ("train", 0, recipe.train_per_class),
        ("test", FIRST_TEST_INDEX, recipe.test_per_class),
    ):
        for class_name in CLASSES:
            for index in islice(_indices(recipe, class_name, first), number):
                yield _Tile(class_name, split, index)


def _indices(recipe: _Recipe, class_name: str, first: int) -> Iterator[int]:
    """The tiles of a class in order; where sites are confounded, those of its kind of scanner."""
    wanted = ("synthetic-sharp", "synthetic-soft")[CLASSES.index(class_name) % 2]
    for index in count(first):
        if index % TILES_PER_PATIENT >= recipe.tiles_per_patient:
            continue
        slide = slide_of(patient_of(index), seed=recipe.seed)
        if recipe.sites != "confounded" or slide.scanner == wanted:
            yield index


def _write_tile(out: Path, tile: _Tile, *, size: int, seed: int) -> None:
    content = tile_jpeg(tile.class_name, seed=seed, index=tile.index, size=size)
    target = out / tile.path
    try:
        target.write_bytes(content)
    except OSError as error:
        raise HistobenchError(f"cannot write {target}: {error.strerror or error}") from error


def _is_complete(out: Path, table: Path, note: Path, recipe: _Recipe, tiles: list[_Tile]) -> bool:
    if not table.is_file() or not note.is_file():
        return False
    try:
        found = parse_json(read_plain_text(note))
    except (OSError, ValueError):
        return False
    return found == recipe.as_note() and all((out / t.path).is_file() for t in tiles)


def _remove_leftovers(out: Path, tiles: list[_Tile]) -> None:
    """Delete this generator's tiles of an earlier, larger dataset: a class folder must hold no strangers."""
    wanted = {tile.path for tile in tiles}
    for class_name in CLASSES:
        for path in sorted((out / "tiles" / class_name).glob(f"synthetic-{class_name}-*.jpg")):
            if path.relative_to(out).as_posix() not in wanted:
                path.unlink()


def _long_table(tiles: list[_Tile], recipe: _Recipe) -> str:
    sited = {"": [], "scanner": ["scanner"]}.get(recipe.sites, ["scanner", "stain"])
    rows: list[list[object]] = []
    for tile in tiles:
        slide = slide_of(patient_of(tile.index), seed=recipe.seed)
        sites = [slide.scanner, slide.stain_lot][: len(sited)]
        rows.append([tile.path, CLASSES.index(tile.class_name), tile.split, tile.group, *sites])
    return csv_text(["image_path", "label", "split", "group", *sited], rows)


def _wide_table(tiles: list[_Tile]) -> str:
    header = ["train_path", "train_label", "val_path", "val_label", "test_path", "test_label"]
    rows = []
    columns = [
        [(tile.path, str(CLASSES.index(tile.class_name))) for tile in tiles if tile.split == split]
        for split in ("train", "test")
    ]
    for row in range(max(map(len, columns))):
        train, test = (column[row] if row < len(column) else ("", "") for column in columns)
        rows.append([*train, "", "", *test])
    return csv_text(header, rows)
