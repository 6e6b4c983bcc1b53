"""The table gives known agents their known values, and recovers what simulated agents were made to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from histobench.cli.main import main
from histobench.consult.arms import select_cases
from histobench.consult.findings import Findings
from histobench.consult.measures import (
    NO_LABEL,
    Evaluation,
    Plays,
    area_under_risk_coverage,
    read_plays,
    swap_noticed,
)
from histobench.consult.study import Study
from histobench.core.statistics.resampling import draw_counts, sampling_design

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def findings(study: Study, played: Path) -> Findings:
    return Findings(study, read_plays(study, played), n_resamples=200)


def value(findings: Findings, agent: str, arm: str, measure: str) -> float | None:
    line = next(line for line in findings.lines() if (line.agent, line.arm) == (f"policy-{agent}", arm))
    return line.estimates[measure].value


def test_always_trust_is_the_encoders_own_weighted_accuracy_exactly(study: Study, findings: Findings) -> None:
    for arm in ("strong", "shuffled"):
        right = sum(case.weight for case in study.cases if case.arms[arm].label == case.reference)
        accuracy = right / sum(case.weight for case in study.cases)
        assert value(findings, "always-trust", arm, "final") == pytest.approx(accuracy, rel=1e-12)
        assert value(findings, "always-trust", arm, "over_tool") == 0
        assert value(findings, "always-trust", arm, "u_right") == 1
        assert value(findings, "always-trust", arm, "u_wrong") == 1
        assert value(findings, "always-trust", arm, "accept") == 1
        assert value(findings, "always-trust", arm, "asked") == 1


def test_never_trust_never_accepts_and_gains_nothing(findings: Findings) -> None:
    for arm in ("strong", "shuffled"):
        assert value(findings, "never-trust", arm, "accept") == 0
        assert value(findings, "never-trust", arm, "asked") == 1  # and decides for itself
        assert value(findings, "never-trust", arm, "over_none") == 0
        assert value(findings, "never-trust", arm, "final") == value(findings, "never-trust", arm, "first")


def test_the_oracle_is_the_union_of_tool_and_first_answer(findings: Findings) -> None:
    assert value(findings, "oracle", "strong", "final") == value(findings, "oracle", "strong", "union")
    assert value(findings, "oracle", "strong", "closure") == pytest.approx(1)


def test_measures_are_those_of_a_slow_loop(study: Study, played: Path, findings: Findings) -> None:
    sums: dict[str, list[float]] = {name: [0.0, 0.0] for name in ("u_right", "u_wrong", "rair", "rsr")}
    (file,) = played.glob("policy-reader/*/*/consult/*@swap/results.jsonl")
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
        assert value(findings, "reader", "swap", name) == pytest.approx(hits / among)


def test_contrasts_are_corrected_together_and_missing_arms_are_said(findings: Findings) -> None:
    made = findings.contrasts("policy-reader")
    assert all(0 < contrast.p_value <= contrast.adjusted <= 1 for contrast in made)  # type: ignore[operator]
    missing = findings.contrasts("policy-oracle")
    assert [contrast.reason for contrast in missing] == ["", *["its arms were not played"] * 3]
    assert missing[0].adjusted == missing[0].p_value


def test_an_agent_that_does_not_beat_the_reader_is_told_so(
    study: Study, played: Path, tmp_path: Path, capsys: Any
) -> None:
    for source, name in (("policy-measurements", "small-model"), ("policy-reader", "policy-reader")):
        shutil.copytree(played / source, tmp_path / name)
    flags = ["--runs", str(tmp_path), "--resamples", "100", "--json", str(tmp_path / "table.json")]
    assert main(["consult", "table", str(study.folder), *flags]) == 0
    printed = capsys.readouterr().out
    assert "small-model+native does not beat the reader in arm strong" in printed
    assert "It asked for the tool's prediction in 0 % of cases." in printed
    sentences = ("usefulness", "the reader in arm", "caution")
    tables = [line for line in printed.splitlines() if not any(word in line for word in sentences)]
    assert max(map(len, tables)) <= 80
    table = json.loads((tmp_path / "table.json").read_text())
    assert {verdict["arm"] for verdict in table["against_reader"]} == {"strong", "shuffled"}
    compare = ["consult", "compare", str(study.folder), "small-model+native", "policy-reader"]
    assert main([*compare, "--runs", str(tmp_path), "--resamples", "100", "--arm", "strong"]) == 0
    assert "small-model+native minus policy-reader" in capsys.readouterr().out


def simulated(generator: np.random.Generator, n: int, *, right: float, wrong: float) -> Plays:
    """An agent that accepts right answers of the tool with one chance and wrong ones with another."""
    reference = generator.integers(0, 5, n)
    tool = np.where(generator.random(n) < 0.6, reference, (reference + generator.integers(1, 5, n)) % 5)
    accepts = generator.random(n) < np.where(tool == reference, right, wrong)
    final = np.where(accepts, tool, (tool + generator.integers(1, 5, n)) % 5)
    nothing = np.zeros((1, n))
    return Plays(
        agent="simulated",
        arm="strong",
        rows=np.arange(n),
        reference=reference,
        tool=tool,
        tool_confidence=generator.random(n),
        manipulated=np.arange(n) % 2 == 0,
        position=np.arange(n),
        first=generator.integers(0, 5, (1, n)),
        final=final[None],
        confidence=generator.random((1, n)).round(1),
        deferred=nothing > 0,
        asked=nothing > 0,
        calls=nothing,
        tokens=nothing,
        cost=nothing,
    )


def test_chosen_trust_is_recovered_within_intervals_in_95_of_100_simulations() -> None:
    generator = np.random.default_rng(11)
    n, simulations = 300, 200
    counts = draw_counts(sampling_design(n, clusters=np.arange(n) // 2), 400, generator)
    covered = {"u_right": 0, "u_wrong": 0}
    for _ in range(simulations):
        weights = generator.choice([1.0, 2.0], n)
        evaluation = Evaluation(simulated(generator, n, right=0.9, wrong=0.3), weights)
        resampled = evaluation(counts)
        for name, truth in (("u_right", 0.9), ("u_wrong", 0.3)):
            low, high = np.quantile(resampled[name], [0.025, 0.975])
            covered[name] += low <= truth <= high
    # Three standard errors of a count of 200 with the chance .95 are 9.2.
    assert all(abs(count - 190) <= 10 for count in covered.values()), covered


def test_a_tool_without_information_lifts_a_guessing_agent_by_nothing() -> None:
    generator = np.random.default_rng(12)
    n, simulations = 300, 200
    counts = draw_counts(sampling_design(n), 400, generator)
    covered = 0
    for _ in range(simulations):
        plays = simulated(generator, n, right=0.5, wrong=0.5)
        shuffled = generator.permutation(plays.reference)
        accepts = generator.random(n) < 0.6
        final = np.where(accepts, shuffled, plays.first[0])
        plays = Plays(**{**vars(plays), "tool": shuffled, "final": final[None]})
        low, high = np.quantile(Evaluation(plays, np.ones(n))(counts)["regret_never"], [0.025, 0.975])
        covered += low <= 0 <= high
    assert abs(covered - 190) <= 10


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
        part = plays.among(kept)
        found.append(Evaluation(part, weights).estimate(2000)["final"])
        naive.append((part.final == part.reference).mean())
    assert np.mean(found) == pytest.approx(truth, abs=4 * np.std(found) / np.sqrt(300))
    assert abs(np.mean(naive) - truth) > 0.03  # without weights it would be another number


def test_curves_agree_with_independent_ones() -> None:
    generator = np.random.default_rng(14)
    plays = simulated(generator, 200, right=0.9, wrong=0.3)
    weights = generator.choice([1.0, 3.0], 200)
    auc = roc_auc_score(plays.manipulated, -plays.confidence[0], sample_weight=weights)
    assert swap_noticed(plays, weights) == pytest.approx(auc)
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
    estimate = Evaluation(all_right, np.ones(100)).estimate(100)
    assert (estimate["final"], estimate["deferred"], estimate["unanswered"]) == (0.8, 0.2, 0.0)
    assert area_under_risk_coverage(all_right, np.ones(100)) == pytest.approx(0.2 * 0.2)
