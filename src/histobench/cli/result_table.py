"""Result tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from histobench.cli.terminal import labelled, open_terminal
from histobench.roi.task_catalogue import ROBUSTNESS

if TYPE_CHECKING:
    from histobench.roi.evaluation.run import EvaluationOutcome

_SHOWN = (
    ("balanced_accuracy", "bal. acc."),
    ("accuracy", "accuracy"),
    ("f1_score", "macro F1"),
    ("auroc", "AUROC"),
)


def print_outcome(outcome: EvaluationOutcome) -> None:
    """Print what one evaluation gave, a line per task, and where the files are."""
    console = open_terminal()
    table = Table(
        title=f"{outcome.encoder} on {outcome.dataset} (preset {outcome.preset})",
        title_justify="left",
    )
    table.add_column("task")
    table.add_column("setting")
    for _, title in _SHOWN:
        table.add_column(title, justify="right")
    table.add_column("n", justify="right")
    caveats = list(dict.fromkeys(text for row in outcome.rows for text in row.caveats))
    measured = [row for row in outcome.rows if row.task == ROBUSTNESS]
    for row in outcome.rows:
        if row in measured:
            continue
        values = (row.metrics.get(name) for name, _ in _SHOWN)
        marks = ",".join(str(1 + caveats.index(text)) for text in row.caveats)
        table.add_row(
            f"{row.task} ({marks})" if marks else row.task,
            row.setting,
            *("-" if value is None else f"{value:.4f}" for value in values),
            str(row.n),
        )
    if len(outcome.rows) > len(measured):
        console.print(table)
    for row in measured:
        known = [f"{name} {value:.4f}" for name, value in row.metrics.items() if value is not None]
        console.print(f"robustness by {row.setting}: {', '.join(known)}", soft_wrap=True)
    for number, text in enumerate(caveats, start=1):
        console.print(f"({number}) {text}", soft_wrap=True)
    for task, reason in outcome.skipped.items():
        console.print(labelled("skipped", "yellow", f"{task}: {reason}"), soft_wrap=True)
    for task, reason in outcome.failed.items():
        console.print(labelled("failed", "red", f"{task}: {reason}"), soft_wrap=True)
    console.print(f"results: {outcome.results_dir}", soft_wrap=True)
