"""`X_intervals.json`: the default intervals of a stored run, beside its results.

Runs whose metrics are means over episodes or training runs have none here: their uncertainty is not one of
test images alone.
"""

from __future__ import annotations

from typing import Any

from histobench.core.atomic import write_json
from histobench.core.errors import HistobenchError
from histobench.core.plain_data import parse_json
from histobench.core.plain_file import read_plain_text
from histobench.core.statistics.intervals import Interval
from histobench.roi.comparison.metric_intervals import METHOD, run_metric_intervals
from histobench.roi.comparison.run_intervals import RESAMPLED, by_class_of
from histobench.roi.comparison.sampling_units import SamplingUnits, scored
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun

#: Goes up when the same predictions get other intervals than before; files of other rules are made anew.
RULES = 2


def write_default_intervals(run: StoredRun, digest: str, *, force: bool = False) -> dict[str, Any] | None:
    """Write the file and return its content; one of the same predictions and the present rules is kept."""
    files = TaskFiles.beside(run.path)
    if files.per_episode.exists() or run.episodes is not None:
        return None
    existing = None if force else default_intervals(run, digest)
    if existing is not None:
        return existing
    content = interval_content(run) | {"predictions_sha256": digest}
    write_json(files.intervals, content)
    return content


def default_intervals(run: StoredRun, digest: str) -> dict[str, Any] | None:
    """The content of a run's file; None where it is not there, broken, of other predictions or old rules."""
    try:
        content = parse_json(read_plain_text(TaskFiles.beside(run.path).intervals))
        current = content["predictions_sha256"] == digest and content.get("rules") == RULES
        return content if current and content["metrics"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def interval_content(run: StoredRun) -> dict[str, Any]:
    """The interval of every metric of a run, as plain JSON values."""
    predictions = scored(run.predictions)
    if len(predictions) == 0:
        raise HistobenchError(f"{TaskFiles.beside(run.path).detailed} holds no predictions")
    units = SamplingUnits.of(predictions)
    values, intervals = run_metric_intervals(predictions)
    entries = {
        name: _entry(None if value != value else value, intervals[name]) for name, value in values.items()
    }
    return {
        "task_name": run.task,
        "setting": run.setting,
        "dataset": run.identity.dataset,
        "encoder": run.identity.encoder,
        "preset": run.identity.preset,
        "method": METHOD,
        "rules": RULES,
        "confidence_level": 0.95,
        "num_samples": len(predictions),
        "num_groups": None if units.group_of is None else units.n_units,
        "left_out": RESAMPLED["plain" if units.group_of is None else "cluster"],
        "caution": units.caution(),
        "metrics": {name: entry for name, entry in entries.items() if "@" not in name},
        "per_class": by_class_of(entries, predictions.classes),
    }


def _entry(value: float | None, interval: Interval) -> dict[str, Any]:
    return {
        "value": value,
        "ci_lower": interval.low,
        "ci_upper": interval.high,
        "method": interval.method,
        "reason": interval.reason,
    }
