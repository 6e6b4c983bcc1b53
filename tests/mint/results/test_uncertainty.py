"""Intervals, gains, slopes and the published leaderboard against slow and obvious computations."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from histobench.cli.main import main
from histobench.mint.results.agent_comparison import compare_agents
from histobench.mint.results.episode_outcome import EpisodeOutcome, read_outcome_table, write_outcome_table
from histobench.mint.results.result_tables import group_rows
from histobench.mint.results.uncertainty import gain, pass_hat_interval, rate_interval, slope_interval, trend


def outcome(
    task_id: int, success: bool, *, task: str = "gsm8k", k: int = 5, model: str = "m", expert: str = "None"
) -> EpisodeOutcome:
    kind = "None" if expert == "None" else "no_GT-textual"
    return EpisodeOutcome(model, expert, kind, k, task, str(task_id), success, 1, 2, 1, "")


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.2)])
def test_the_interval_is_over_tasks_within_datasets(shares: tuple[float, float]) -> None:
    """Three tries of one task are hardly more than one."""
    draw = np.random.default_rng(0)
    solved = [
        (draw.random((n, 1)) < share) != (draw.random((n, 3)) < 0.1)
        for n, share in zip((60, 30), shares, strict=True)
    ]
    outcomes = [
        outcome(number, bool(one), task=task)
        for task, tries in zip(("gsm8k", "math"), solved, strict=True)
        for number, row in enumerate(tries)
        for one in row
    ]
    interval = rate_interval(outcomes)
    error = np.sqrt(sum(len(tries) * tries.mean(axis=1).var(ddof=1) for tries in solved)) / 90
    rate = np.concatenate(solved).mean()
    assert [interval.low, interval.high] == pytest.approx(
        [rate - 1.96 * error, rate + 1.96 * error], abs=0.02
    )


def test_a_rate_of_zero_still_has_an_interval() -> None:
    interval = rate_interval([outcome(number, False) for number in range(10)])
    assert interval.low == pytest.approx(0.0)
    assert interval.high == pytest.approx(proportion_confint(0, 10, method="beta")[1])
    assert rate_interval([outcome(1, True)]).low is None


def test_the_gain_of_many_tasks_is_that_of_the_paired_t_test() -> None:
    generator = random.Random(5)
    first, second = (
        [outcome(task, generator.random() < rate) for task in range(2000)] for rate in (0.6, 0.57)
    )
    differences = [int(a.success) - int(b.success) for a, b in zip(first, second, strict=True)]
    expected = stats.ttest_1samp(differences, 0)
    found = gain(first, second)
    assert found.p_value == pytest.approx(expected.pvalue, rel=0.02)
    bounds = expected.confidence_interval()
    assert (found.interval.low, found.interval.high) == pytest.approx((bounds.low, bounds.high), abs=5e-4)


def test_what_sets_two_datasets_apart_does_not_widen_the_interval_of_a_gain() -> None:
    """Within either dataset all tasks end alike: only the two tasks that are added spread."""
    sides = [
        [outcome(n, won, task=task) for task, tasks, won in played for n in range(tasks)]
        for played in ((("gsm8k", 20, True), ("math", 11, False)), (("gsm8k", 20, False), ("math", 11, True)))
    ]
    found = gain(*sides)
    half = stats.t.ppf(0.975, 31 - 2) * np.sqrt(2 / 33 / 32)
    assert found.difference == pytest.approx(9 / 31)
    assert found.interval.high - found.interval.low == pytest.approx(2 * half)
    slope = slope_interval([replace(one, k=4 + place) for place in (0, 1) for one in sides[1 - place]])
    assert slope.high - slope.low == pytest.approx(200 * half)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [10, 30])
def test_intervals_of_few_tasks_hold_the_truth(tasks: int) -> None:
    """Rates, gains and pass^3 of agents whose chances are known; `studies/agent_coverage.py` has more."""
    generator = np.random.default_rng(tasks)
    held = np.zeros(3)
    for _ in range(200):
        chance = generator.beta(2, 1, tasks)
        better = chance + 0.2 * (1 - chance)

        def play(chances: np.ndarray, tries: int) -> list[EpisodeOutcome]:
            solved = generator.random((tasks, tries)) < chances[:, None]
            return [outcome(task, bool(one)) for task in range(tasks) for one in solved[task]]

        repeated = play(chance, 3)
        held += [
            rate_interval(repeated).contains(2 / 3),
            gain(play(better, 1), play(chance, 1)).interval.contains(0.2 / 3),
            pass_hat_interval(repeated, 3).contains(2 / 3 * 3 / 4 * 4 / 5),
        ]
    assert (held / 200 >= 0.91).all()


def test_tasks_that_only_one_has_played_are_left_out() -> None:
    first = [outcome(number, True) for number in range(10)]
    second = [outcome(number, number != 7) for number in range(5, 20)]
    row = compare_agents(first, second)[0]
    assert (row.group, row.tasks, row.first_rate, row.second_rate) == ("all", 5, 1.0, 0.8)
    assert row.solved_by_one == (1, 0)
    assert gain(first, [outcome(99, True)]) is None
    assert compare_agents(first, [outcome(99, True)]) == []


@pytest.mark.slow
def test_the_table_of_two_agents_is_corrected_for_all_its_rows() -> None:
    generator = random.Random(8)
    datasets = ("gsm8k", "math", "mmlu", "mbpp", "humaneval", "alfworld")
    first, second = (
        [outcome(number, generator.random() < rate, task=task) for task in datasets for number in range(30)]
        for rate in (0.65, 0.45)
    )
    rows = compare_agents(first, second)
    raw = [row.difference.p_value for row in rows]
    assert len(rows) > 6
    assert [row.p_holm for row in rows] == pytest.approx(multipletests(raw, method="holm")[1].tolist())
    assert any(p < 0.05 < row.p_holm for p, row in zip(raw, rows, strict=True))


def test_the_slope_between_two_budgets_has_the_interval_of_the_gain() -> None:
    generator = random.Random(5)
    late, early = (
        [outcome(number, generator.random() < rate, k=k, task=task) for task in "ab" for number in range(25)]
        for k, rate in ((3, 0.6), (1, 0.4))
    )
    slope, difference = slope_interval([*late, *early]), gain(late, early)
    assert (slope.low, slope.high) == pytest.approx(
        (50 * difference.interval.low, 50 * difference.interval.high)
    )


@pytest.mark.slow
def test_the_slope_interval_has_a_width_without_spread_and_covers_the_truth() -> None:
    same = [outcome(task, k > 2, k=k) for k in range(1, 5) for task in range(20)]
    interval = slope_interval(same)
    assert interval.low < interval.high <= 100 * 2 / 5
    generator, covered = np.random.default_rng(0), 0
    for _ in range(300):
        hard = generator.normal(size=25)
        latent = 0.7 * hard + 0.7 * generator.normal(size=(3, 25))
        solved = latent < np.array([-0.8, -0.2, 0.4])[:, None] * (2 * 0.7**2) ** 0.5
        found = slope_interval([outcome(n, bool(solved[k, n]), k=k + 1) for k in range(3) for n in range(25)])
        covered += found.contains(50 * (stats.norm.cdf(0.4) - stats.norm.cdf(-0.8)))
    assert covered >= 275


def test_tokens_and_leaks_survive_the_table_of_outcomes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = [
        replace(outcome(1, True), tokens=120, leaked=True),
        replace(outcome(2, True), tokens=80, leaked=False),
    ]
    path = tmp_path / "outcomes.csv"
    write_outcome_table(path, [*known, outcome(3, False)])
    assert list(read_outcome_table(path)) == [*known, outcome(3, False)]
    assert group_rows(known)[0].tokens == 100.0
    assert group_rows([*known, outcome(3, False)])[0].tokens is None  # a mean over some would mislead
    write_outcome_table(path, [replace(entry, feedback_model="e") for entry in known])
    assert main(["mint", "table", str(path), "--intervals"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "answer given away" in shown
    assert "50.0 %" in shown


def test_the_table_and_the_comparison_can_be_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "outcomes.csv"
    write_outcome_table(
        path,
        [
            outcome(task, task < limit, model=model)
            for model, limit in (("good", 8), ("bad", 2))
            for task in range(10)
        ]
        + [outcome(task, task < 5, model="bad", expert="e") for task in range(10)]
        + [outcome(task, False, model="bad", k=1) for task in range(10)],
    )
    assert main(["mint", "table", str(path), "--intervals", "--by", "dataset"]) == 0
    said = capsys.readouterr().out
    assert said.index("80.00") < said.index("20.00")
    assert "20.00" in said  # without those with an expert
    assert said.count("+30.0") == 1  # not in the column of another expert
    assert main(["mint", "compare", str(path), "--first", "bad+e", "--second", "bad"]) == 0
    assert "+30.0" in capsys.readouterr().out
    known = list(read_outcome_table(path))
    helped = [one for one in known if one.feedback_model == "e"]
    other = [replace(one, feedback_type="GT-textual", success=True) for one in helped]
    write_outcome_table(path, [*known, *other])
    assert main(["mint", "compare", str(path), "--first", "bad+e", "--second", "bad"]) == 2
    assert "bad+e/GT-textual or" in capsys.readouterr().err
    assert main(["mint", "compare", str(path), "--first", "bad+e/GT-textual", "--second", "bad"]) == 0
    assert "+80.0" in capsys.readouterr().out
    columns = ["--feedback-model", "e", "--feedback-type", "GT-textual"]
    assert main(["mint", "table", str(path), *columns]) == 0
    assert "100.0 +80.0" in " ".join(capsys.readouterr().out.split())
    assert main(["mint", "compare", str(path), "--first", "goof", "--second", "bad"]) == 2
    assert "did you mean good" in capsys.readouterr().err


@pytest.mark.slow
def test_the_verb_writes_the_published_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[2] / "data" / "reference" / "mint" / "replay"
    table = tmp_path / "table.json"
    assert main(["mint", "table", str(folder / "episode_outcomes.csv.gz"), "--json", str(table)]) == 0
    expected = json.loads((folder / "expected_metrics.json").read_text(encoding="utf-8"))
    written = json.loads(table.read_text(encoding="utf-8"))
    assert {model: written[model] for model in expected} == expected
    shown = capsys.readouterr().out
    for numbers in expected.values():
        (line,) = [line for line in shown.splitlines() if line.split()[0] == numbers["published_name"]]
        assert [f"{rate:.2f}" for rate in numbers["SR"].values()] == line.split()[1:6]


def test_the_trend_is_the_least_squares_line() -> None:
    rates = {1: 3.0, 2: 20.5, 3: 31.0, 4: 33.25, 5: 41.0}
    line = trend(rates)
    assert line is not None
    slope, _ = np.polyfit(list(rates), list(rates.values()), 1)
    correlation = np.corrcoef(list(rates), list(rates.values()))[0, 1]
    assert line.slope == pytest.approx(slope, abs=0.006)
    assert line.r2 == pytest.approx(correlation**2, abs=0.006)
