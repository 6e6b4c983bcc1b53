"""Images per second are noted where enough were computed, and never made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.roi.features.extract import Extraction
from histobench.roi.plan.speeds import FILE, Speed, device_name, measured_speeds, read_speeds, write_speeds


def extraction(encoder: str, split: str, computed: int, seconds: float) -> Extraction:
    return Extraction(encoder, encoder, split, Path("f.pt"), computed, computed, "x", forward_seconds=seconds)


def test_the_splits_of_an_encoder_are_one_measurement() -> None:
    done = [extraction("a", "train", 100, 4.0), extraction("a", "test", 60, 4.0)]
    assert measured_speeds(done, "CPU") == {"a": Speed(160, 4.0, "CPU")}
    assert measured_speeds(done, "CPU")["a"].images_per_second == 40


def test_images_from_the_cache_measure_nothing() -> None:
    assert measured_speeds([extraction("a", "train", 0, 0.0), extraction("b", "train", 10, 1.0)], "CPU") == {}


def test_more_images_replace_fewer_and_fewer_do_not_replace_more(tmp_path: Path) -> None:
    write_speeds(tmp_path, {"a": Speed(100, 1.0, "CPU"), "b": Speed(100, 1.0, "CPU")})
    write_speeds(tmp_path, {"a": Speed(50, 9.0, "CPU"), "b": Speed(200, 1.0, "CPU")})
    assert read_speeds(tmp_path) == {"a": Speed(100, 1.0, "CPU"), "b": Speed(200, 1.0, "CPU")}


def test_nothing_measured_writes_nothing(tmp_path: Path) -> None:
    write_speeds(tmp_path, {})
    assert not (tmp_path / FILE).exists()
    (tmp_path / FILE).write_text('{"a": {"images": 5}}')
    assert read_speeds(tmp_path) == {}


@pytest.mark.parametrize(("device", "word"), [("cpu", "thread"), ("mps", "MPS")])
def test_a_device_has_a_name(device: str, word: str) -> None:
    assert word in device_name(device)
