"""Every entry of the zoo and of the registry says where its facts were read, and when."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from histobench.cli.main import main
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.registry import get_spec, list_encoders
from histobench.roi.registry.dataset_entry import all_datasets

DATE = r"20\d\d-\d\d-\d\d"


def gaps(spec: EncoderSpec) -> list[str]:
    """What an entry does not prove."""
    facts = spec.facts
    if facts is None:
        return ["facts"]
    made_here = spec.source.kind in ("seed", "project")
    held = {
        "date": re.fullmatch(DATE, facts.date),
        "license": facts.license,
        "why": facts.why or facts.commercial != "unclear",
        "two sources": len(set(facts.build)) >= 2 or spec.unconfirmed or made_here,
        "revision": re.fullmatch(r"([0-9a-f]{40})?", spec.source.revision),
    }
    return [name for name, found in held.items() if not found]


def test_every_encoder_has_sources_and_dates() -> None:
    assert {spec.name: gaps(spec) for spec in list_encoders() if gaps(spec)} == {}


@pytest.mark.parametrize(
    ("change", "gap"),
    [
        ({"date": "today"}, "date"),
        ({"license": ""}, "license"),
        ({"why": ""}, "why"),
        ({"build": ("card",)}, "two sources"),
    ],
)
def test_an_entry_without_one_of_them_is_found(change: dict[str, str], gap: str) -> None:
    spec = get_spec("plip")
    assert spec.facts is not None
    assert gaps(replace(spec, facts=None)) == ["facts"]
    assert gaps(replace(spec, facts=replace(spec.facts, **change))) == [gap]


def test_every_dataset_has_the_source_and_date_of_its_license() -> None:
    for entry in all_datasets().values():
        assert re.fullmatch(DATE, entry.facts.date), entry.name
        assert ("not found" in entry.facts.license) == (entry.license == "unknown"), entry.name
        assert "memory" not in " ".join(entry.unconfirmed), entry.name


def test_the_page_of_an_encoder_names_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", "ctranspath"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"commercial use +restricted: its authors allow non-commercial academic use only", shown)
    assert re.search(rf"license read in +github.com/Xiyue-Wang/TransPath README .*{DATE}", shown)
    assert re.search(rf"numbers read in +.*TransPath; .*{DATE}", shown)
    assert main(["models", "show", "genbio-pathfm"]) == 0
    assert re.search(r"revision +not pinned\nsha256 +not pinned", capsys.readouterr().out)
