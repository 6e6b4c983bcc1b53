"""Images per second are noted where enough were computed, and never made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.core.devices import device_name
from histobench.roi.plan.notes import SPEEDS, Speed, read_speeds, write_speeds


def test_more_images_replace_fewer_and_fewer_do_not_replace_more(tmp_path: Path) -> None:
    write_speeds(tmp_path, {})
    assert not (tmp_path / SPEEDS).exists()
    write_speeds(tmp_path, {"a": Speed(100, 1.0, "CPU"), "b": Speed(100, 1.0, "CPU")})
    write_speeds(tmp_path, {"a": Speed(50, 9.0, "CPU"), "b": Speed(200, 1.0, "CPU")})
    assert read_speeds(tmp_path) == {"a": Speed(100, 1.0, "CPU"), "b": Speed(200, 1.0, "CPU")}
    write_speeds(tmp_path, {"a": Speed(50, 0.5, "GPU")})  # of another device the latest
    assert read_speeds(tmp_path)["a"] == Speed(50, 0.5, "GPU")


@pytest.mark.parametrize(("device", "word"), [("cpu", "thread"), ("mps", "MPS")])
def test_a_device_has_a_name(device: str, word: str) -> None:
    assert word in device_name(device)
