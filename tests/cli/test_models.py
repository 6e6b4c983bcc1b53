"""histobench models and histobench doctor, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from histobench.cli.main import main
from histobench.roi.encoders.registry import list_encoders

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HISTOBENCH_WEIGHTS", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_table_has_a_line_for_every_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if line.strip()]
    assert {spec.name for spec in list_encoders()} <= set(names)
    virchow2 = next(line for line in lines if line.startswith("virchow2 "))
    assert "2560" in virchow2
    assert "631.2 M" in virchow2
    assert "@cls 1280" in virchow2
    assert "CC-BY-NC-ND-4.0" in virchow2


def test_the_table_can_be_narrowed_and_read_by_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json", "--zero-shot"]) == 0
    assert "conch_v1" in {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert main(["models", "--json", "--present"]) == 0
    present = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert {"efficientnet-lite0", "random-vit", "tiny-vl"} <= present
    assert "uni_v1" not in present


def test_one_encoder_is_shown_with_its_citation_and_the_way_to_its_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models", "show", "uni_v2"]) == 0
    page = capsys.readouterr().out
    for part in (
        "Chen et al., Towards a general-purpose foundation model",
        "request access at https://huggingface.co/MahmoodLab/UNI2-h",
        "hf auth login",
        "hf download MahmoodLab/UNI2-h pytorch_model.bin --revision d517a8dd47902dd7c308b3c36f63bce47e7b9a43",
        "uni_v2@clsmean (3072, cls+mean)",
        "6e077eda234bebc595868d918d3458d9dd32a050199b0ff04443b2f46a0a3b1e",
    ):
        assert part in page
    assert main(["models", "UNI2-h"]) == 0
    assert capsys.readouterr().out == page


def test_an_unknown_name_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", "uni_v3"]) == 2
    assert "did you mean uni_v" in capsys.readouterr().err
    assert main(["models", "show"]) == 2


def test_the_table_of_the_docs_is_the_generated_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--markdown"]) == 0
    table = capsys.readouterr().out.strip()
    assert table.count("\n") == len(list_encoders()) + 1
    assert table in (ROOT / "docs" / "reference" / "encoders.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_doctor_passes_what_works_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--models", "efficientnet-lite0,random-vit"]) == 0
    report = capsys.readouterr().out
    assert "FAIL" not in report
    assert "PASS  efficientnet-lite0" in report


def test_the_doctor_fails_with_the_fix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    weights = tmp_path / "weights.json"
    weights.write_text(json.dumps({"uni_v1": str(tmp_path / "gone.bin")}))
    assert main(["doctor", "--models", "uni_v1", "--weights", str(weights)]) == 1
    assert "gone.bin, do not exist" in capsys.readouterr().out
    assert main(["doctor", "--models", "virchow2,unknown_model"]) == 1
    report = capsys.readouterr().out
    assert "request access at https://huggingface.co/paige-ai/Virchow2" in report
    assert "unknown encoder 'unknown_model'" in report


def test_without_offline_a_missing_download_is_only_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert main(["doctor", "--models", "kaiko-vits16"]) == 0
    assert "WARN  kaiko-vits16" in capsys.readouterr().out


def test_the_table_shows_what_is_not_pinned_and_a_page_what_is_not_confirmed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models", "--json"]) == 0
    pinned = {row["name"]: row["pinned"] for row in json.loads(capsys.readouterr().out)}
    assert pinned["uni_v1"] == pinned["lunit-bt"] == pinned["random-vit"] == "yes"
    assert (pinned["dinov2-b"], pinned["prost40m"]) == ("revision only", "not pinned")
    assert main(["models", "show", "lunit-bt"]) == 0
    assert "not confirmed" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["models"], ["data", "list"], ["data", "ls"]])
def test_tables_are_as_wide_as_the_terminal(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") for line in lines)
    if command == ["models"]:
        assert {spec.name for spec in list_encoders()} <= {line.split()[0] for line in lines if line}


def test_details_of_the_sandbox_are_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    short = capsys.readouterr().out
    assert main(["doctor", "--verbose"]) == 0
    long = capsys.readouterr().out
    (line,) = [line for line in short.splitlines() if "  sandbox  " in line]
    assert len(line) <= 80
    assert len(long.splitlines()) > len(short.splitlines())
