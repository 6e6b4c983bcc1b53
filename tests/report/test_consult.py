"""The Consult page: the numbers of the table, failures with pictures, and attacks that stay text."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from histobench.cli.main import main
from histobench.consult.findings import StudyFindings
from histobench.consult.measures import read_plays
from histobench.consult.study import RUNS, open_study, read_cassette, write_cassette
from histobench.report.consult_page import KINDS, MOST_CARDS
from histobench.report.payload import rounded
from histobench.report.site import build_site

pytestmark = pytest.mark.slow

DataOf = Callable[[Path, str], Any]
Open = Callable[..., Any]
Drawn = Callable[[Any], None]


@pytest.fixture(scope="module")
def site(played_study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(played_study.parent, tmp_path_factory.mktemp("site") / "out", title="Lab")


@pytest.fixture(scope="module")
def findings(played_study: Path) -> StudyFindings:
    opened = open_study(played_study)
    return StudyFindings(opened, read_plays(opened, played_study / RUNS))


def same(shown: list[float | None], expected: list[float | None]) -> bool:
    """Numbers of a page have six digits; what has no value has none."""
    return [value is None for value in shown] == [value is None for value in expected] and np.allclose(
        [value for value in shown if value is not None],
        [value for value in expected if value is not None],
        rtol=1e-5,
        atol=1e-9,
    )


def test_the_page_shows_the_numbers_of_the_table(
    played_study: Path, site: Path, tmp_path: Path, data_of: DataOf, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["consult", "table", str(played_study), "--json", str(tmp_path / "table.json")]) == 0
    printed = capsys.readouterr().out
    table = json.loads((tmp_path / "table.json").read_text())
    page = data_of(site, "consult/0")
    assert [each["auc"] for each in page["blinding"]] == [[0.5, 0.4, 0.6]]
    known = [
        [each[name] for name in ("role", "name", "probe_accuracy", "knn_accuracy")]
        for each in table["study"]["encoders"]
    ]
    assert [list(each.values()) for each in page["encoders"]] == known
    assert len(page["lines"]) == len(table["lines"]) == 16
    for shown, line in zip(page["lines"], table["lines"], strict=True):
        assert (shown["agent"], shown["arm"], shown["cases"]) == (line["agent"], line["arm"], line["cases"])
        for name, estimate in line["estimates"].items():
            expected = [estimate["value"], estimate["interval"]["low"], estimate["interval"]["high"]]
            assert same(shown["values"][name], expected), name
        assert shown["plain"].keys() == line["plain"].keys()
        assert same(list(shown["plain"].values()), list(line["plain"].values()))
    for shown, contrast in zip(page["contrasts"], table["contrasts"], strict=True):
        bounds = contrast["interval"] or {"low": None, "high": None}
        assert same(shown["value"], [contrast["value"], bounds["low"], bounds["high"]])
        assert same([shown["p"], shown["adjusted"]], [contrast["p_value"], contrast["adjusted"]])
        facts = [contrast["in_advance"], contrast["groups"], contrast["reason"], contrast["registered"]]
        assert [shown[name] for name in ("inAdvance", "groups", "reason", "registered")] == facts
        if contrast["agent"] == "small-model":
            tested = "no test" if contrast["adjusted"] is None else f"  p {contrast['adjusted']:.3g}\n"
            assert tested in printed
    assert [verdict["beats"] for verdict in page["reader"]] == [
        verdict["beats"] for verdict in table["against_reader"]
    ]


def test_reliance_is_that_of_a_slow_loop(findings: StudyFindings) -> None:
    plays = findings.plays["small-model", "strong"]
    bins = findings.reliance("small-model", "strong")
    for kind, right in (("right", True), ("wrong", False)):
        sums: dict[int, list[float]] = {}
        for place, row in enumerate(plays.rows):
            if (plays.tool[place] == plays.reference[place]) != right:
                continue
            confidence = plays.tool_confidence[place]
            number = next(k for k in range(5) if confidence <= (k + 1) / 5)
            weight = findings.weights[row]
            follows = plays.final[0, place] == plays.tool[place]
            each = sums.setdefault(number, [0.0, 0.0, 0.0, 0])
            for k, value in enumerate((weight * follows, weight * confidence, weight, 1)):
                each[k] += value
        assert len(bins[kind]) == len(sums)
        for found, (_, (followed, confidence, weight, cases)) in zip(
            bins[kind], sorted(sums.items()), strict=True
        ):
            assert found.accepted.value == pytest.approx(followed / weight)
            assert found.confidence == pytest.approx(confidence / weight)
            assert found.cases == cases
    assert findings.reliance("small-model", "none") == {"right": [], "wrong": []}


def test_sequences_are_those_of_the_findings(findings: StudyFindings, site: Path, data_of: DataOf) -> None:
    found = findings.sequences("small-model")
    assert found is not None
    shown = data_of(site, "consult/0")["sequences"]["small-model"]
    assert (shown["length"], shown["change"]) == (20, 10)
    assert same([shown["median"], shown["falseAlarms"]], [found.median, found.false_alarms])
    for each, drawn in zip(found.parts, shown["parts"], strict=True):
        for name in ("changed", "same", "difference"):
            estimate = getattr(each, name)
            assert same(drawn[name], [estimate.value, estimate.interval.low, estimate.interval.high])


def test_the_curve_of_risk_ends_at_the_error_of_all_cases(site: Path, data_of: DataOf) -> None:
    for line in data_of(site, "consult/0")["lines"]:
        coverage, risk = zip(*line["risk"], strict=True)
        assert coverage[-1] == 1
        assert risk[-1] == pytest.approx(1 - line["values"]["final"][0], abs=1e-5)
        assert list(coverage) == sorted(coverage)


def test_every_failure_is_counted_as_what_it_is(
    played_study: Path, site: Path, findings: StudyFindings, data_of: DataOf
) -> None:
    by_id = {case.id[:12]: case for case in open_study(played_study).cases}
    for number, line in enumerate(data_of(site, "consult/0")["lines"]):
        plays = findings.plays[line["agent"], line["arm"]]
        expected: Counter[str] = Counter()
        for place in range(len(plays.rows)):
            final, tool, reference = plays.final[0, place], plays.tool[place], plays.reference[place]
            if final == reference:
                continue
            if plays.deferred[0, place]:
                expected["deferred"] += 1
            elif final < 0:
                expected["unanswered"] += 1
            elif tool == reference:
                expected["left"] += 1
            else:
                expected["followed" if final == tool else "own"] += 1
        assert line["failures"] == dict(expected)
        cards = data_of(site, f"failures/0-{number}")
        sure = [-1 if card["confidence"] is None else card["confidence"] for card in cards]
        order = [(KINDS.index(card["kind"]), -value) for card, value in zip(cards, sure, strict=True)]
        assert order == sorted(order)  # the surest of each kind first
        most = {kind: min(count, MOST_CARDS) for kind, count in expected.items()}
        assert Counter(card["kind"] for card in cards) == most
        for card in cards:
            case = by_id[card["id"]]
            assert (card["reference"], card["group"]) == (case.reference, case.group)
            assert (site.parent / card["picture"]).is_file()
            assert (card["tool"] is None) == (line["arm"] == "none")
            if "sequence" not in line["arm"]:  # there a case may come twice
                place = plays.rows.tolist().index(list(by_id).index(card["id"]))
                assert same([card["confidence"]], [rounded(float(plays.confidence[0, place]))])
            said = [re.findall("<solution>(.*)</solution>", text)[0] for text, *_ in card["talk"]["turns"]]
            for name, text in zip(("first", "final"), said, strict=True):
                assert card[name] in (text, None)
            for _, picture in card["tool"]["neighbours"] if card["tool"] else ():
                assert (site.parent / picture).is_file()
            assert len(card["talk"]["turns"]) == 2


def test_episodes_of_a_study_are_on_its_page_and_not_among_the_agents(site: Path, data_of: DataOf) -> None:
    overview = data_of(site, "site")
    assert overview["consult"] == ["tissue"]
    assert len(overview["agents"]) == 2
    assert all("agent-x" in name for name in overview["agents"])


@pytest.mark.nightly
def test_a_study_without_pictures_or_with_a_torn_file_does_not_stop_the_report(
    tmp_path: Path, data_of: DataOf, consult_study: ModuleType
) -> None:
    whole = consult_study.write_study(tmp_path / "results" / "whole")
    (whole / "pictures.json").unlink()
    torn = consult_study.write_study(tmp_path / "results" / "torn")
    (torn / "cases.jsonl").write_text("{\n")
    site = build_site(tmp_path / "results", tmp_path / "site")
    overview = data_of(site, "site")
    assert overview["consult"] == ["tissue"]
    assert any("cases.jsonl" in text for text in overview["unreadable"])
    assert not any(str(tmp_path) in text for text in overview["unreadable"])
    assert all(card["picture"] == "" for card in data_of(site, "failures/0-0"))


def test_a_reader_goes_from_the_dumbbells_to_a_conversation(site: Path, open_page: Open, expect: Any) -> None:
    page = open_page(site, "#/consult")
    page.get_by_role("heading", name="small-model against the tool alone, arm by arm").wait_for()
    page.locator("figure svg").nth(5).wait_for()
    page.get_by_label("Arm", exact=True).select_option("sequence")
    page.get_by_role("heading", name="Failures in arm sequence").wait_for()
    # Agreement is no sign that the agent asked the tool.
    expect(page.get_by_text("gave the same wrong answer as the tool").first).to_be_visible()
    expect(page.get_by_text(re.compile("follow(s|ed) a wrong tool"))).to_have_count(0)
    page.get_by_label("Agent", exact=True).select_option("policy-reader")
    page.get_by_role("heading", name="reader against the tool alone, arm by arm").wait_for()
    expect(page).to_have_url(re.compile("agent=policy-reader"))
    card = page.locator("article.failure").first
    card.scroll_into_view_if_needed()
    expect(card.locator("img")).to_have_count(6)
    page.wait_for_function(
        "() => [...document.querySelectorAll('article img')].slice(0, 6).every(i => i.naturalWidth)"
    )
    summary = card.get_by_text("Conversation")
    summary.focus()
    expect(summary).to_be_focused()
    page.keyboard.press("Enter")
    card.get_by_text("Your first answer is noted.").wait_for()
    seen = card.get_by_alt_text("The picture of the task")
    seen.scroll_into_view_if_needed()
    page.wait_for_function("image => image.naturalWidth === 24", arg=seen.element_handle())


def test_a_study_of_version_0_2_still_opens(
    tmp_path: Path, data_of: DataOf, consult_study: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the arm `swap`, tells cosines, and knows neither sequences nor registered contrasts."""
    study = consult_study.write_study(tmp_path / "results" / "old")
    facts = json.loads((study / "study.json").read_text())
    for name in ("sequences", "replaced_by", "blinding"):
        del facts[name]
    facts |= {"version": 1, "arms": ["none", "strong", "swap"]}
    (study / "study.json").write_text(json.dumps(facts))
    (study / "contrasts.json").unlink()
    cases = [json.loads(line) for line in (study / "cases.jsonl").read_text().splitlines()]
    for place, case in enumerate(cases):
        case["arms"] = {
            "strong": case["arms"]["strong"],
            "swap": {**case["arms"]["wrong-25"], "position": place},
        }
    (study / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    rows = [
        replace(
            row,
            arm={"wrong-25": "swap"}.get(row.arm, row.arm),
            answer=re.sub(r", image", ", cosine 0.912, image", row.answer.partition("\nsimilarity")[0]),
        )
        for row in read_cassette(study / "cassette.parquet").rows
        if row.arm in ("strong", "wrong-25")
    ]
    write_cassette(study / "cassette.parquet", rows)
    for folder in list(study.glob("runs/*/*/*/consult/tissue@*")):
        arm = folder.name.partition("@")[2]
        if arm == "wrong-25":
            file = folder / "results.jsonl"
            file.write_text(file.read_text().replace('"arm": "wrong-25"', '"arm": "swap"'))
            folder.rename(folder.with_name("tissue@swap"))
        elif arm not in ("none", "strong"):
            shutil.rmtree(folder)
    assert main(["consult", "table", str(study), "--verbose"]) == 0
    printed = capsys.readouterr().out
    assert "swap" in printed
    assert "not checked (a study of histobench 0.2)" in printed
    assert "as in the protocol" in printed
    site = build_site(tmp_path / "results", tmp_path / "site")
    page = data_of(site, "consult/0")
    assert {line["arm"] for line in page["lines"]} == {"none", "strong", "swap"}
    number = next(n for n, line in enumerate(page["lines"]) if line["arm"] == "swap")
    assert all(len(card["tool"]["neighbours"]) == 5 for card in data_of(site, f"failures/0-{number}"))
    assert main(["consult", "run", str(study), "--agent", "policy:reader", "--arms", "swap"]) == 2


@pytest.mark.nightly
def test_a_study_of_policies_alone_fits_a_phone_and_ranks_no_two_encoders(
    tmp_path: Path, data_of: DataOf, consult_study: ModuleType, open_page: Open
) -> None:
    consult_study.write_study(tmp_path / "results" / "study", ("policy-reader", "policy-rational"))
    site = build_site(tmp_path / "results", tmp_path / "site")
    assert all(each["probe"] is None for each in data_of(site, "consult/0")["usefulness"].values())
    page = open_page(site, "#/consult", viewport={"width": 390, "height": 844})
    page.get_by_text("No language model has answered yet").wait_for()
    assert "Kendall" not in page.locator("main").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
