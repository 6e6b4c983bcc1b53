"""The metrics that the leaderboard offers, and how they are called on the pages."""

from __future__ import annotations

from typing import Any

from histobench.roi.comparison.table_statistics import TESTED
from histobench.roi.metrics.catalogue import LOWER_IS_BETTER

#: Shown first wherever a metric can be chosen.
DEFAULT_METRIC = "balanced_accuracy"
LABELS = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "f1_score": "macro F1",
    "auroc": "macro AUROC",
    "macro_auprc": "macro AUPRC",
    "mcc": "Matthews correlation",
    "quadratic_kappa": "quadratic kappa",
    "log_loss": "log loss",
    "brier": "Brier score",
    "ece": "calibration error (ECE)",
}
HEADLINE = tuple(LABELS)


def metric_facts() -> list[dict[str, Any]]:
    """Name, label and direction of every metric of the leaderboard."""
    return [
        {"name": name, "label": label, "lower": name in LOWER_IS_BETTER, "tested": name in TESTED}
        for name, label in LABELS.items()
    ]
