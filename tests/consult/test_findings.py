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
from statsmodels.stats.multitest import multipletests
from tests.consult.conftest import plays_of

import histobench as hb
from histobench.cli.main import main
from histobench.consult.adaptation import cases_until, followed_before, median_until
from histobench.consult.findings import Line, StudyFindings
from histobench.consult.measures import (
    NO_LABEL,
    Plays,
    area_under_risk_coverage,
    calibration_error,
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


def test_every_number_of_a_line_is_what_its_name_says(study: Study) -> None:
    draw, n, repeats = np.random.default_rng(8), 30, 2
    chances = draw.uniform(0.2, 1, 40)
    cases = tuple(replace(case, probability=p) for case, p in zip(study.cases, chances, strict=True))
    strong, *others = study.facts.encoders
    facts = replace(study.facts, encoders=(replace(strong, seconds_per_image=2.5), *others))
    rows, reference, tool = draw.permutation(40)[:n], draw.integers(0, 3, n), draw.integers(0, 3, n)
    first, final = draw.integers(NO_LABEL, 3, (2, repeats, n))
    calls, tokens, cost = draw.integers(1, 9, (3, repeats, n)).astype(float)
    asked, stated = draw.random((2, repeats, n)) < 0.7
    deferred = (final == NO_LABEL) & (draw.random((repeats, n)) < 0.6)
    confidence = np.where(stated, draw.random((repeats, n)), np.nan)
    given = {"rows": rows, "reference": reference, "first": first, "deferred": deferred, "asked": asked}
    given |= {"calls": calls, "tokens": tokens, "cost": cost, "confidence": confidence}
    plays = replace(plays_of(final[0], tool, **given), final=final)
    alone = replace(plays, arm="none", final=first)
    reader = replace(plays, agent="policy-reader", final=first)
    rational = replace(plays, agent="policy-rational", first=final, final=first)
    played = {(each.agent, each.arm): each for each in (plays, alone, reader, rational)}
    found = StudyFindings(replace(study, cases=cases, facts=facts), played)
    (line,) = (each for each in found.lines() if (each.agent, each.arm) == ("simulated", "strong"))
    expected: dict[str, Any] = {}
    weight, right, before = 1 / chances[rows], final == reference, first == reference
    helped, follows, said = np.tile(tool == reference, (repeats, 1)), final == tool, final != NO_LABEL
    for name, over, among in (
        ("first", before, 1),
        ("tool", helped, 1),
        ("final", right, 1),
        *((f"class {label}", right, reference == label) for label in range(3)),
        ("u_right", follows, helped),
        ("u_wrong", follows, ~helped),
        ("asked", asked, 1),
        ("rair", right, helped & ~before),
        ("rsr", right, ~helped & before),
        ("union", helped | before, 1),
        ("deferred", deferred, 1),
        ("unanswered", ~said & ~deferred, 1),
        ("brier", (np.nan_to_num(confidence) - right) ** 2, stated & said),
        ("pass_all", right.all(axis=0), 1),
    ):
        every = weight * among * np.ones_like(final)
        expected[name] = (every * over).sum() / every.sum()
    for name, used in (
        ("dollars", cost),
        ("tokens", tokens),
        ("calls", calls),
        ("device_seconds", 0 * cost + 2.5),
    ):
        expected[f"{name}_per_correct"] = (weight * used).sum() / (weight * right).sum()
    expected["balanced"] = np.mean([expected.pop(f"class {label}") for label in range(3)])
    best = max(expected["tool"], expected["first"])
    expected |= {
        "over_tool": expected["final"] - expected["tool"],
        "over_none": expected["final"] - expected["first"],
        "discrimination": expected["u_right"] - expected["u_wrong"],
        "regret": best - expected["final"],
        "closure": (expected["final"] - best) / (expected["union"] - best),
        "discrimination_loss": expected["first"] - max(expected["tool"], expected["final"]),
        "aurc": area_under_risk_coverage(plays, found.weights),
        "ece": calibration_error(plays, found.weights),
    }
    shown = {name: estimate.value for name, estimate in line.estimates.items()} | line.plain
    assert shown == pytest.approx(expected)
    assert (line.cases, line.repeats) == (n, repeats)
    kish = [some.sum() ** 2 / (some**2).sum() for some in (weight, weight[tool != reference])]
    assert [line.effective, line.effective_wrong] == pytest.approx(kish)
    (verdict,) = found.against_reader()
    assert [verdict.difference, verdict.asked] == pytest.approx([expected["over_none"], expected["asked"]])


def test_every_surface_has_the_same_differences_corrected_for_all_rows(
    study: Study, played: Path, tmp_path: Path, capsys: Any
) -> None:
    one, other = "policy-oracle", "policy-never-trust"
    runs = hb.consult.open_runs(study, results=played)
    values = runs.to_frame().set_index(["agent", "arm", "measure"])["value"]
    table = runs.compare(one, other)
    for row in table.to_dict("records"):
        place = row["arm"], row["measure"]
        assert row["difference"] == pytest.approx(values[one, *place] - values[other, *place])
        assert row["low"] <= row["difference"] <= row["high"]
    tested = table.dropna(subset=["p"])
    assert tested["p (Holm)"].tolist() == pytest.approx(multipletests(tested["p"], method="holm")[1].tolist())
    assert (tested["p"] < tested["p (Holm)"]).any()
    arguments = ["consult", "compare", str(study.folder), one, other, "--runs", str(played)]
    assert main([*arguments, "--json", str(tmp_path / "rows.json")]) == 0
    printed = [line.split()[-2:] for line in capsys.readouterr().out.splitlines()]
    written = json.loads((tmp_path / "rows.json").read_text())["rows"]
    for row, each in zip(table.to_dict("records"), written, strict=True):
        assert [each["value"], each["p_value"], each["holm"]] == pytest.approx(
            [None if row[name] != row[name] else row[name] for name in ("difference", "p", "p (Holm)")]
        )
        assert each["p_value"] is None or [f"{row['p']:.3g}", f"{row['p (Holm)']:.3g}"] in printed
    own = runs.contrasts().query("agent == 'policy-reader'").dropna(subset=["p"])
    assert own["p (Holm)"].tolist() == pytest.approx(multipletests(own["p"], method="holm")[1].tolist())
    contrasted = own.set_index("contrast")["value"]
    for arm, against in (("wrong-25", "strong"), ("sure", "unsure")):
        over = values["policy-reader", arm, "u_wrong"] - values["policy-reader", against, "u_wrong"]
        assert contrasted[arm] == pytest.approx(over)
    assert runs.findings.dose_slope("policy-reader") == pytest.approx(contrasted["wrong-25"] / 0.25)


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


def test_known_agents_have_their_known_values_in_sequences(findings: StudyFindings) -> None:
    trusting, oracle = (findings.sequences(f"policy-{name}") for name in ("always-trust", "oracle"))
    assert trusting is not None
    assert oracle is not None
    for part in trusting.parts:
        assert part.changed.value == (part.measure != "discrimination")
    assert trusting.cases_until == (None,) * 4  # it never adapts, and never by mistake
    assert (trusting.median, trusting.false_alarms) == (None, 0)
    own = findings.plays["policy-never-trust", "sequence"]
    assert np.array_equal(own.first, own.final)
    assert [part.changed.value for part in oracle.parts if part.measure == "u_right"] == [1.0, 1.0]


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
    units = len({case.group or case.id for case in study.cases})
    for more in ([], ["--verbose"]):
        assert main(["consult", "table", str(study.folder), "--runs", str(tmp_path), *more]) == 0
        printed = capsys.readouterr().out
        assert "small-model+native is not shown to beat policy-reader, a logistic regression on" in printed
        assert "It asked for the tool's prediction in 0% of cases." in printed
        assert more or f"\n95% intervals over {units} groups (in sequence arms: over sequences)." in printed
        assert ("policy-reader: registered contrasts" in printed) == bool(more)
        sentences = ("Kendall", "policy-reader, a", "caution", "AUC")
        tables = [line for line in printed.splitlines() if not any(word in line for word in sentences)]
        assert max(map(len, tables)) <= 80


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


def test_the_calibration_error_is_that_of_a_slow_loop() -> None:
    generator = np.random.default_rng(16)
    plays = simulated(generator, 90, right=0.9, wrong=0.3)  # every other confidence is on an edge of the bins
    plays.final[0, :9], plays.confidence[0, 9:13] = NO_LABEL, np.nan
    plays.confidence[:] = generator.integers(0, 21, 90) / 20
    weights = generator.choice([1.0, 3.0], 90)
    right = (plays.final == plays.reference)[0]
    gaps, total = dict.fromkeys(range(1, 11), 0.0), 0.0
    for case in range(90):
        stated = plays.confidence[0, case]
        if plays.final[0, case] != NO_LABEL and stated == stated:
            gaps[max(1, (round(20 * stated) + 1) // 2)] += weights[case] * (right[case] - stated)
            total += weights[case]
    assert calibration_error(plays, weights) == pytest.approx(sum(map(abs, gaps.values())) / total)


def test_a_deferred_case_is_covered_last() -> None:
    plays = simulated(np.random.default_rng(15), 100, right=1.0, wrong=0.0)
    all_right = Plays(**{**vars(plays), "final": plays.reference[None].copy()})
    all_right.final[0, :20] = NO_LABEL
    all_right.deferred[0, :20] = True
    assert area_under_risk_coverage(all_right, np.ones(100)) == pytest.approx(0.2 * 0.2)


SEQUENCES, LENGTH = 8, 40


def sequences(
    follows: float, stops_after: int | None, seed: int, *, tool_wrong: tuple[float, float]
) -> Plays:
    """An agent that follows a wrong tool with one chance, and 10 % of it once it has stopped.

    `tool_wrong` is the share of wrong answers in the first and in the second half.
    """
    generator = np.random.default_rng(seed)
    n = SEQUENCES * LENGTH
    position = np.tile(np.arange(LENGTH), SEQUENCES)
    late = position >= LENGTH // 2
    wrong = generator.random(n) < np.where(late, tool_wrong[1], tool_wrong[0])
    stopped = np.full(n, False) if stops_after is None else position >= LENGTH // 2 + stops_after
    followed = generator.random(n) < np.where(stopped, 0.1 * follows, follows)
    tool = np.where(wrong, 1, 0)
    return plays_of(
        np.where(followed, tool, 2),
        tool,
        arm="sequence",
        sequence=np.repeat(np.arange(SEQUENCES), LENGTH),
        position=position,
    )


def test_the_two_arms_of_sequences_keep_their_places(study: Study) -> None:
    draw = np.random.default_rng(2)
    cases = [
        replace(study.cases[0], id=f"{k:064x}", probability=p)
        for k, p in enumerate(draw.uniform(0.2, 1, 320))
    ]
    facts = replace(study.facts, sequences=(("",) * LENGTH,) * SEQUENCES)
    changed = sequences(0.9, 3, 1, tool_wrong=(0.5, 0.7))
    same = replace(sequences(0.7, None, 2, tool_wrong=(0.4, 0.5)), arm="sequence-same")
    played = {("simulated", each.arm): each for each in (changed, same)}
    opened = StudyFindings(replace(study, cases=tuple(cases), facts=facts), played)
    found = opened.sequences("simulated")
    assert found is not None
    before = followed_before([changed, same], LENGTH)
    assert before is not None
    assert found.cases_until == tuple(cases_until(changed, before, LENGTH))
    assert found.median == median_until(found.cases_until) is not None
    alarms = cases_until(same, before, LENGTH)
    assert found.false_alarms == sum(each is not None for each in alarms) / SEQUENCES < 1

    def followed(plays: Plays, end: int, right: bool) -> float:
        here = (plays.position >= end - LENGTH // 4) & (plays.position < end)
        here &= (plays.tool == plays.reference) == right
        weight = opened.weights[plays.rows[here]]
        return float(weight @ (plays.final[0] == plays.tool)[here] / weight.sum())

    for part in found.parts:
        end = LENGTH if part.part == "after" else LENGTH // 2
        values = [
            {"u_right": right, "u_wrong": wrong, "discrimination": right - wrong}[part.measure]
            for plays in (changed, same)
            for right, wrong in [[followed(plays, end, kind) for kind in (True, False)]]
        ]
        assert part.same is not None
        assert part.difference is not None
        shown = [part.changed.value, part.same.value, part.difference.value]
        assert shown == pytest.approx([*values, values[0] - values[1]])
    (contrast,) = (each for each in opened.contrasts("simulated") if each.name == "sequence")
    assert (contrast.groups, contrast.value) == (SEQUENCES, pytest.approx(values[0] - values[1]))
    assert contrast.p_value is not None  # eight are enough


@pytest.mark.parametrize(("follows", "stops_after"), [(1.0, 3), (0.8, 3), (0.7, 8), (0.6, 0)])
def test_a_known_change_point_is_recovered_without_false_alarms(follows: float, stops_after: int) -> None:
    adapted, medians, alarms = [], [], []
    for seed in range(25):
        changed = sequences(follows, stops_after, seed, tool_wrong=(0.5, 0.7))
        same = sequences(follows, None, seed + 1000, tool_wrong=(0.5, 0.5))
        before = followed_before([changed, same], LENGTH)
        assert before is not None
        found = cases_until(changed, before, LENGTH)
        adapted.append(np.mean([each is not None for each in found]))
        medians.append(median_until(found))
        alarms.append(np.mean([each is not None for each in cases_until(same, before, LENGTH)]))
    assert np.mean(adapted) > 0.9
    assert np.mean(alarms) < 0.08  # 5 % by design
    assert None not in medians
    assert abs(np.median([each for each in medians if each is not None]) - stops_after) <= 1


def test_an_agent_that_never_stops_and_one_that_never_followed_are_censored() -> None:
    always = sequences(1.0, None, 0, tool_wrong=(0.5, 0.7))
    assert cases_until(always, 0.98, LENGTH) == [None] * SEQUENCES
    assert median_until([None, None, 3]) is None
    right = sequences(1.0, 3, 0, tool_wrong=(0.0, 0.0))
    assert followed_before([right], LENGTH) is None
