"""The data of a run page: one encoder, one dataset, one task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.core.statistics.intervals import Interval
from histobench.report.payload import packed, rounded
from histobench.report.probability_code import encode
from histobench.roi.comparison.stored_intervals import shown_intervals, stored_default_intervals
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.reader import read_content
from histobench.roi.results.stored_run import StoredRun

#: What `additional_info` says besides who made the run; shown as it is. The rest has its own place.
_OWN_PLACE = frozenset(
    {
        *("dataset", "encoder", "preset", "setting", "seed", "fingerprint", "description", "classes"),
        *("undefined_metrics", "date", "version", "train_features", "test_features", "val_features"),
        *("command", "dataset_source", "prompt_file", "warnings"),
    }
)


@dataclass(frozen=True)
class RunIntervals:
    """The intervals that a run's page shows, where they come from, and why some metrics have none."""

    bounds: dict[str, list[float | None]]  # metric -> [low, high]
    source: str
    kinds: frozenset[str] = frozenset()  # methods: "logit-t", "wilson", ...
    reasons: dict[str, str] = field(default_factory=dict)  # metric -> why there is none


def run_intervals_of(run: StoredRun, quick: Mapping[str, Interval], *, how: str) -> RunIntervals:
    """The intervals of a run, from its file or `quick`, which are the same; `how`: what `quick` is over."""
    default = stored_default_intervals(run)
    if default is None and run.per_episode is not None:
        default = shown_intervals(run)
    if default is not None:
        known = {name: entry for name, entry in default["metrics"].items() if entry["ci_lower"] is not None}
        kinds = frozenset(str(entry["method"]) for entry in known.values())
        source = _jackknife_over(str(default.get("left_out", "")), kinds)
        return RunIntervals(_bounds_of(known), source, kinds, _reasons_of(default["metrics"]))
    fast = {name: interval for name, interval in quick.items() if interval.low is not None}
    kinds = frozenset(interval.method for interval in fast.values())
    return RunIntervals(
        bounds={name: [rounded(interval.low), rounded(interval.high)] for name, interval in fast.items()},
        source=f"{how} ({', '.join(sorted(kinds))})" if how and kinds else how,
        kinds=kinds,
        reasons={name: interval.reason for name, interval in quick.items() if interval.reason},
    )


def _jackknife_over(units: str, kinds: frozenset[str]) -> str:
    return f"jackknife over {units} ({', '.join(sorted(kinds))})" if kinds else ""


def _bounds_of(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, list[float | None]]:
    return {name: [rounded(e["ci_lower"]), rounded(e["ci_upper"])] for name, e in entries.items()}


def _reasons_of(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {
        name: str(entry["reason"])
        for name, entry in entries.items()
        if entry.get("ci_lower") is None and entry.get("reason")
    }


def run_payload(run: StoredRun, *, image_set: str, intervals: RunIntervals) -> dict[str, Any]:
    """Everything that the page of one run shows."""
    content = read_content(run.path)
    predictions = run.predictions
    if len(predictions) and int(max(predictions.labels.max(), predictions.predicted.max())) >= len(
        run.classes
    ):
        raise HistobenchError(f"{run.path}: a label lies outside the class map")
    return {
        "metrics": {name: rounded(value) for name, value in run.metrics.items()},
        "undefined": run.undefined_metrics,
        "warnings": _texts(run.info.get("warnings")),
        "bounds": intervals.bounds,
        "noBounds": intervals.reasons,
        "boundsFrom": intervals.source,
        "perClass": {
            name: {key: rounded(value) for key, value in values.items()}
            for name, values in (content["metrics"].get("per_class") or {}).items()
            if isinstance(values, dict)
        },
        "confusion": content.get("confusion_matrix"),
        "classes": list(run.classes),
        "images": image_set,
        "predicted": packed(predictions.predicted),
        "probabilities": packed(encode(predictions.probabilities)),
        "episodes": None if predictions.episodes is None else packed(predictions.episodes),
        "averaged": TaskFiles.beside(run.path).per_episode.exists(),
        "provenance": provenance(run),
        "info": {key: value for key, value in run.info.items() if key not in _OWN_PLACE},
    }


def provenance(run: StoredRun) -> dict[str, Any]:
    """Where a run's numbers come from; of files only the names, since a site may be public."""
    info = run.info
    files = {key: PurePath(str(info.get(key) or "")).name for key in ("train_features", "test_features")}
    return {
        "preset": run.identity.preset,
        "seed": run.identity.seed,
        "fingerprint": run.identity.fingerprint,
        "description": run.identity.description,
        "version": str(info.get("version") or ""),
        "date": str(info.get("date") or ""),
        "n": len(run.predictions) if "predictions" in run.__dict__ else None,
        **files,
    }


def episode_summary(run: StoredRun) -> dict[str, list[float | None]] | None:
    """Mean, standard deviation, 2.5% and 97.5% quantile over episodes of each metric."""
    episodes = run.per_episode
    if episodes is None:
        return None
    summary: dict[str, list[float | None]] = {}
    for name, values in episodes.items():
        defined = values[np.isfinite(values)]
        if len(defined):
            low, high = np.quantile(defined, [0.025, 0.975])
            spread = float(defined.std()) if len(defined) else 0.0
            summary[name] = [rounded(x) for x in (float(defined.mean()), spread, float(low), float(high))]
    return summary


def _texts(value: object) -> list[str]:
    return [str(text) for text in value] if isinstance(value, list) else []
