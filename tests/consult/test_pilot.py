"""The number of cases that a pilot asks for is the number with which simulated studies find the contrast."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tests.consult.conftest import plays_of

from histobench.cli.main import main
from histobench.consult.findings import StudyFindings
from histobench.consult.measures import read_plays
from histobench.consult.pilot import plan_cases
from histobench.consult.study import Study
from histobench.core.errors import HistobenchError

pytestmark = pytest.mark.slow
NAMES = ["over_tool", "sequence", "wrong-25", "sure"]


@pytest.fixture(scope="module")
def findings(study: Study, played: Path) -> StudyFindings:
    return StudyFindings(study, read_plays(study, played))


def test_every_contrast_whose_arms_were_played_is_planned(findings: StudyFindings) -> None:
    plan = plan_cases(findings, "policy-reader", delta=0.1)
    assert [each.name for each in plan.contrasts] == NAMES
    assert plan.unit == "groups"
    assert plan.alpha == pytest.approx(0.05 / 4)
    alone = {key: plays for key, plays in findings.plays.items() if key[1] == "strong"}
    (only, *_) = plan_cases(StudyFindings(findings.study, alone), "policy-reader", alpha=0.05).contrasts
    assert plan_cases(findings, "policy-reader", alpha=0.2).contrasts[0] == only  # a quarter of it
    assert plan_cases(findings, "policy-reader", alpha=0.2, seed=1).contrasts[0] != only
    (late,) = (each for each in plan.contrasts if each.name == "sequence")
    assert (late.cases, late.groups) == (4 * 5, 4)
    known = [each.estimate for each in plan.contrasts if each.estimate is not None]
    assert known
    for estimate in known:
        assert estimate.units_low <= estimate.units_needed <= estimate.units_high


def test_missing_arms_are_said_and_an_agent_without_any_is_refused(
    findings: StudyFindings, study: Study, played: Path
) -> None:
    plan = plan_cases(findings, "policy-oracle", delta=0.1)
    assert [each.reason for each in plan.contrasts[2:]] == ["its arms were not played"] * 2
    assert plan.alpha == 0.05 / 2
    only_none = {key: plays for key, plays in findings.plays.items() if key[1] == "none"}
    with pytest.raises(HistobenchError, match="needs strong at least"):
        plan_cases(StudyFindings(study, only_none), "policy-oracle")


def test_the_number_of_cases_is_that_of_the_t_test_where_cases_are_alike(study: Study) -> None:
    """Independent cases of equal weight: the noise is that of a proportion, so the sample size is known."""
    generator = np.random.default_rng(3)
    cases = [replace(study.cases[0], id=f"{number:064x}", group="", probability=1.0) for number in range(400)]
    large = replace(study, cases=tuple(cases))
    # The agent follows a tool that is always right with a chance of 0.7, and is wrong otherwise.
    final = np.where(generator.random(400) < 0.7, 0, 1)
    plays = {("coin", "strong"): plays_of(final, np.zeros(400, dtype=np.int64))}
    findings = StudyFindings(large, plays)
    comparison = findings.comparisons("coin")["over_tool"]
    assert comparison is not None
    share = float((plays["coin", "strong"].final == 0).mean())
    # The plan allows for what 400 cases did not show, as the comparison does.
    spread = np.sqrt(share * (1 - share) + 400 * comparison.unseen_move**2)
    sizes = np.arange(20, 2000)
    for delta, power, alpha in ((0.1, 0.8, 0.05), (0.06, 0.8, 0.05), (0.06, 0.95, 0.05), (0.1, 0.8, 0.02)):
        estimate = plan_cases(findings, "coin", delta=delta, power=power, alpha=alpha).contrasts[0].estimate
        assert estimate is not None
        shift, limit = delta / spread * np.sqrt(sizes), stats.t.ppf(1 - alpha / 2, sizes - 1)
        exact = int(sizes[np.argmax(1 - stats.nct.cdf(limit, sizes - 1, shift) >= power)])
        assert estimate.units_at_pilot == pytest.approx(exact, rel=0.12)
        assert estimate.units_needed >= estimate.units_at_pilot * 0.98


def test_the_command_prints_lines_of_at_most_eighty_characters(
    study: Study,
    played: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "plan.json"
    results = tmp_path / "elsewhere"
    shutil.copytree(played / "policy-reader", results / "policy-mine")
    arguments = ["consult", "power", str(study.folder), "policy-mine", "--json", str(file)]
    arguments += ["--results", str(results)]
    assert main([*arguments, "--delta", "0.2", "--power", "0.7", "--alpha", "0.1", "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "final answer minus tool: strong" in shown
    table = [line for line in shown.splitlines() if "minus" in line]
    assert all(len(line) <= 80 for line in table)
    findings = StudyFindings(study, read_plays(study, results))
    plan = plan_cases(findings, "policy-mine", delta=0.2, power=0.7, alpha=0.1, seed=3)
    assert json.loads(file.read_text()) == json.loads(json.dumps(asdict(plan)))
    estimate, size = plan.contrasts[0].estimate, plan.contrasts[0].cases / plan.contrasts[0].groups
    assert estimate is not None
    ends = (estimate.units_needed, estimate.units_low, estimate.units_high)
    needed, low, high = (f"{round(units * size):,}" for units in ends)
    assert f"over_tool {len(study.cases)} {needed} {low}-{high} {estimate.detectable:.3f}" in " ".join(
        shown.split()
    )
    for wrong in (["nobody"], ["policy-reader", "--delta", "0"], ["policy-reader", "--power", "1"]):
        assert main(["consult", "power", str(study.folder), *wrong]) == 2
