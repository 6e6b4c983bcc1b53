"""Synthetic tiles: the same from the same arguments, different otherwise, and unlike between classes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from histobench.roi.data.demo.painter import (
    CLASSES,
    PAINTERS,
    PERIOD,
    Brush,
    patient_of,
    ramp,
    render_tile,
    slide_of,
    tile_jpeg,
)


@pytest.mark.parametrize("size", [64, PERIOD + 40])
def test_a_tile_is_an_rgb_image_of_the_given_size(size: int) -> None:
    tile = render_tile("STR", seed=0, index=1, size=size)
    assert (tile.shape, tile.dtype) == ((size, size, 3), np.dtype(np.uint8))


@pytest.mark.slow
def test_order_and_threads_do_not_change_a_tile() -> None:
    keys = [(name, index) for name in CLASSES for index in range(3)]
    alone = [tile_jpeg(name, seed=1, index=index, size=96) for name, index in keys]
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(lambda key: tile_jpeg(key[0], seed=1, index=key[1], size=96), reversed(keys))
        )
    assert together[::-1] == alone


@pytest.mark.slow
@pytest.mark.nightly
def test_another_process_gives_the_same_bytes() -> None:
    code = (
        "import hashlib; from histobench.roi.data.demo import render_tile;"
        "print(hashlib.sha256(render_tile('TUM', seed=2, index=7).tobytes()).hexdigest())"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == hashlib.sha256(render_tile("TUM", seed=2, index=7).tobytes()).hexdigest()


def test_every_part_of_the_key_changes_the_tile() -> None:
    base = render_tile("MUS", seed=0, index=0, size=96)
    for name, seed, index in (("STR", 0, 0), ("MUS", 1, 0), ("MUS", 0, 1)):
        assert (base != render_tile(name, seed=seed, index=index, size=96)).mean() > 0.5


def test_tiles_of_one_patient_share_the_slide_and_patients_differ() -> None:
    assert patient_of(0) == patient_of(4) != patient_of(5)
    slides = [slide_of(patient, seed=0) for patient in range(12)]
    assert not np.array_equal(slides[0].stains, slides[1].stains)
    for field in ("scanner", "stain_lot", "jpeg_quality"):
        assert len({getattr(slide, field) for slide in slides}) > 1


def test_the_classes_differ_in_what_defines_them() -> None:
    means = {}
    for name in CLASSES:
        values = []
        for index in range(12):
            hematoxylin, eosin, nuclei = PAINTERS[name](Brush(np.random.default_rng([index, 99]), 224))
            dark = np.maximum(hematoxylin, nuclei)
            empty = (eosin < 0.1) & (dark < 0.1)
            values.append([(dark > 0.7).mean(), eosin.mean(), empty.mean()])
        means[name] = np.mean(values, axis=0)
    nuclear, pink, empty = ({name: means[name][k] for name in CLASSES} for k in range(3))
    cellular = sorted(CLASSES, key=lambda name: nuclear[name])
    assert set(cellular[-3:]) == {"LYM", "TUM", "NORM"}
    assert set(cellular[:3]) == {"BACK", "ADI", "MUC"}
    assert min(pink["MUS"], pink["STR"]) > 2 * max(pink["ADI"], pink["BACK"], pink["MUC"])
    assert empty["ADI"] > 0.6
    assert max(empty[name] for name in ("TUM", "MUS", "STR", "NORM")) < 0.35


def test_ramp_rises_and_falls() -> None:
    values = np.array([0.0, 1.0, 1.5, 2.0, 3.0], np.float32)
    assert ramp(values, 1.0, 2.0).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert ramp(values, 2.0, 1.0).tolist() == [1.0, 1.0, 0.5, 0.0, 0.0]
