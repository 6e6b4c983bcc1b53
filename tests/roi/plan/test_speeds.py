"""Images per second are noted where enough were computed, and never made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.core.devices import device_name
from histobench.roi.options import DatasetEntry, Plan
from histobench.roi.plan.notes import SPEEDS, Speed, read_speeds, write_speeds
from histobench.roi.plan.planner import ExtractionEstimate, with_measured
from histobench.roi.plan.summary import _costs


def test_the_speed_of_most_images_is_kept_and_is_that_of_tables_and_estimates(tmp_path: Path) -> None:
    write_speeds(tmp_path, {})
    assert not (tmp_path / SPEEDS).exists()
    write_speeds(tmp_path, {"a": Speed(100, 1.0, "CPU"), "b": Speed(100, 1.0, "CPU")})
    write_speeds(tmp_path, {"a": Speed(50, 9.0, "CPU"), "b": Speed(200, 1.0, "CPU")})
    assert read_speeds(tmp_path) == {"a": Speed(100, 1.0, "CPU"), "b": Speed(200, 1.0, "CPU")}
    write_speeds(tmp_path, {"a": Speed(50, 0.5, "GPU")})  # of another device the latest
    assert read_speeds(tmp_path)["a"] == Speed(50, 0.5, "GPU")
    write_speeds(tmp_path, {"uni_v1": Speed(300, 2.0, "CPU")})
    costs = _costs(["a", "uni_v1 [seed 1]"], tmp_path)
    assert costs == {"a": "100 img/s", "uni_v1 [seed 1]": "303M, 150 img/s"}
    write_speeds(tmp_path, {"virchow2": Speed(200, 4.0, device_name("cpu"))})
    plan = Plan((), ("virchow2", "a"), tmp_path)
    jobs = [ExtractionEstimate(DatasetEntry("d", tmp_path), name, 300, 9.0, None) for name in plan.encoders]
    assert [job.seconds for job in with_measured(plan, jobs, "cpu")] == [6.0, 9.0]


@pytest.mark.parametrize(("device", "word"), [("cpu", "thread"), ("mps", "MPS")])
def test_a_device_has_a_name(device: str, word: str) -> None:
    assert word in device_name(device)
