"""`histobench power`: numbers, words and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from histobench.cli.main import main
from histobench.roi.comparison import power_of_runs
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
    _, answer, *rest = in_words(plan)
    assert answer.startswith(f"Plan {plan.estimate.units_needed:,} test groups (about ")
    assert not any("formula" in line or f"{plan.estimate.units_needed_normal:,} " in line for line in rest)


def test_a_plan_knows_what_compare_adds_for_few_groups(write_run: Write, monkeypatch: Any) -> None:
    plans = []
    for groups in (False, True):
        for name, signal in (("a", 1.5), ("b", 1.4)):
            write_run(name, signal, n=90, groups=groups, folder=f"{name}{groups}", dataset=f"d{groups}")
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(power_of_runs, "power_from_predictions", lambda *_, **more: given.append(more))
    runs = load_runs(write_run("a", 1.5, dataset="other"))
    for groups in (False, True):
        two = [run for run in runs if run.identity.dataset == f"d{groups}"]
        plans.append(plan_test_set(two, PowerSettings("accuracy", delta=0.08, alpha=0.1, power=0.9)))
    alone, grouped = given
    assert 0 < grouped["test_freedom"] < alone["test_freedom"] < 90
    assert grouped["unseen"] > 0
    assert {(each["alpha"], each["power"]) for each in given} == {(0.1, 0.9)}
    assert [plan.unit for plan in plans] == ["images", "groups"]


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
