"""The synthetic demo dataset as a folder: tiles, split CSV, class map, prompts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice, zip_longest
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text, write_json, write_text
from histobench.core.plain_data import parse_json
from histobench.core.text import csv_text
from histobench.roi.data.demo.tiles import (
    CLASSES,
    FIRST_TEST_INDEX,
    TILES_PER_PATIENT,
    patient_of,
    slide_of,
    tile_jpeg,
)

#: Raised whenever the same arguments would give other pixels.
GENERATOR_VERSION = 3

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

_SITES = {"": [], "scanner": ["scanner"], "crossed": ["scanner", "stain"], "confounded": ["scanner", "stain"]}
_README = """\
SYNTHETIC DATA. No patient, no tissue, no scanner: every tile in this folder was drawn by a program of
histobench (histobench.roi.data.demo). The nine classes are named after the CRC-100K data set
and imitate its looks; results on these tiles say nothing about real histology.

{name}.csv                      split file: {train} training and {test} test tiles
{name}.txt                      class map (name,id)
{name}-Zero_Shot_Prompts.txt    one prompt per class, in the order of the ids
tiles/CLASS/                    {size} x {size} px JPEG files
"""


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
) -> Path:
    """Write the synthetic demo dataset into the folder `out` and return the path of its split CSV.

    The long layout (`image_path,label,split,group`) names the synthetic patient of each tile; the wide
    layout has no room for it. A folder that already holds exactly this dataset is left as it is.

    With `sites="crossed"` the long table also names the scanner and the stain lot of each tile, with
    `sites="scanner"` only the scanner. With `sites="confounded"` every other class comes from one kind of
    scanner only: a set to be warned of.

    `tiles_per_patient` is the number of tiles of each class that come from one patient, at most 5.
    """
    if sites not in _SITES or (sites and layout != "long"):
        raise HistobenchError(f"sites {sites!r}: expected {', '.join(_SITES)[2:]}, with the long layout")
    if not 1 <= tiles_per_patient <= TILES_PER_PATIENT:
        raise HistobenchError(
            f"`tiles_per_patient` must be from 1 to {TILES_PER_PATIENT}, not {tiles_per_patient}"
        )
    if size < 32:
        raise HistobenchError(f"a synthetic tile needs a size of at least 32 px, not {size}")
    recipe = {
        "synthetic": True,
        "name": name,
        "train_per_class": train_per_class,
        "test_per_class": test_per_class,
        "size": size,
        "seed": seed,
        "layout": layout,
        "generator_version": GENERATOR_VERSION,
        "sites": sites,
        "tiles_per_patient": tiles_per_patient,
    }
    out = Path(out)
    table, note = out / f"{name}.csv", out / f"{name}.recipe.json"
    tiles = {  # path in the folder: class, split, index, number of the patient in its split
        f"tiles/{label}/synthetic-{label}-{split}-{index - first:04d}.jpg": (
            label,
            split,
            index,
            patient_of(index - first),
        )
        for split, first, wanted in (
            ("train", 0, train_per_class),
            ("test", FIRST_TEST_INDEX, test_per_class),
        )
        for label in CLASSES
        for index in islice(_indices(label, first, seed, sites, tiles_per_patient), wanted)
    }
    same = table.is_file() and note.is_file() and parse_json(read_plain_text(note)) == recipe
    if same and all((out / path).is_file() for path in tiles):
        return table

    # The CSV is written last: while it is absent the folder is not a dataset.
    table.unlink(missing_ok=True)
    for leftover in out.glob("tiles/*/synthetic-*.jpg"):  # of an earlier, larger dataset
        leftover.unlink()
    for label in CLASSES:
        (out / "tiles" / label).mkdir(parents=True, exist_ok=True)

    def write(path: str) -> None:
        label, _, index, _ = tiles[path]
        (out / path).write_bytes(tile_jpeg(label, seed=seed, index=index, size=size))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, tiles))
    write_text(out / f"{name}.txt", "".join(f"{label},{i}\n" for i, label in enumerate(CLASSES)))
    prompts = out / f"{name}-Zero_Shot_Prompts.txt"
    if not prompts.exists():  # prompts are the user's to choose
        lines = (
            f"This is a pathology image showing {PROMPT_WORDS[c]} tissue characteristics\n" for c in CLASSES
        )
        write_text(prompts, "".join(lines))
    counts = {"train": train_per_class * len(CLASSES), "test": test_per_class * len(CLASSES)}
    write_text(out / "README.txt", _README.format(name=name, size=size, **counts))
    write_json(note, recipe)
    if layout == "wide":
        write_text(table, _wide_table(tiles))
        return table
    rows: list[list[object]] = []
    for path, (label, split, index, patient) in tiles.items():
        slide = slide_of(patient_of(index), seed=seed)
        places = [slide.scanner, slide.stain_lot][: len(_SITES[sites])]
        rows.append([path, CLASSES.index(label), split, f"synthetic-{split}-patient-{patient:03d}", *places])
    write_text(table, csv_text(["image_path", "label", "split", "group", *_SITES[sites]], rows))
    return table


def _indices(label: str, first: int, seed: int, sites: str, tiles_per_patient: int) -> Iterator[int]:
    """Yield the tiles of a class; where sites are confounded, those of its kind of scanner."""
    scanner = ("synthetic-sharp", "synthetic-soft")[CLASSES.index(label) % 2]
    for index in count(first):
        if index % TILES_PER_PATIENT < tiles_per_patient and (
            sites != "confounded" or slide_of(patient_of(index), seed=seed).scanner == scanner
        ):
            yield index


def _wide_table(tiles: dict[str, tuple[str, str, int, int]]) -> str:
    train, test = (
        [[path, CLASSES.index(label)] for path, (label, found, *_) in tiles.items() if found == split]
        for split in ("train", "test")
    )
    rows = [[*left, "", "", *right] for left, right in zip_longest(train, test, fillvalue=["", ""])]
    return csv_text(["train_path", "train_label", "val_path", "val_label", "test_path", "test_label"], rows)
