"""What is known of an episode besides its text: cost, time, and whether the expert gave the answer away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from histobench.core.plain_data import parse_json
from histobench.core.plain_file import read_plain

DETAILS = "details.jsonl"
#: Episodes that could not be played to their end through no fault of the model.
FAILURES = "provider_failures.jsonl"


def read_details(results: Path) -> dict[str, dict[str, Any]]:
    """Task id -> details of the episodes of a `results.jsonl`; empty for runs of other programs."""
    return _by_task(results.with_name(DETAILS))


def read_failures(results: Path) -> dict[str, str]:
    """Task id -> outcome of the episodes beside a `results.jsonl` that could not be played to their end."""
    failures = _by_task(results.with_name(FAILURES))
    return {task_id: str(note.get("outcome") or "provider_failure") for task_id, note in failures.items()}


def _by_task(path: Path) -> dict[str, dict[str, Any]]:
    if not path.is_file():
        return {}
    found: dict[str, dict[str, Any]] = {}
    for line in read_plain(path).split(b"\n"):
        try:
            record = parse_json(line)
            found[str(record["task_id"])] = record  # of two, the later belongs to the result
        except (ValueError, KeyError, TypeError):
            continue  # the last line of a killed run
    return found


def spent_below(folder: str | Path, *, without: str) -> float:
    """Dollars paid for the finished episodes of all runs below a folder, as far as they are known.

    What lies in its subfolder `without` does not count.
    """
    folder = Path(folder)
    files = (path for path in folder.glob(f"**/{DETAILS}") if path.relative_to(folder).parts[0] != without)
    costs = (record.get("cost") for path in files for record in read_details(path).values())
    return sum(cost for cost in costs if isinstance(cost, int | float))


def gave_answer_away(details: dict[str, Any]) -> bool | None:
    """Whether any feedback of the episode did; `None` where there was none to judge."""
    leaks = (details.get("feedback") or {}).get("leaks") or []
    judged = [leak for leak in leaks if leak is not None]
    return any(judged) if judged else None
