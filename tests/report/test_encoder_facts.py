"""Licences and citations of the zoo as the report tells them."""

from __future__ import annotations

import re

import pytest

from histobench.report.encoder_facts import bibtex, encoder_facts, licence_terms
from histobench.roi.encoders.registry import list_encoders


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


def test_an_unknown_encoder_has_a_name_only() -> None:
    assert encoder_facts("made-up") == {
        "name": "made-up",
        "title": "made-up",
        "licence": "",
        "terms": "unknown",
    }


def test_an_output_of_an_encoder_has_its_facts() -> None:
    assert encoder_facts("virchow2@cls")["licence"] == encoder_facts("virchow2")["licence"]


def test_terms_never_promise_more_than_the_licence() -> None:
    assert licence_terms("Apache-2.0 with use terms") == "restricted"
    assert licence_terms("MIT (model hub) or CC-BY-NC-ND-4.0 (code repository)") == "non-commercial"
    assert licence_terms("") == "unknown"
