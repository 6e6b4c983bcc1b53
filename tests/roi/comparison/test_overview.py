"""The screen that ends a run: encoders x tasks, what was asked for, what failed, what to do next."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sklearn.metrics import balanced_accuracy_score

from comparison_runs import Write
from histobench.cli.main import main
from histobench.cli.run import print_outcome
from histobench.cli.terminal import open_terminal
from histobench.roi.plan.plan_outcome import BenchmarkOutcome, PlanOutcome
from histobench.roi.plan.summary import compare_tasks
from histobench.roi.results.reader import load_runs
from histobench.roi.task_catalogue import canonical_task

ENCODERS = ("efficientnet-lite0", "tiny-vl", "random-vit")
TASKS = ("Linear-Probe", "KNN", "Proto", "Few-shot", "Zero-shot")


@pytest.fixture
def results(write_run: Write) -> Path:
    folder = Path()
    for task in TASKS:
        for encoder, signal in zip(ENCODERS, (3.0, 2.8, 0.3), strict=True):
            setting = "3way_16shot" if task == "Few-shot" else ""
            folder = write_run(encoder, signal, task=task, setting=setting, groups=True).parent
    return folder


def screen(results: Path, *, width: int = 80, **asked: Any) -> list[str]:
    """What is printed, line by line."""
    plan = {
        "datasets": [{"name": "Colon"}],
        "encoders": list(ENCODERS),
        "tasks": list(TASKS),
        "presets": ["uni"],
        "seed": 0,
        **asked,
    }
    comparisons, problems = compare_tasks(results)
    units = [SimpleNamespace(kind="evaluate", spec={"task": canonical_task(task)}) for task in plan["tasks"]]
    folder = SimpleNamespace(plan=plan, units=lambda: units)
    outcome = PlanOutcome(results, cast(Any, folder), evaluated=15)
    done = BenchmarkOutcome(outcome, tuple(comparisons), tuple(problems), results / "summary.md")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("COLUMNS", str(width))
        assert print_outcome(done, open_terminal()) == 0
    return printed.getvalue().splitlines()


@pytest.mark.slow
def test_three_encoders_and_five_tasks_fit_on_one_screen(results: Path) -> None:
    lines = screen(results)
    assert len(lines) <= 30
    assert all(len(line.rstrip()) <= 80 for line in lines if str(results) not in line)
    text = "\n".join(lines)
    for name in (*ENCODERS, *TASKS):
        assert name in text
    assert "150 test images of 30 groups" in text
    assert "not for the 5 tasks" in text
    assert lines[-1].startswith("Next: histobench report ")
    assert all(line == line.rstrip() for line in lines[text[: text.index("Answer: ")].count("\n") :])
    said = " ".join(text.split())
    assert re.search(
        r"Answer: On Colon \(Linear-Probe, balanced accuracy; 150 test images of 30 patients or slides\), "
        r"\S+ \(.*\) or \S+ \(.*\) may be the best; random-vit is shown to be worse than \S+ \(95% "
        r"confidence for all pairs together\)\. The answer is by Linear-Probe alone",
        said,
    )


@pytest.mark.slow
def test_every_encoder_that_may_be_the_best_is_marked(results: Path) -> None:
    expected = {
        run.identity.encoder: balanced_accuracy_score(run.predictions.labels, run.predictions.predicted)
        for run in load_runs(results)
        if run.task == "KNN"
    }
    row = {
        line.split()[0]: line.split()[1:] for line in screen(results, width=200) if line.startswith(ENCODERS)
    }
    for name, value in expected.items():
        found = next(cell for cell in row[name][3::3] if cell.startswith(f"{value:.3f}"))
        assert found == f"{value:.3f}" + ("" if name == "random-vit" else "*")
    assert re.search(r"\[0\.\d{3}, 0\.\d{3}\]", "\n".join(screen(results, width=200)))


def test_without_intervals_nothing_is_called_a_tie(write_run: Write) -> None:
    for encoder in ENCODERS:
        folder = write_run(encoder, task="KNN", groups=True, n=15).parent
    text = "\n".join(screen(folder, tasks=["KNN"]))
    assert "No intervals or tests: too few groups: 3" in text
    assert "*" not in text
    assert "best" not in text
    assert "Answer: On Colon (KNN; 15 test images of 3 patients or slides)" in text
    assert "could not be tested" in text
    assert "--splits 5x5" in text


@pytest.mark.slow
def test_compare_shows_several_datasets_in_one_table(
    write_run: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for number, dataset in enumerate(("Colon", "Breast", "Lung")):
        for encoder, signal in zip(ENCODERS, (3.0, 2.0, 0.3), strict=True):
            folder = write_run(encoder, signal, dataset=dataset, test_set=number).parent
    assert main(["compare", str(folder)]) == 0
    short = capsys.readouterr().out
    rows = [line for line in short.splitlines() if line.startswith("efficientnet-lite0")]
    assert len(rows) == 2  # values, and mean ranks
    assert "* may be the best" in short
    assert "Answer: On 3 datasets (Linear-Probe, balanced accuracy; Breast: 150" in " ".join(short.split())
    assert main(["compare", str(folder), "--verbose"]) == 0
    assert "row minus column" in capsys.readouterr().out
