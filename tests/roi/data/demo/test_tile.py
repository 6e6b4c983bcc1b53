"""Synthetic tiles: the same from the same arguments, different otherwise, and unlike between classes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.data.demo.drawing import PERIOD, Brush, fields, ramp
from histobench.roi.data.demo.tile import CLASSES, NEIGHBOURS, PAINTERS, patient_of, render_tile, slide_of


@pytest.mark.parametrize("class_name", CLASSES)
def test_a_tile_is_an_rgb_image_of_the_asked_size(class_name: str) -> None:
    for size in (64, 224):
        tile = render_tile(class_name, seed=0, index=1, size=size)
        assert tile.shape == (size, size, 3)
        assert tile.dtype == np.uint8


def test_a_tile_larger_than_the_fields_still_renders() -> None:
    assert render_tile("STR", seed=0, index=0, size=PERIOD + 40).shape == (PERIOD + 40, PERIOD + 40, 3)


@pytest.mark.slow
@pytest.mark.parametrize("class_name", CLASSES)
def test_the_same_arguments_give_the_same_bytes_whatever_came_before(class_name: str) -> None:
    first = render_tile(class_name, seed=5, index=11).tobytes()
    for other in CLASSES:
        render_tile(other, seed=6, index=3)
    assert render_tile(class_name, seed=5, index=11).tobytes() == first


@pytest.mark.slow
def test_order_and_threads_do_not_change_a_tile() -> None:
    keys = [(name, index) for name in CLASSES for index in range(4)]
    alone = [render_tile(name, seed=1, index=index).tobytes() for name, index in keys]
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(lambda key: render_tile(key[0], seed=1, index=key[1]).tobytes(), reversed(keys))
        )
    assert together[::-1] == alone


@pytest.mark.slow
@pytest.mark.nightly
def test_another_process_gives_the_same_bytes() -> None:
    code = (
        "import hashlib; from histobench.roi.data.demo.tile import render_tile;"
        "print(hashlib.sha256(render_tile('TUM', seed=2, index=7).tobytes()).hexdigest())"
    )
    import hashlib

    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert there == hashlib.sha256(render_tile("TUM", seed=2, index=7).tobytes()).hexdigest()


def test_every_part_of_the_key_changes_the_tile() -> None:
    base = render_tile("MUS", seed=0, index=0)
    for other in (
        render_tile("STR", seed=0, index=0),
        render_tile("MUS", seed=1, index=0),
        render_tile("MUS", seed=0, index=1),
        render_tile("MUS", seed=0, index=0, domain="training"),
    ):
        assert (base != other).mean() > 0.5


def test_training_tiles_and_patients_never_equal_demo_tiles_and_patients() -> None:
    for seed in range(3):
        for patient in range(3):
            demo, training = (slide_of(patient, seed=seed, domain=d) for d in ("demo", "training"))
            assert not np.array_equal(demo.stains, training.stains)


def test_tiles_of_one_patient_share_the_slide_and_patients_differ() -> None:
    assert patient_of(0) == patient_of(4) != patient_of(5)
    assert slide_of(0, seed=0) is slide_of(0, seed=0)
    assert not np.array_equal(slide_of(0, seed=0).stains, slide_of(1, seed=0).stains)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"class_name": "TUN", "seed": 0, "index": 0}, "TUM"),
        ({"class_name": "TUM", "seed": -1, "index": 0}, "negative"),
        ({"class_name": "TUM", "seed": 0, "index": 0, "size": 8}, "at least 32"),
        ({"class_name": "TUM", "seed": 0, "index": 0, "domain": "tests"}, "domain"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(HistobenchError, match=message):
        render_tile(arguments.pop("class_name"), **arguments)


def test_neighbours_are_other_known_classes() -> None:
    for name, others in NEIGHBOURS.items():
        assert name in PAINTERS
        assert name not in others
        assert set(others) <= set(CLASSES)


def _statistics(name: str, count: int = 24) -> dict[str, float]:
    """Plain measurements on pure tissue, before any stain or scanner."""
    whole: dict[str, list[float]] = {"nuclei": [], "eosin": [], "empty": []}
    for index in range(count):
        tissue = PAINTERS[name](Brush(np.random.default_rng([index, 99]), 224))
        whole["nuclei"].append(float((tissue.haematoxylin > 0.7).mean()))
        whole["eosin"].append(float(tissue.eosin.mean()))
        whole["empty"].append(float(((tissue.eosin < 0.1) & (tissue.haematoxylin < 0.1)).mean()))
    return {key: float(np.mean(values)) for key, values in whole.items()}


@pytest.mark.slow
def test_the_classes_differ_in_what_defines_them() -> None:
    stats = {name: _statistics(name) for name in CLASSES}
    cellular = sorted(CLASSES, key=lambda name: stats[name]["nuclei"])
    assert set(cellular[-3:]) == {"LYM", "TUM", "NORM"}
    assert set(cellular[:3]) <= {"BACK", "ADI", "MUC"}
    assert min(stats["MUS"]["eosin"], stats["STR"]["eosin"]) > 2 * max(
        stats["ADI"]["eosin"], stats["BACK"]["eosin"], stats["MUC"]["eosin"]
    )
    assert stats["ADI"]["empty"] > 0.6
    assert max(stats[name]["empty"] for name in ("TUM", "MUS", "STR", "NORM")) < 0.35


def test_muscle_runs_in_one_direction_and_debris_in_none() -> None:
    def coherence(name: str) -> float:
        values = []
        for index in range(16):
            eosin = PAINTERS[name](Brush(np.random.default_rng([index, 5]), 224)).eosin
            gy, gx = np.gradient(eosin.astype(np.float64))
            xx, yy, xy = (gx * gx).mean(), (gy * gy).mean(), (gx * gy).mean()
            values.append(np.hypot(xx - yy, 2 * xy) / (xx + yy))
        return float(np.median(values))

    assert coherence("MUS") > coherence("DEB") + 0.1


def test_fields_wrap_around_without_a_seam() -> None:
    for field in (fields().cloud, fields().mottle, fields().fibre):
        values = field.flat.reshape(PERIOD, PERIOD)
        inner = np.abs(np.diff(values, axis=0)).mean()
        seam = np.abs(values[0] - values[-1]).mean()
        assert seam < 2 * inner


def test_sampling_a_field_reads_the_pixel_that_contains_the_coordinate() -> None:
    field = fields().grain
    rng = np.random.default_rng(0)
    v, u = rng.uniform(-900, 900, (2, 50)).astype(np.float32)
    table = field.flat.reshape(PERIOD, PERIOD)
    expected = [
        table[int(np.floor(a)) % PERIOD, int(np.floor(b)) % PERIOD] for a, b in zip(v, u, strict=True)
    ]
    assert np.mean(field.at(v, u) == np.array(expected)) > 0.95  # float32 rounding at pixel borders


def test_ramp_rises_and_falls() -> None:
    values = np.array([0.0, 1.0, 1.5, 2.0, 3.0], np.float32)
    assert ramp(values, 1.0, 2.0).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert ramp(values, 2.0, 1.0).tolist() == [1.0, 1.0, 0.5, 0.0, 0.0]


def test_softening_is_the_plain_five_point_mean() -> None:
    from histobench.roi.data.demo.drawing import _soften

    values = np.random.default_rng(0).random((7, 9)).astype(np.float32)
    padded = np.pad(values, 1, mode="edge")
    for share in (0.12, -0.05):
        expected = np.empty_like(values)
        for y in range(7):
            for x in range(9):
                around = padded[y, x + 1] + padded[y + 2, x + 1] + padded[y + 1, x] + padded[y + 1, x + 2]
                expected[y, x] = (1 - 4 * share) * values[y, x] + share * around
        np.testing.assert_allclose(_soften(values, share), expected, atol=1e-6)


def test_scanners_write_different_jpeg_files_of_the_same_tile() -> None:
    import io

    from PIL import Image

    from histobench.roi.data.demo.tile import tile_jpeg

    file = tile_jpeg("NORM", seed=0, index=2)
    assert file == tile_jpeg("NORM", seed=0, index=2)
    assert Image.open(io.BytesIO(file)).size == (224, 224)
    assert len({slide_of(patient, seed=0).jpeg_quality for patient in range(12)}) > 1
