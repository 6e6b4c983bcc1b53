"""The table gives known agents their known values, and recovers what simulated agents were made to do."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.consult.conftest import plays_of

from histobench.cli.main import main
from histobench.consult.arms import select_cases
from histobench.consult.findings import Line, StudyFindings
from histobench.consult.measures import (
    NO_LABEL,
    MeasuredRun,
    Plays,
    area_under_risk_coverage,
    read_plays,
)
from histobench.consult.study import RegisteredContrast, Study, open_study, register_contrasts

pytestmark = pytest.mark.slow
Lines = dict[tuple[str, str], Line]


@pytest.fixture(scope="module")
def findings(study: Study, played: Path) -> StudyFindings:
    return StudyFindings(study, read_plays(study, played))


@pytest.fixture(scope="module")
def lines(findings: StudyFindings) -> Lines:
    return {(line.agent, line.arm): line for line in findings.lines()}


def value(lines: Lines, agent: str, arm: str, measure: str) -> float | None:
    return lines[f"policy-{agent}", arm].estimates[measure].value


def test_always_trust_is_the_encoders_own_weighted_accuracy_exactly(study: Study, lines: Lines) -> None:
    for arm in ("strong", "shuffled"):
        right = sum(case.weight for case in study.cases if case.arms[arm].label == case.reference)
        accuracy = right / sum(case.weight for case in study.cases)
        assert value(lines, "always-trust", arm, "final") == pytest.approx(accuracy, rel=1e-12)
        assert value(lines, "always-trust", arm, "over_tool") == 0
        assert value(lines, "always-trust", arm, "u_right") == 1
        assert value(lines, "always-trust", arm, "u_wrong") == 1
        assert value(lines, "always-trust", arm, "asked") == 1


@pytest.mark.nightly
def test_never_trust_never_accepts_and_gains_nothing(lines: Lines) -> None:
    for arm in ("strong", "shuffled"):
        assert value(lines, "never-trust", arm, "asked") == 0
        assert value(lines, "never-trust", arm, "over_none") == 0
        assert value(lines, "never-trust", arm, "final") == value(lines, "never-trust", arm, "first")


@pytest.mark.nightly
def test_the_oracle_is_the_union_of_tool_and_first_answer(lines: Lines) -> None:
    for arm in ("strong", "shuffled", "sequence"):
        final, tool, first, closure = (
            value(lines, "oracle", arm, name) for name in ("final", "tool", "first", "closure")
        )
        assert final == value(lines, "oracle", arm, "union")
        assert final is not None
        assert tool is not None
        assert first is not None
        # With little room between the better of both and their union, closure says nothing.
        assert closure == (pytest.approx(1) if final - max(tool, first) >= 0.05 else None)


def test_measures_are_those_of_a_slow_loop(played: Path, lines: Lines) -> None:
    sums: dict[str, list[float]] = {name: [0.0, 0.0] for name in ("u_right", "u_wrong", "rair", "rsr")}
    (file,) = played.glob("policy-reader/*/*/consult/*@wrong-25/results.jsonl")
    for line in file.read_text().splitlines():
        task = json.loads(line)["task"]
        record, reference = task["metadata"]["consult"], task["reference"]
        first, final, tool = record["first"]["label"], record["final"]["label"], record["tool"]["label"]
        weight = 1 / record["probability"]
        for name, among, hit in (
            ("u_right", tool == reference, final == tool),
            ("u_wrong", tool != reference, final == tool),
            ("rair", first != reference and tool == reference, final == reference),
            ("rsr", first == reference and tool != reference, final == reference),
        ):
            sums[name][0] += weight * (among and hit)
            sums[name][1] += weight * among
    for name, (hits, among) in sums.items():
        assert value(lines, "reader", "wrong-25", name) == pytest.approx(hits / among)


def test_contrasts_are_corrected_together_and_missing_arms_are_said(findings: StudyFindings) -> None:
    made = findings.contrasts("policy-reader")
    tested = [contrast for contrast in made if contrast.p_value is not None]
    assert {contrast.name for contrast in tested} == {"over_tool", "wrong-25", "sure"}
    assert all(0 < contrast.p_value <= contrast.adjusted <= 1 for contrast in tested)  # type: ignore[operator]
    for contrast in tested:
        assert contrast.interval is not None
        assert (contrast.p_value < 0.05) == (not contrast.interval.contains(0.0))  # type: ignore[operator]
    (few,) = (contrast for contrast in made if contrast.name == "sequence")
    assert few.reason == "no test: 4 sequences, 8 are needed"
    assert few.adjusted is None
    missing = findings.contrasts("policy-oracle")
    assert [contrast.reason for contrast in missing][2:] == ["its arms were not played"] * 2
    assert missing[0].adjusted == missing[0].p_value


def test_a_contrast_registered_after_play_is_exploratory(study: Study, played: Path, tmp_path: Path) -> None:
    copied = tmp_path / "study"
    shutil.copytree(study.folder, copied, ignore=shutil.ignore_patterns("runs"))
    late = RegisteredContrast("late", "u_right", "sure", "unsure")
    register_contrasts(copied, [late], study.facts.arms)
    opened = open_study(copied)
    made = StudyFindings(opened, read_plays(opened, played)).contrasts("policy-reader")
    assert [contrast.in_advance for contrast in made] == [True] * 4 + [False]
    assert made[-1].p_value is not None
    assert made[-1].adjusted is None


def test_known_agents_have_their_known_values_in_sequences(study: Study, findings: StudyFindings) -> None:
    trusting = findings.sequences("policy-always-trust")
    assert trusting is not None
    for part in trusting.parts:
        expected = 0.0 if part.measure == "discrimination" else 1.0
        assert part.changed.value == expected
        assert part.same is not None
        assert part.same.value == expected
        assert part.difference is not None
        assert part.difference.value == 0
    assert trusting.cases_until == (None,) * 4  # it never adapts, and never by mistake
    assert trusting.median is None
    assert trusting.false_alarms == 0
    own = findings.plays["policy-never-trust", "sequence"]
    assert np.array_equal(own.first, own.final)
    oracle = findings.sequences("policy-oracle")
    assert oracle is not None
    assert [part.changed.value for part in oracle.parts if part.measure == "u_right"] == [1.0, 1.0]


def test_the_effective_number_of_cases_is_that_of_kish() -> None:
    plays = simulated(np.random.default_rng(3), 36, right=1.0, wrong=1.0)
    weights = np.where(np.arange(36) % 3 == 0, 10.0, 1.0)
    expected = weights.sum() ** 2 / (weights**2).sum()
    assert MeasuredRun(plays, weights).effective("final") == pytest.approx(expected)
    wrong = weights[plays.tool != plays.reference]
    assert MeasuredRun(plays, weights).effective("u_wrong") == pytest.approx(
        wrong.sum() ** 2 / (wrong**2).sum()
    )


def test_a_mean_of_independent_cases_has_the_t_interval(study: Study) -> None:
    """Differences near 0 on Fisher's scale, single cases: the paired t test of scipy."""
    generator = np.random.default_rng(5)
    n = 400
    cases = tuple(replace(study.cases[0], id=f"{k:064x}", group=None, probability=1.0) for k in range(n))
    plays = simulated(generator, n, right=0.8, wrong=0.4)
    found = StudyFindings(replace(study, cases=cases), {("simulated", "strong"): plays})
    (contrast,) = (each for each in found.contrasts("simulated") if each.name == "over_tool")
    gains = (plays.final[0] == plays.reference).astype(float) - (plays.tool == plays.reference)
    low, high = stats.t.interval(0.95, n - 1, gains.mean(), stats.sem(gains))
    assert contrast.interval is not None
    assert contrast.interval.low == pytest.approx(low, abs=0.01)
    assert contrast.interval.high == pytest.approx(high, abs=0.01)
    assert contrast.p_value is not None
    # The tails of the logit scale are longer: never more certain than the t test.
    assert stats.ttest_1samp(gains, 0).pvalue <= contrast.p_value < 0.001


@pytest.mark.nightly
def test_an_agent_that_does_not_beat_the_reader_is_told_so(
    study: Study, played: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for source, name in (("policy-never-trust", "small-model"), ("policy-reader", "policy-reader")):
        shutil.copytree(played / source, tmp_path / name)
    flags = ["--runs", str(tmp_path), "--json", str(tmp_path / "table.json")]
    assert main(["consult", "table", str(study.folder), *flags]) == 0
    short = capsys.readouterr().out
    assert main(["consult", "table", str(study.folder), *flags, "--verbose"]) == 0
    printed = capsys.readouterr().out
    assert len(short.splitlines()) < len(printed.splitlines()) / 2
    sentence = "small-model+native is not shown to beat policy-reader, a logistic regression on the numbers"
    assert sentence in short
    assert "small-model+native: registered contrasts" in short
    units = {case.group or case.id for case in study.cases}
    assert f"\n95% intervals over {len(units)} groups (in sequence arms: over sequences).\n" in short
    assert "policy-reader: registered contrasts" not in short
    rows = [line for line in short.splitlines() if "policy-reader, a" not in line and "caution" not in line]
    assert max(map(len, rows)) <= 80
    assert sentence in printed
    assert "It asked for the tool's prediction in 0% of cases." in printed
    sentences = ("Kendall", "policy-reader, a", "caution", "AUC")
    tables = [line for line in printed.splitlines() if not any(word in line for word in sentences)]
    assert max(map(len, tables)) <= 80
    table = json.loads((tmp_path / "table.json").read_text())
    assert {verdict["arm"] for verdict in table["against_reader"]} == {
        "strong",
        "shuffled",
        "sequence",
        "sequence-same",
    }
    compare = ["consult", "compare", str(study.folder), "small-model+native", "policy-reader"]
    assert main([*compare, "--runs", str(tmp_path), "--arm", "strong"]) == 0
    assert "small-model+native minus policy-reader" in capsys.readouterr().out


def simulated(generator: np.random.Generator, n: int, *, right: float, wrong: float) -> Plays:
    """An agent that accepts right answers of the tool with one chance and wrong ones with another."""
    reference = generator.integers(0, 5, n)
    tool = np.where(generator.random(n) < 0.6, reference, (reference + generator.integers(1, 5, n)) % 5)
    accepts = generator.random(n) < np.where(tool == reference, right, wrong)
    final = np.where(accepts, tool, (tool + generator.integers(1, 5, n)) % 5)
    return plays_of(
        final,
        tool,
        reference=reference,
        tool_confidence=generator.random(n),
        first=generator.integers(0, 5, (1, n)),
        confidence=generator.random((1, n)).round(1),
    )


@pytest.mark.nightly
def test_chosen_trust_is_recovered_within_intervals_in_95_of_100_simulations(study: Study) -> None:
    generator = np.random.default_rng(11)
    n, simulations = 200, 200
    covered = {"u_right": 0, "u_wrong": 0, "discrimination": 0}
    for _ in range(simulations):
        cases = tuple(
            replace(
                study.cases[0], id=f"{k:064x}", group=f"g{k // 4}", probability=1 / generator.choice([1, 2])
            )
            for k in range(n)
        )
        plays = simulated(generator, n, right=0.9, wrong=0.3)
        (line,) = StudyFindings(replace(study, cases=cases), {("simulated", "strong"): plays}).lines()
        for name, truth in (("u_right", 0.9), ("u_wrong", 0.3), ("discrimination", 0.6)):
            covered[name] += line.estimates[name].interval.contains(truth)
    # Three standard errors of a count of 200 with the chance .95 are 9.2; wider is allowed, narrower is not.
    assert all(count >= 181 for count in covered.values()), covered


def test_a_tool_without_information_lifts_a_guessing_agent_by_nothing() -> None:
    generator = np.random.default_rng(12)
    gains = []
    for _ in range(200):
        plays = simulated(generator, 300, right=0.5, wrong=0.5)
        shuffled = generator.permutation(plays.reference)
        final = np.where(generator.random(300) < 0.6, shuffled, plays.first[0])
        estimate = MeasuredRun(
            Plays(**{**vars(plays), "tool": shuffled, "final": final[None]}), np.ones(300)
        ).estimate()
        gains.append(estimate["final"] - estimate["first"])
    assert abs(np.mean(gains)) < 4 * np.std(gains) / np.sqrt(200)


def test_selection_weights_give_the_accuracy_of_all_images() -> None:
    generator = np.random.default_rng(13)
    plays = simulated(generator, 2000, right=0.9, wrong=0.3)
    truth = float((plays.final == plays.reference).mean())
    wrong = plays.tool != plays.reference
    found, naive = [], []
    for seed in range(300):
        chosen = select_cases(plays.reference, wrong, count=200, seed=seed)
        kept, weights = np.zeros(2000, dtype=bool), np.ones(2000)
        kept[chosen.rows] = True
        weights[chosen.rows] = 1 / chosen.probability
        part = plays.take(kept)
        found.append(MeasuredRun(part, weights).estimate()["final"])
        naive.append((part.final == part.reference).mean())
    assert np.mean(found) == pytest.approx(truth, abs=4 * np.std(found) / np.sqrt(300))
    assert abs(np.mean(naive) - truth) > 0.03  # without weights it would be another number


def test_curves_agree_with_independent_ones() -> None:
    generator = np.random.default_rng(14)
    plays = simulated(generator, 200, right=0.9, wrong=0.3)
    weights = generator.choice([1.0, 3.0], 200)
    wrong = (plays.final != plays.reference)[0]
    area = 0.0
    for case in range(200):
        covered = plays.confidence[0] >= plays.confidence[0, case]
        area += weights[case] * (weights * wrong)[covered].sum() / weights[covered].sum()
    assert area_under_risk_coverage(plays, weights) == pytest.approx(area / weights.sum())


def test_a_deferred_case_is_not_correct_and_is_covered_last() -> None:
    plays = simulated(np.random.default_rng(15), 100, right=1.0, wrong=0.0)
    all_right = Plays(**{**vars(plays), "final": plays.reference[None].copy()})
    all_right.final[0, :20] = NO_LABEL
    all_right.deferred[0, :20] = True
    estimate = MeasuredRun(all_right, np.ones(100)).estimate()
    assert (estimate["final"], estimate["deferred"], estimate["unanswered"]) == (0.8, 0.2, 0.0)
    assert area_under_risk_coverage(all_right, np.ones(100)) == pytest.approx(0.2 * 0.2)
