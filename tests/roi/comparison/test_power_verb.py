"""`histobench power`: numbers, words and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from histobench.cli.main import main
from histobench.roi.comparison.power_of_runs import in_words, plan_test_set
from histobench.roi.result_options import PowerSettings
from histobench.roi.results.reader import load_runs

Write = Callable[..., Path]


@pytest.fixture
def two(write_run: Write) -> Path:
    write_run("a", 1.5, n=600)
    return write_run("b", 1.4, n=600)


@pytest.mark.slow
def test_accuracy_is_planned_by_simulation(two: Path) -> None:
    plan = plan_test_set(load_runs(two), PowerSettings("accuracy", delta=0.05, n_bootstrap=2000))
    first, second = (run.predictions for run in load_runs(two))
    discordant = np.mean((first.predicted == first.labels) != (second.predicted == second.labels))
    assert plan.discordant == pytest.approx(discordant)
    normal = plan.estimate.units_needed_normal
    assert 0.9 * normal < plan.estimate.units_needed < 1.25 * normal
    assert plan.unit == "images"
    assert plan.estimate.observed == pytest.approx(
        np.mean(first.predicted == first.labels) - np.mean(second.predicted == second.labels)
    )


def test_with_groups_the_answer_is_in_groups(write_run: Write) -> None:
    write_run("a", 1.5, groups=True)
    runs = load_runs(write_run("b", 1.4, groups=True))
    plan = plan_test_set(runs, PowerSettings("accuracy", delta=0.08, n_bootstrap=300))
    assert plan.unit == "groups"
    assert plan.estimate.present_units == 30
    assert "test groups (about" in in_words(plan)


@pytest.mark.slow
def test_the_verb_speaks_and_writes_json(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["power", str(two), "--encoders", "b,a", "--delta", "0.05", "--n_bootstrap", "300"]
    assert main(command) == 0
    assert "balanced_accuracy, b against a" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["estimate"]["present_units"] == 600
    assert main(["power", str(two), "--delta", "0.05", "--n_bootstrap", "300"]) == 0
    assert "balanced_accuracy, a against b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encoders", "a"], "--encoders must name two encoders"),
        (["--encoders", "a,c"], "no run of the encoder 'c'"),
        (["--encoders", "a,b", "--delta", "0"], "--delta: expected a number above 0"),
        (["--encoders", "a,b", "--power", "1"], "--power: expected a number above 0 and below 1"),
        (
            ["--encoders", "a,b", "--n_bootstrap", "5"],
            "--n-bootstrap: expected a whole number of at least 100",
        ),
        (["--encoders", "a,b", "--random_state", "-1"], "--seed: expected a whole number of at least 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["power", str(two), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
