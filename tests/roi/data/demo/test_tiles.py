"""Synthetic tiles: the same from the same arguments only; the pack is what the script draws."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from pack_tissue import gray_picture
from PIL import Image

from histobench.roi.data.demo import CLASSES, patient_of, render_tile
from histobench.roi.data.demo.tiles import (
    DRAWN_SIDE,
    FIRST_TEST_INDEX,
    LEVELS,
    PACK,
    TEST_DRAWINGS,
    TRAIN_DRAWINGS,
    slide_of,
)


def drawings() -> dict[str, np.ndarray]:
    with zipfile.ZipFile(PACK) as pack:
        return {
            name: np.asarray(Image.open(io.BytesIO(pack.read(name))).convert("L"), dtype=float)
            for name in pack.namelist()
        }


@pytest.mark.slow
def test_the_pack_holds_what_the_script_draws_and_is_small() -> None:
    assert PACK.stat().st_size < 4_000_000
    found = drawings()
    assert len(found) == len(CLASSES) * (TRAIN_DRAWINGS + TEST_DRAWINGS)
    for number, name in enumerate(CLASSES):
        drawn, packed = gray_picture(name, number).astype(float), found[f"{name}-{number:02d}.webp"]
        assert np.abs(drawn - packed).mean() < 4
        assert drawn.std() < 2 or np.corrcoef(drawn.ravel(), packed.ravel())[0, 1] > 0.95


@pytest.mark.parametrize("size", [64, DRAWN_SIDE + 40])
def test_a_tile_is_an_rgb_image_of_the_given_size(size: int) -> None:
    tile = render_tile("STR", seed=0, index=1, size=size)
    assert (tile.shape, tile.dtype) == ((size, size, 3), np.dtype(np.uint8))


def test_every_part_of_the_key_changes_the_tile() -> None:
    base = render_tile("MUS", seed=0, index=0, size=96)
    assert np.array_equal(base, render_tile("MUS", seed=0, index=0, size=96))
    for name, seed, index in (("STR", 0, 0), ("MUS", 1, 0), ("MUS", 0, 1), ("MUS", 0, FIRST_TEST_INDEX)):
        assert (base != render_tile(name, seed=seed, index=index, size=96)).mean() > 0.5


def test_tiles_of_one_patient_share_the_slide_and_patients_differ() -> None:
    assert patient_of(0) == patient_of(4) != patient_of(5)
    slides = [slide_of(patient, seed=0) for patient in range(12)]
    assert not np.array_equal(slides[0].stains, slides[1].stains)
    for field in ("scanner", "stain_lot", "jpeg_quality"):
        assert len({getattr(slide, field) for slide in slides}) > 1


@pytest.mark.slow
def test_the_classes_differ_in_what_defines_them() -> None:
    measured: dict[str, list[list[float]]] = {name: [] for name in CLASSES}
    for file, picture in drawings().items():
        hematoxylin, eosin = picture.reshape(2, -1) / LEVELS
        empty = (eosin < 0.1) & (hematoxylin < 0.1)
        measured[file.partition("-")[0]].append([(hematoxylin > 0.7).mean(), eosin.mean(), empty.mean()])
    nuclear, pink, empty = (
        {name: np.mean(values, axis=0)[k] for name, values in measured.items()} for k in range(3)
    )
    cellular = sorted(CLASSES, key=lambda name: nuclear[name])
    assert set(cellular[-3:]) == {"LYM", "TUM", "NORM"}
    assert set(cellular[:3]) == {"BACK", "ADI", "MUC"}
    assert min(pink["MUS"], pink["STR"]) > 2 * max(pink["ADI"], pink["BACK"], pink["MUC"])
    assert empty["ADI"] > 0.6
    assert max(empty[name] for name in ("TUM", "MUS", "STR", "NORM")) < 0.35
