"""Licenses, citations and measured speeds of encoders in the report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from histobench.report.encoder_facts import bibtex, encoder_facts, measured_speed
from histobench.roi.encoders.registry import list_encoders
from histobench.roi.plan.notes import Speed, write_speeds


@pytest.mark.parametrize("name", [spec.name for spec in list_encoders()])
def test_every_encoder_of_the_zoo_can_be_cited(name: str) -> None:
    facts = encoder_facts(name)
    entry = bibtex(facts)
    if not re.search(r"\d{4}$", facts["reference"]):
        assert entry is None  # not a publication
        return
    assert entry is not None
    assert entry.startswith(("@article{", "@misc{"))
    assert entry.count("{") == entry.count("}")
    assert re.search(r"year = \{\d{4}\}", entry)


def test_facts_never_promise_more_than_is_known() -> None:
    unknown = {"name": "made-up", "title": "made-up", "licence": "", "terms": "unknown"}
    assert encoder_facts("made-up") == unknown
    assert encoder_facts("virchow2@cls")["licence"] == encoder_facts("virchow2")["licence"]
    terms = {name: encoder_facts(name)["terms"] for name in ("gigapath", "prost40m", "resnet50", "uni_v1")}
    assert list(terms.values()) == ["restricted", "unknown", "open", "non-commercial"]


def test_the_device_with_most_encoders_and_the_measurement_on_more_images_are_shown(tmp_path: Path) -> None:
    assert measured_speed(tmp_path) == ({}, "")
    write_speeds(tmp_path / "one", {"a": Speed(100, 1.0, "CPU"), "b": Speed(100, 2.0, "CPU")})
    write_speeds(tmp_path / "two", {"a": Speed(9000, 1.0, "GPU")})
    write_speeds(tmp_path / "three", {"a": Speed(1000, 5.0, "CPU")})
    assert measured_speed(tmp_path) == ({"a": 200.0, "b": 50.0}, "CPU")
