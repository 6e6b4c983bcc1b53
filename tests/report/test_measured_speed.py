"""Images per second come from what runs measured, of one device."""

from __future__ import annotations

from pathlib import Path

from histobench.report.encoder_facts import measured_speed
from histobench.roi.plan.speeds import Speed, write_speeds


def test_the_device_with_most_encoders_is_shown(tmp_path: Path) -> None:
    write_speeds(tmp_path / "one", {"a": Speed(100, 1.0, "CPU"), "b": Speed(100, 2.0, "CPU")})
    write_speeds(tmp_path / "two", {"a": Speed(9000, 1.0, "GPU")})
    assert measured_speed(tmp_path) == ({"a": 100.0, "b": 50.0}, "CPU")


def test_the_measurement_on_more_images_counts(tmp_path: Path) -> None:
    write_speeds(tmp_path / "one", {"a": Speed(100, 1.0, "CPU")})
    write_speeds(tmp_path / "two", {"a": Speed(1000, 5.0, "CPU")})
    assert measured_speed(tmp_path) == ({"a": 200.0}, "CPU")


def test_nothing_measured_is_nothing(tmp_path: Path) -> None:
    assert measured_speed(tmp_path) == ({}, "")
