"""What repeated splits say about a dataset's encoders, for its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.report.headline import DEFAULT_METRIC, LABELS
from histobench.report.payload import rounded
from histobench.roi.comparison.selection import by_task
from histobench.roi.comparison.split_comparison import SplitEntry, SplitTable, compare_splits
from histobench.roi.data.cross_validation import LEAVE_ONE_GROUP_OUT
from histobench.roi.results.reader import split_runs


def split_payloads(results_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """Dataset -> its tables over splits, one for each task and preset; nothing where there are no splits.

    Single groups that were left out have no values of their own: they are compared by `compare --splits`.
    """
    try:
        runs = [run for run in split_runs(results_dir) if run.info["split"]["scheme"] != LEAVE_ONE_GROUP_OUT]
    except HistobenchError:
        return {}
    found: dict[str, list[dict[str, Any]]] = {}
    for (_, preset, _, _), members in by_task(runs).items():
        try:
            tables = compare_splits(members, metric=DEFAULT_METRIC)
        except HistobenchError:
            continue  # folds of other data; compare --splits says what differs
        for table in tables:
            found.setdefault(table.dataset, []).append(_payload(table, preset))
    return found


def _payload(table: SplitTable, preset: str) -> dict[str, Any]:
    against = {pair.second: pair for pair in table.pairs if pair.first == table.entries[0].name}
    return {
        "task": table.task,
        "setting": table.setting,
        "preset": preset,
        "metric": LABELS[table.metric],
        "scheme": table.scheme,
        "splits": table.n_splits,
        "pairs": len(table.pairs),
        "rows": [_row(entry, entry.name in against and against[entry.name].holds) for entry in table.entries],
        "notes": list(table.notes),
    }


def _row(entry: SplitEntry, behind: bool) -> dict[str, Any]:
    return {
        "name": entry.name,
        "mean": rounded(entry.mean.mean),
        "low": rounded(entry.mean.low),
        "high": rounded(entry.mean.high),
        "least": rounded(entry.least),
        "greatest": rounded(entry.greatest),
        "rank": rounded(entry.mean_rank),
        "rankLow": entry.rank_low,
        "rankHigh": entry.rank_high,
        "first": rounded(entry.first),
        "behind": behind,
    }
