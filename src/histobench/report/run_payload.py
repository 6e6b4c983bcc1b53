"""The data of a run page: one encoder, one dataset, one task."""

from __future__ import annotations

import base64
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from histobench.report.payload import facts_of, packed, rounded
from histobench.roi.comparison.stored_intervals import shown_intervals, stored_default_intervals
from histobench.roi.metrics.target_metrics import SurvivalCurve, log_rank_p, target_metrics
from histobench.roi.predictions import TargetPredictions
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.reader import read_content
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import MASK, MULTILABEL, ORDINAL, SURVIVAL
from histobench.statistics.intervals import Interval

#: Codes 1 to 65533 lie evenly between these log-odds (about 2e-9 and 1 - 2e-9).
RANGE = 20.0
ZERO, MISSING, ONE = 0, 65534, 65535
_STEPS = 65532


def encode(probabilities: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Codes of probabilities: 0 and 1 exactly, NaN as missing, log-odds in steps of 0.0006 between.

    Even steps of the probability would make one value of everything that a sure classifier says; even
    steps of the log-odds keep the order of images, which ROC curves are about.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_odds = np.log(p) - np.log1p(-p)
    place = np.rint((np.clip(log_odds, -RANGE, RANGE) + RANGE) / (2 * RANGE) * _STEPS) + 1
    codes = np.where(p <= 0, ZERO, np.where(p >= 1, ONE, place))
    return np.where(np.isnan(p), MISSING, codes).astype(np.uint16)


#: What `additional_info` says besides who made the run; shown as it is. The rest has its own place.
_OWN_PLACE = frozenset(
    {
        *("dataset", "encoder", "preset", "setting", "seed", "fingerprint", "description", "classes"),
        *("undefined_metrics", "date", "version", "train_features", "test_features", "val_features"),
        *("command", "dataset_source", "prompt_file", "warnings", "options", "data", "predictions_file"),
        *("examples", "versions"),
    }
)


class RunIntervals(NamedTuple):
    """The intervals that a run's page shows, where they come from, and why some metrics have none."""

    bounds: dict[str, list[float | None]]  # metric -> [low, high]
    source: str
    kinds: frozenset[str]  # methods: "wilson-t", ...
    reasons: dict[str, str]  # metric -> why there is none


def run_intervals_of(run: StoredRun, quick: Mapping[str, Interval], *, how: str) -> RunIntervals:
    """Return the intervals of a run, from its file or `quick`, which are the same; `how`: over what."""
    stored = stored_default_intervals(run)
    if stored is None and run.per_episode is not None:
        stored = shown_intervals(run)
    if stored is not None:
        how = f"jackknife over {stored.get('left_out', '')}"
        quick = {
            name: Interval(
                each["ci_lower"], each["ci_upper"], method=each.get("method", ""), reason=each.get("reason")
            )
            for name, each in stored["metrics"].items()
        }
    known = {name: each for name, each in quick.items() if each.low is not None}
    kinds = frozenset(each.method for each in known.values())
    return RunIntervals(
        bounds={name: [rounded(each.low), rounded(each.high)] for name, each in known.items()},
        source=how if kinds else "",
        kinds=kinds,
        reasons={name: each.reason for name, each in quick.items() if each.low is None and each.reason},
    )


def run_payload(
    run: StoredRun, *, image_set: str, intervals: RunIntervals, results_dir: Path
) -> dict[str, Any]:
    content = read_content(run.path)
    predictions = run.predictions
    return {
        **_facts(run, intervals, results_dir),
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
    }


def _facts(run: StoredRun, intervals: RunIntervals, results_dir: Path) -> dict[str, Any]:
    warnings = run.info.get("warnings")
    return {
        "metrics": {name: rounded(value) for name, value in run.metrics.items()},
        "undefined": run.undefined_metrics,
        "warnings": list(map(str, warnings)) if isinstance(warnings, list) else [],
        "bounds": intervals.bounds,
        "noBounds": intervals.reasons,
        "boundsFrom": intervals.source,
        "provenance": provenance(run, results_dir),
        "info": {key: value for key, value in run.info.items() if key not in _OWN_PLACE},
    }


#: Most points of a scatter plot.
MOST_POINTS = 4000


def target_payload(
    run: StoredRun, *, intervals: RunIntervals, labels: Mapping[str, Interval], results_dir: Path
) -> dict[str, Any]:
    """What the page of a run shows whose target is not a class; `labels` are intervals such as `auroc@0`."""
    predictions = run.target_predictions
    draw: dict[str, Callable[[TargetPredictions], dict[str, Any]]] = {
        SURVIVAL: _survival_curves,
        MULTILABEL: partial(_each_label, intervals=labels),
        ORDINAL: _levels,
        MASK: lambda masks: {"classes": _each_column(masks, "pixels", ("dice",), labels)},
    }
    groups = len(set(predictions.groups) - {""}) if predictions.groups else 0
    return {
        **_facts(run, intervals, results_dir),
        "target": {
            "kind": run.target,
            "columns": list(predictions.columns),
            "rows": len(predictions),
            "groups": groups or None,
            **draw.get(run.target, _points)(predictions),
            **_examples(run),
        },
    }


def _points(predictions: TargetPredictions) -> dict[str, Any]:
    """True and predicted numbers; of many rows every so many, in the order of the truth."""
    truth, said = predictions.truth[:, 0], predictions.predicted[:, 0]
    order = np.argsort(truth, kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, MOST_POINTS).astype(np.int64))]
    names = [predictions.img_names[row] for row in shown]
    return {"truth": packed(truth[shown]), "predicted": packed(said[shown]), "names": names}


def _survival_curves(predictions: TargetPredictions) -> dict[str, Any]:
    time, event = predictions.truth[:, 0], predictions.truth[:, 1] > 0
    risk = predictions.predicted[:, 0]
    higher = risk > np.median(risk)
    if higher.all() or not higher.any():
        return {"curves": [], "ticks": [], "logRank": None}
    ticks = np.linspace(0, time.max(), 5)
    curves = []
    for name, members in (("higher risk", higher), ("lower risk", ~higher)):
        found = SurvivalCurve.of(time[members], event[members])
        numbers = {"times": found.times, "alive": found.alive, "low": found.low, "high": found.high}
        curves.append(
            {
                "name": name,
                "patients": int(members.sum()),
                "events": int(event[members].sum()),
                "last": rounded(float(time[members].max())),
                "atRisk": [int((time[members] >= tick).sum()) for tick in ticks],
                **{key: [rounded(value) for value in values.tolist()] for key, values in numbers.items()},
            }
        )
    return {
        "curves": curves,
        "ticks": [rounded(tick, 3) for tick in ticks.tolist()],
        "logRank": rounded(log_rank_p(time, event, higher), 3),
    }


def _each_column(
    predictions: TargetPredictions, total: str, metrics: Sequence[str], intervals: Mapping[str, Interval]
) -> list[dict[str, Any]]:
    """Of every label or class its total, and metrics as value, low, high."""
    found = target_metrics(predictions)

    def shown(name: str) -> list[float | None]:
        interval = intervals.get(name)
        bounds = (None, None) if interval is None else (interval.low, interval.high)
        return [rounded(value) for value in (found[name].value, *bounds)]

    return [
        {
            "name": name,
            total: int(predictions.truth[:, place].sum()),
            **{metric: shown(f"{metric}@{place}") for metric in metrics},
        }
        for place, name in enumerate(predictions.columns)
    ]


def _each_label(predictions: TargetPredictions, *, intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """Areas of every label with their intervals, and what the curves are drawn from."""
    return {
        "labels": _each_column(predictions, "positives", ("auroc", "auprc"), intervals),
        "truth": packed(predictions.truth.astype(np.uint8)),
        "predicted": packed(encode(predictions.predicted)),
    }


def _examples(run: StoredRun) -> dict[str, Any]:
    """The sheet of the worst and best images of a segmentation, where it was written."""
    path = TaskFiles.beside(run.path).examples
    listed = run.info.get("examples")
    if not isinstance(listed, list) or not path.is_file():
        return {}
    return {"examples": listed, "sheet": base64.b64encode(path.read_bytes()).decode()}


def _levels(predictions: TargetPredictions) -> dict[str, Any]:
    levels = [float(name) for name in predictions.predicted_columns]
    return {
        "levels": list(predictions.predicted_columns),
        "truth": packed(np.searchsorted(levels, predictions.truth[:, 0]).astype(np.int64)),
        "predicted": packed(predictions.predicted.argmax(axis=1).astype(np.int64)),
    }


def provenance(run: StoredRun, results_dir: Path) -> dict[str, Any]:
    """Where a run's numbers come from; paths start at the results folder, since a site may be public."""
    info = run.info
    return {
        **facts_of(run.identity, "preset", "seed", "fingerprint", "description"),
        "version": str(info.get("version") or ""),
        "date": str(info.get("date") or ""),
        "n": len(run.predictions) if "predictions" in run.__dict__ else None,
        **{key: PurePath(str(info.get(key) or "")).name for key in _FILES},
        "command": repeat_command(run, results_dir),
    }


def repeat_command(run: StoredRun, results_dir: Path) -> str:
    """The command that computes a run again, for the folder that holds the results folder.

    Empty where the features were not read from files.
    """
    info = run.info
    paths = {key: str(info.get(key) or "") for key in _FILES}
    if "num_val" in info and not paths["val_features"]:  # results of version 0.2
        paths["val_features"] = paths["train_features"].replace("_train.", "_val.")
    if not paths["test_features"]:
        return ""
    paths["train_features"] = paths["train_features"] or paths["test_features"]  # zero-shot: not used
    stored = info.get("options")
    options = {str(flag): str(value) for flag, value in (stored if isinstance(stored, dict) else {}).items()}
    if prompts := options.get("--zeroshot-prompt-file"):
        options["--zeroshot-prompt-file"] = relative(prompts, results_dir.parent)
    if few := re.fullmatch(r"(\d+)way_(\d+)shot", run.setting):
        options |= {"--n-way": few[1], "--n-shot": few[2], "--use-all-way": "False"}
    flags = {
        "--TASK": run.task,
        **{_FILES[key]: relative(path, results_dir.parent) for key, path in paths.items() if path},
        "--preset": run.identity.preset,
        "--seed": str(run.identity.seed),
        **options,
        "--log_dir": "repeated-results",
    }
    words = (f"{flag} {shlex.quote(value)}" for flag, value in flags.items() if value)
    return " \\\n    ".join(["histobench evaluate", *words])


#: Keys of the feature files of a run -> their flags.
_FILES = {
    "train_features": "--train_feature_file",
    "val_features": "--val_feature_file",
    "test_features": "--test_feature_file",
}


def relative(path: str, folder: Path) -> str:
    return PurePath(os.path.relpath(path, folder)).as_posix()


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
            summary[name] = [rounded(float(x)) for x in (defined.mean(), defined.std(), low, high)]
    return summary
