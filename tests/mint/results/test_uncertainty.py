"""Intervals, gains, slopes and repeated tries against slow and obvious computations."""

from __future__ import annotations

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
from histobench.mint.results.uncertainty import (
    gain,
    pass_hat_interval,
    rate_interval,
    slope_interval,
)


def outcome(
    task_id: int, success: bool, *, task: str = "gsm8k", k: int = 5, model: str = "m", expert: str = "None"
) -> EpisodeOutcome:
    kind = "None" if expert == "None" else "no_GT-textual"
    return EpisodeOutcome(model, expert, kind, k, task, str(task_id), success, 1, 2, 1, "")


def slow_resamples(outcomes: list[EpisodeOutcome], n: int) -> np.ndarray:
    """Rates of resamples: within each dataset, whole tasks are drawn, in plain loops."""
    generator = random.Random(1)
    tasks: dict[str, dict[str, list[bool]]] = {}
    for entry in outcomes:
        tasks.setdefault(entry.task, {}).setdefault(entry.task_id, []).append(entry.success)
    rates = []
    for _ in range(n):
        drawn = [
            success
            for members in tasks.values()
            for _ in members
            for success in members[generator.choice(list(members))]
        ]
        rates.append(sum(drawn) / len(drawn))
    return np.array(rates)


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.2)])
def test_the_interval_is_that_of_tasks_drawn_with_all_their_episodes(shares: tuple[float, float]) -> None:
    generator = random.Random(0)
    outcomes = []
    for task, n, share in zip(("gsm8k", "math"), (60, 30), shares, strict=True):
        for task_id in range(n):
            easy = generator.random() < share
            outcomes += [outcome(task_id, easy != (generator.random() < 0.1), task=task) for _ in range(3)]
    interval = rate_interval(outcomes)
    expected = np.quantile(slow_resamples(outcomes, 2000), [0.025, 0.975])
    assert [interval.low, interval.high] == pytest.approx(expected, abs=0.02)
    if shares[0] != shares[1]:
        return
    alone = rate_interval(outcomes[::3])
    # Three tries of one task are hardly more than one: the interval must not shrink by the root of three.
    assert interval.high - interval.low > 0.85 * (alone.high - alone.low)


def test_a_rate_of_zero_still_has_an_interval() -> None:
    interval = rate_interval([outcome(number, False) for number in range(10)])
    assert interval.low == pytest.approx(0.0)
    assert interval.high == pytest.approx(proportion_confint(0, 10, method="beta")[1])
    assert rate_interval([outcome(1, True)]).low is None


def test_tasks_that_were_played_once_have_the_interval_of_clopper_and_pearson() -> None:
    """But for Student's quantile and the n - 1 of a variance, which hardly differ for a thousand tasks."""
    outcomes = [outcome(number, number % 3 == 0) for number in range(999)]
    interval = rate_interval(outcomes)
    expected = proportion_confint(333, 999, method="beta")
    assert (interval.low, interval.high) == pytest.approx(expected, abs=2e-4)


def test_the_gain_is_paired_by_task() -> None:
    without = [outcome(number, number < 40) for number in range(100)]
    with_expert = [outcome(number, number < 50, expert="e") for number in range(100)]
    difference = gain(with_expert, without)
    assert difference is not None
    assert difference.difference == pytest.approx(0.1)
    assert difference.interval.low > 0.03  # the same tasks are hard for both
    assert difference.p_value < 0.01


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


def test_comparisons_are_made_for_families_and_datasets_too() -> None:
    outcomes = [
        outcome(number, number % 2 == 0, task=task) for task in ("gsm8k", "mbpp") for number in range(8)
    ]
    rows = {row.group: row for row in compare_agents(outcomes, outcomes)}
    assert set(rows) == {"all", "reasoning", "gsm8k", "code_generation", "mbpp"}
    assert all(row.difference.difference == 0 and row.difference.p_value == 1 for row in rows.values())


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


def test_the_slope_interval_surrounds_the_slope() -> None:
    outcomes = [outcome(task, task % 100 < 15 * k, k=k) for k in range(1, 6) for task in range(100)]
    interval = slope_interval(outcomes)
    assert interval.low < 15.0 < interval.high
    assert slope_interval([entry for entry in outcomes if entry.k == 5]) is None


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


def test_rows_say_what_the_agents_did() -> None:
    outcomes = [
        outcome(task, task < 3, k=k, task=name)
        for name in ("gsm8k", "math")
        for k in (1, 5)
        for task in range(4)
    ]
    by_dataset = group_rows([*outcomes, outcome(0, True, expert="e")], "dataset")
    assert [(row.group, row.rates, row.episodes) for row in by_dataset] == [
        ("gsm8k", {1: 75.0, 5: 75.0}, 4),
        ("math", {1: 75.0, 5: 75.0}, 4),
    ]
    assert (by_dataset[0].actions, by_dataset[0].invalid_rate, by_dataset[0].pass_hat) == (4.0, 0.25, None)
    assert [row.group for row in group_rows(outcomes, "family")] == ["reasoning"]


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
        + [outcome(task, task < 5, model="bad", expert="e") for task in range(10)],
    )
    assert main(["mint", "table", str(path), "--intervals", "--by", "dataset"]) == 0
    said = capsys.readouterr().out
    assert "80.00" in said
    assert "+30.0" in said
    assert main(["mint", "compare", str(path), "--first", "good", "--second", "bad"]) == 0
    said = capsys.readouterr().out
    assert "+60.0" in said
    assert "p (Holm, 3)" in said
    assert main(["mint", "compare", str(path), "--first", "bad+e", "--second", "bad"]) == 0
    assert "+30.0" in capsys.readouterr().out
    known = list(read_outcome_table(path))
    other = [replace(one, feedback_type="GT-textual") for one in known if one.feedback_model == "e"]
    write_outcome_table(path, [*known, *other])
    assert main(["mint", "compare", str(path), "--first", "bad+e", "--second", "bad"]) == 2
    assert "bad+e/GT-textual or" in capsys.readouterr().err
    assert main(["mint", "compare", str(path), "--first", "bad+e/GT-textual", "--second", "bad"]) == 0
    assert "+30.0" in capsys.readouterr().out
    assert main(["mint", "compare", str(path), "--first", "goof", "--second", "bad"]) == 2
    assert "did you mean good" in capsys.readouterr().err
