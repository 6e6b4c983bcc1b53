"""Agent runs: counted as the results files say, and shown turn by turn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from histobench.mint.results.uncertainty import gain as gain_of
from histobench.report.agents import find_agent_runs, write_agents

DataOf = Callable[[Path, str], Any]


@pytest.mark.slow
def test_runs_are_grouped_by_agent_expert_and_budget(results: Path) -> None:
    runs, problems = find_agent_runs(results)
    assert problems == []
    assert [(run.agent, run.feedback, run.k, len(run.episodes)) for run in runs] == [
        ("agent-x", "", 5, 3),
        ("agent-x", "judge (no_GT-textual)", 5, 3),
    ]


@pytest.mark.slow
def test_a_conversation_is_taken_apart_into_turns(site: Path, data_of: DataOf) -> None:
    talk = data_of(site, "talk/1-0")[1]
    assert talk["prompt"] == "How many cells? x"
    first, second = talk["turns"]
    text = "<thought>count x</thought><execute>print(1)</execute>"
    assert first == [text, "execute", "Out[1]: 1", "Look again x"]
    assert second[1:3] == ["proposal", None]
    rows = data_of(site, "agent/0")["episodes"]
    assert [row[:3] for row in rows] == [["gsm8k", "0", 1], ["gsm8k", "1", 0], ["gsm8k", "2", 0]]
    assert len(data_of(site, "talk/0-0")) == 3


@pytest.mark.slow
def test_rates_gain_and_turns(results: Path, site: Path, data_of: DataOf) -> None:
    agents = data_of(site, "agents")
    alone, helped = agents["runs"]
    assert alone["all"]["value"] == pytest.approx(1 / 3, abs=1e-5)
    assert helped["families"]["reasoning"]["value"] == pytest.approx(2 / 3, abs=1e-5)
    assert alone["solvedBy"] == [0.0, *[pytest.approx(1 / 3, abs=1e-5)] * 4]
    gain = agents["gains"][0]
    assert (gain["n"], gain["difference"]) == (3, pytest.approx(1 / 3, abs=1e-5))
    plain, with_expert = (run.outcomes for run in find_agent_runs(results)[0])
    expected = gain_of(with_expert, plain)
    assert expected is not None
    bounds = [expected.interval.low, expected.interval.high, expected.p_value]
    assert [gain["low"], gain["high"], gain["p"]] == pytest.approx(bounds, rel=1e-3)
    assert (alone["turns"], alone["invalid"], alone["tokens"]) == (2.0, 0.0, 100.0)


def test_a_gain_is_over_the_tasks_that_both_have_played(
    results: Path, tmp_path: Path, data_of: DataOf
) -> None:
    alone, helped = find_agent_runs(results)[0]
    for number in ("7", "8"):
        alone.episodes.append(alone.episodes[0])
        alone.outcomes.append(replace(alone.outcomes[0], task_id=number, success=True))
    write_agents(tmp_path, [alone, helped], {})
    (gain,) = data_of(tmp_path / "index.html", "agents")["gains"]
    assert (gain["n"], gain["without"], gain["with"]) == (
        3,
        *(pytest.approx(k / 3, abs=1e-5) for k in (1, 2)),
    )


def test_an_agent_that_always_fails_is_not_said_to_be_surely_at_zero(
    results: Path, tmp_path: Path, data_of: DataOf
) -> None:
    runs, _ = find_agent_runs(results)
    failed = [replace(outcome, success=False) for outcome in runs[0].outcomes]
    write_agents(tmp_path, [replace(runs[0], outcomes=failed)], {})
    rate = data_of(tmp_path / "index.html", "agents")["runs"][0]["all"]
    assert (rate["value"], rate["low"]) == (0.0, 0.0)
    assert rate["high"] == pytest.approx(1 - 0.025 ** (1 / 3), abs=1e-4)  # the exact interval of 0 in 3


def test_outcome_classes_are_shown_with_what_no_rate_counts(
    results: Path, tmp_path: Path, data_of: DataOf
) -> None:
    copy = shutil.copytree(results, tmp_path / "results")
    (file, *_) = (path for path in sorted(copy.rglob("results.jsonl")) if "F=None" in path.as_posix())
    records = [
        {"task_id": "7", "outcome": "checker_error"},
        {"task_id": "8", "outcome": "provider_failure"},
        {"task_id": "0", "outcome": "provider_failure"},  # played to its end since
    ]
    file.with_name("provider_failures.jsonl").write_text("\n".join(map(json.dumps, records)))
    runs, problems = find_agent_runs(copy)
    assert problems == []
    runs[0].outcomes[1] = replace(runs[0].outcomes[1], outcome="filtered")
    write_agents(tmp_path, runs, {})
    index = tmp_path / "index.html"
    alone, helped = data_of(index, "agents")["runs"]
    assert alone["outcomes"] == [
        ["solved", 1, 1],
        ["wrong", 1, 1],
        ["filtered", 1, 1],
        ["checker_error", 1, 0],
        ["provider_failure", 1, 0],
    ]
    assert alone["all"]["n"] == 3
    assert [name for name, _, _ in helped["outcomes"]] == ["solved", "wrong"]
    assert [row[4] for row in data_of(index, "agent/0")["episodes"]] == ["solved", "filtered", "wrong"]


def test_a_broken_results_file_is_told_and_passed_over(results: Path, tmp_path: Path) -> None:
    place = tmp_path / "bad" / "F=None" / "max5_p2+tool+cd" / "reasoning" / "math"
    place.mkdir(parents=True)
    (place / "results.jsonl").write_text('{"state": 1}\n{}\n')
    (tmp_path / "stray").mkdir()
    (tmp_path / "stray" / "results.jsonl").write_text("{}\n")
    runs, problems = find_agent_runs(tmp_path)
    assert runs == []
    assert len(problems) == 2
    assert not [text for text in problems if str(tmp_path) in text and "stray" not in text]


def test_long_output_is_cut_and_says_so(tmp_path: Path, results: Path, data_of: DataOf) -> None:
    source = next((results / "agents").rglob("results.jsonl"))
    place = tmp_path / source.parent.relative_to(results)
    place.mkdir(parents=True)
    record = json.loads(source.read_text().splitlines()[0])
    record["state"]["history"][2]["content"] = "Observation:\n" + "y" * 50_000
    (place / "results.jsonl").write_text(json.dumps(record) + "\n")
    runs, _ = find_agent_runs(tmp_path)
    write_agents(tmp_path, runs, {})
    shown = data_of(tmp_path / "index.html", "talk/0-0")[0]["turns"][0][2]
    assert len(shown) < 21_000
    assert "30,000 more characters" in shown


def test_pictures_that_an_agent_was_shown_stand_in_its_conversation(
    tmp_path: Path, results: Path, data_of: DataOf
) -> None:
    source = next((results / "agents").rglob("results.jsonl"))
    place = tmp_path / "results" / source.parent.relative_to(results)
    (place / "images").mkdir(parents=True)
    Image.new("RGB", (900, 600), (200, 40, 90)).save(place / "images" / "region.png")
    (place / "images" / "broken.png").write_bytes(b"no picture")
    record = json.loads(source.read_text().splitlines()[0])
    first, _, answer, _ = record["state"]["history"]
    first["parts"] = [
        {"type": "text", "text": first["content"]},
        {"type": "image", "media_type": "image/png", "file": "region.png"},
    ]
    crop = {"type": "image", "media_type": "image/png", "file": "../../images/broken.png"}
    answer["parts"] = [{"type": "tool_result", "call_id": "1", "name": "look", "text": "x", "images": [crop]}]
    (place / "results.jsonl").write_text(json.dumps(record) + "\n")
    runs, problems = find_agent_runs(tmp_path / "results")
    assert problems == []
    write_agents(tmp_path, runs, {})
    shown, asked, nothing = data_of(tmp_path / "index.html", "talk/0-0")[0]["pictures"]
    assert (asked, nothing) == ([""], [])  # a picture that cannot be read is told, not left out
    with Image.open(tmp_path / shown[0]) as picture:
        assert picture.size == (448, 299)
        assert picture.getpixel((5, 5))[0] > 180
