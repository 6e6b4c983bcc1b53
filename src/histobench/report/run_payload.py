"""The data of a run page: one encoder, one dataset, one task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.core.statistics.intervals import Interval
from histobench.core.statistics.resampling import sampling_design
from histobench.report.payload import packed, rounded
from histobench.report.probability_code import encode
from histobench.roi.comparison.run_intervals import (
    CROSSED,
    BootstrapSettings,
    intervals_of,
    means_of,
)
from histobench.roi.comparison.stored_intervals import stored_default_intervals, stored_intervals
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


def run_intervals_of(
    run: StoredRun, quick: Mapping[str, Interval], *, how: str
) -> tuple[dict[str, Any], str, set[str]]:
    """`{metric: [low, high]}`, where they come from (the file, the episodes or `quick`) and of which kinds.

    `how` says where the quick ones come from.
    """
    default = stored_default_intervals(run)
    if default is not None:
        known = {name: entry for name, entry in default["metrics"].items() if entry["ci_lower"] is not None}
        bounds = {name: [rounded(e["ci_lower"]), rounded(e["ci_upper"])] for name, e in known.items()}
        kinds = {str(entry["method"]) for entry in known.values()}
        return bounds, f"jackknife over {default['left_out']} ({', '.join(sorted(kinds))})", kinds
    of_episodes = TaskFiles.beside(run.path).per_episode.exists() or run.episodes is not None
    stored = stored_intervals(run) if of_episodes else None
    # Intervals of an older file are over episodes alone: beside those of other tasks they would mislead.
    if stored is not None and (run.episodes is None or stored.get("resampling") == CROSSED):
        bounds = {
            name: [rounded(entry.get("ci_lower")), rounded(entry.get("ci_upper"))]
            for name, entry in stored["metrics"].items()
            if entry.get("ci_lower") is not None
            and not (run.episodes is not None and entry.get("over") == "episodes")
        }
        source = f"{stored.get('n_bootstrap')} resamples of {stored.get('resampled')}"
        return bounds, source, {str(stored.get("method"))}
    episodes = run.per_episode
    if episodes is not None and run.episodes is None:
        count = len(next(iter(episodes.values())))
        settings = BootstrapSettings()
        found = intervals_of(means_of(episodes), sampling_design(count), settings)
        bounds = {
            name: [rounded(entry["ci_lower"]), rounded(entry["ci_upper"])]
            for name, entry in found.items()
            if entry["ci_lower"] is not None
        }
        return bounds, f"{settings.n_bootstrap} resamples of {count} episodes", {settings.method}
    fast = {name: interval for name, interval in quick.items() if interval.low is not None}
    bounds = {name: [rounded(interval.low), rounded(interval.high)] for name, interval in fast.items()}
    kinds = {interval.method for interval in fast.values()}
    return bounds, f"{how} ({', '.join(sorted(kinds))})" if how and kinds else how, kinds


def run_payload(run: StoredRun, *, image_set: str, bounds: Mapping[str, Any], source: str) -> dict[str, Any]:
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
        "bounds": dict(bounds),
        "boundsFrom": source,
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
