"""The summaries that Patho-Bench and HEST-Benchmark print, from stored predictions, beside our intervals.

Several folds: mean and standard error over folds (Patho-Bench), mean and standard deviation (HEST). One fold,
or one test sample per fold: the mean of 100 bootstrap samples with the range of the middle 95 %.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text, write_json
from histobench.core.plain_data import read_json
from histobench.roi.comparison.grids import Grid
from histobench.roi.metrics.target_metrics import evaluate_target
from histobench.roi.results.reader import load_runs, split_runs
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import CLASS

PATHO_BENCH, HEST = "patho-bench", "hest"
_NAMES = {PATHO_BENCH: "Patho-Bench", HEST: "HEST-Benchmark"}
#: Those that a line names.
_SHOWN = ("macro-ovr-auc", "bacc", "cindex", "pearson_mean")
BOOTSTRAPS = 100

Scores = dict[str, float]


def summarize_labs(results: Path) -> list[Path]:
    written = []
    for preset in (PATHO_BENCH, HEST):
        folds: dict[tuple[object, ...], list[StoredRun]] = {}
        for run in _all_runs(results):
            if run.identity.preset == preset:
                folds.setdefault((*_key(run), run.setting), []).append(run)
        if folds:
            path = results / "comparison" / preset / "published_summary.json"
            write_json(path, [_summary(preset, members) for members in folds.values()])
            written.append(path)
    return written


def lab_grids(results: Path) -> list[Grid]:
    found = []
    for preset, entries in _stored(results).items():
        metrics = list(dict.fromkeys(metric for entry in entries for metric in entry["metrics"]))
        rows = tuple(
            (
                f"{entry['dataset']}: {entry['task']}",
                entry["encoder"],
                *(entry["metrics"].get(metric, {}).get("formatted", "") for metric in metrics),
            )
            for entry in entries
        )
        notes = tuple(dict.fromkeys(entry["how"] for entry in entries))
        found.append(Grid(f"As {_NAMES[preset]} prints it", ("task", "encoder", *metrics), rows, notes))
    return found


def lab_remarks(results: Path) -> dict[str, list[str]]:
    said: dict[str, list[str]] = {}
    for preset, entries in _stored(results).items():
        for entry in entries:
            found = entry["metrics"]
            shown = [f"{name} {found[name]['formatted']}" for name in _SHOWN if name in found]
            line = f"As {_NAMES[preset]} prints it: {entry['encoder']} {', '.join(shown)} ({entry['how']})"
            said.setdefault(entry["dataset"], []).append(line)
    return said


def _stored(results: Path) -> dict[str, list[dict[str, Any]]]:
    paths = {preset: results / "comparison" / preset / "published_summary.json" for preset in _NAMES}
    return {
        preset: read_json(read_plain_text(path), where=str(path))
        for preset, path in paths.items()
        if path.is_file()
    }


def _all_runs(results: Path) -> list[StoredRun]:
    """Runs over folds where there are any, and those of one split for the others."""
    try:
        over = split_runs(results)
    except (HistobenchError, OSError):
        over = []
    known = {_key(run) for run in over}
    return [*over, *(run for run in load_runs(results) if _key(run) not in known)]


def _key(run: StoredRun) -> tuple[str, str, str, str, int]:
    identity = run.identity
    return identity.dataset, identity.preset, run.task, identity.encoder, identity.seed


def _summary(preset: str, runs: Sequence[StoredRun]) -> dict[str, Any]:
    first = runs[0]
    if preset == HEST:
        values = [{"pearson_mean": float(run.metrics.get("pearson") or "nan")} for run in runs]
        metrics = _over_folds(values, error=False)
        how = f"mean and standard deviation over {len(runs)} folds"
    else:
        score = _class_scores if first.target == CLASS else _cindex
        each = [score(run) for run in runs]
        if len(runs) > 1 and min(one.size for one in each) > 1:
            metrics = _over_folds([one.of(np.arange(one.size)) for one in each], error=True)
            how = f"mean and standard error over {len(runs)} folds"
        else:
            pooled = each[0] if len(each) == 1 else _class_scores(*runs)
            metrics = _bootstrapped(pooled)
            how = f"mean and range of {BOOTSTRAPS} bootstrap samples of {pooled.size} test samples"
    return {
        "dataset": first.identity.dataset,
        "encoder": first.identity.encoder,
        "task": first.task,
        "folds": len(runs),
        "how": how,
        "metrics": metrics,
    }


class _Scored(NamedTuple):
    """The test samples of a fold, and their scores as a function of the rows that count."""

    size: int
    of: Callable[[NDArray[np.int64]], Scores]


def _class_scores(*runs: StoredRun) -> _Scored:
    """Of one fold, or of folds of one test sample each, put together."""
    labels = np.concatenate([run.predictions.labels for run in runs])
    said = np.concatenate([run.predictions.probabilities for run in runs])
    return _Scored(len(labels), lambda rows: class_scores(labels[rows], said[rows], len(runs[0].classes)))


def _cindex(run: StoredRun) -> _Scored:
    said = run.target_predictions
    evaluate = evaluate_target(said)

    def of(rows: NDArray[np.int64]) -> Scores:
        counts = np.bincount(rows, minlength=len(said)).astype(np.int32)[None]
        return {"cindex": float(evaluate(counts)["harrell_c"][0])}

    return _Scored(len(said), of)


def class_scores(y_true: NDArray[np.int64], probabilities: NDArray[np.float64], n_classes: int) -> Scores:
    """The metrics of Patho-Bench, by scikit-learn; NaN where one is not defined."""
    from sklearn.metrics import (
        balanced_accuracy_score,
        classification_report,
        cohen_kappa_score,
        roc_auc_score,
    )

    y_pred = probabilities.argmax(axis=1)
    labels = list(range(n_classes))
    said = probabilities[:, 1] if n_classes == 2 else probabilities
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # undefined metrics are NaN
        report = classification_report(y_true, y_pred, output_dict=True, zero_division=0, labels=labels)
        areas = {}
        for kind in ("ovr", "ovo"):
            try:
                areas[f"macro-{kind}-auc"] = float(
                    roc_auc_score(y_true, said, average="macro", multi_class=kind, labels=labels)
                )
            except ValueError:
                areas = dict.fromkeys(("macro-ovr-auc", "macro-ovo-auc"), float("nan"))
                break
        return {
            **areas,
            **{
                f"{mean}-{name}": float(report[f"{mean} avg"][f"{name}{'-score' if name == 'f1' else ''}"])
                for mean in ("macro", "weighted")
                for name in ("precision", "recall", "f1")
            },
            "acc": float((y_true == y_pred).mean()),
            "bacc": float(balanced_accuracy_score(y_true, y_pred)),
            "weighted_kappa": float(cohen_kappa_score(y_true, y_pred, weights="quadratic")),
            "support": float(report["macro avg"]["support"]),
        }


def _over_folds(each: Sequence[Scores], *, error: bool) -> dict[str, Any]:
    """Mean and standard error; folds without a value are left out of the mean but count in the root."""
    found: dict[str, Any] = {}
    for name in each[0]:
        values = np.array([scores[name] for scores in each])
        known = values[np.isfinite(values)]
        if not len(known):
            found[name] = {"mean": None, "formatted": "N/A"}
            continue
        mean, spread = float(known.mean()), float(known.std())
        spread = spread / float(np.sqrt(len(each))) if error else spread
        key = "se" if error else "std"
        found[name] = {"mean": mean, key: spread, "formatted": f"{mean:.3f} ± {spread:.3f}"}
    return found


def _bootstrapped(scored: _Scored) -> dict[str, Any]:
    """Mean and middle 95 % of plain bootstrap samples, beside the value itself."""
    draw = np.random.RandomState(0)
    samples = [scored.of(draw.choice(scored.size, scored.size)) for _ in range(BOOTSTRAPS)]
    found: dict[str, Any] = {}
    for name, value in scored.of(np.arange(scored.size)).items():
        values = np.array([scores[name] for scores in samples])
        point = value if np.isfinite(value) else None
        if not np.isfinite(values).all():
            found[name] = {"mean": None, "lower": None, "upper": None, "formatted": "N/A", "value": point}
            continue
        mean, (low, high) = float(values.mean()), map(float, np.percentile(values, [2.5, 97.5]))
        shown = f"{mean:.3f} ({low:.3f}-{high:.3f})"
        found[name] = {"mean": mean, "lower": low, "upper": high, "formatted": shown, "value": point}
    return found
