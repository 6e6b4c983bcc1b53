"""The tests that pairs of runs on the same images get, and which one a table goes by.

`jackknife` (the default) is about the table's metric, and its interval and p-value are one quantity. The
others are named alternatives: `bootstrap` and `permutation` for any metric, `mcnemar` for accuracy alone,
`delong` for the AUROC alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.core.statistics.delong import DeLongTest, delong_test
from histobench.core.statistics.mcnemar import McNemar, clustered_mcnemar, mcnemar
from histobench.roi.comparison.image_groups import image_groups
from histobench.roi.comparison.left_out_table import MACRO_AUROC
from histobench.roi.predictions import Predictions

TESTS = ("auto", "jackknife", "bootstrap", "permutation", "mcnemar", "delong")
TEST_NAMES = {
    "max-t": "paired jackknife-t for the largest of all differences (max-t)",
    "jackknife": "paired jackknife-t",
    "bootstrap": "paired bootstrap",
    "permutation": "sign-flip permutation",
    "mcnemar": "McNemar's test of accuracy",
    "delong": "DeLong's test",
}
#: Metrics for which McNemar's test is about the metric itself.
ACCURACY = frozenset({"accuracy", "micro_precision", "micro_recall", "micro_f1", "weighted_recall"})


@dataclass(frozen=True)
class PairTests:
    """p-values of one pair about the table's metric; those that were not asked for are NaN or None."""

    jackknife: float
    bootstrap: float = float("nan")
    permutation: float = float("nan")
    mcnemar: McNemar | None = None
    delong: DeLongTest | None = None
    no_delong: str | None = None  # why there is no DeLong test

    def p_value(self, test: str) -> float:
        """The p-value of one of the tests; NaN where the test could not be made."""
        if test == "mcnemar":
            return np.nan if self.mcnemar is None else self.mcnemar.p_value
        if test == "delong":
            return np.nan if self.delong is None else self.delong.p_value
        return float(getattr(self, test))

    def reversed(self) -> PairTests:
        """The same tests with the encoders exchanged."""
        mcnemar, delong = self.mcnemar, self.delong
        if mcnemar is not None:
            mcnemar = replace(mcnemar, only_first=mcnemar.only_second, only_second=mcnemar.only_first)
        if delong is not None:
            delong = replace(delong, first=delong.second, second=delong.first, z=-delong.z)
        return replace(self, mcnemar=mcnemar, delong=delong)


def chosen_test(wanted: str, metric: str) -> str:
    """`auto` is the jackknife; a test that is not about the metric is refused."""
    if wanted == "mcnemar" and metric not in ACCURACY:
        raise HistobenchError(
            f"McNemar's test is about accuracy and not about {metric}; use `test` jackknife"
        )
    if wanted == "delong" and metric not in MACRO_AUROC:
        raise HistobenchError(
            f"DeLong's test is about the AUROC and not about {metric}; use `test` jackknife"
        )
    return "jackknife" if wanted == "auto" else wanted


def label_test(first: Predictions, second: Predictions, metric: str) -> McNemar | None:
    """McNemar's test where the metric is accuracy, in its clustered form where images come in groups."""
    if metric not in ACCURACY:
        return None
    right = [run.predicted == run.labels for run in (first, second)]
    groups = image_groups(first)
    return mcnemar(right[0], right[1]) if groups is None else clustered_mcnemar(right[0], right[1], groups)


def area_test(first: Predictions, second: Predictions, metric: str) -> tuple[DeLongTest | None, str | None]:
    """DeLong's test where the metric is the AUROC, or why there is none."""
    if metric not in MACRO_AUROC:
        return None, None
    reason = _why_no_delong(first) or _why_no_delong(second)
    if reason is not None:
        return None, reason
    columns = 1 if first.probabilities.shape[1] == 2 else slice(None)
    test = delong_test(
        first.probabilities[:, columns],
        second.probabilities[:, columns],
        first.labels,
        clusters=image_groups(first),
    )
    return test, None


def _why_no_delong(predictions: Predictions) -> str | None:
    sizes = np.bincount(predictions.labels, minlength=predictions.probabilities.shape[1])
    if not np.isfinite(predictions.probabilities).all():
        return "the probabilities do not cover every class"
    if sizes.min() == 0:
        return f"class {_name(predictions, int(sizes.argmin()))} is absent from the test set"
    if sizes.min() == 1:
        return f"class {_name(predictions, int(sizes.argmin()))} has a single test image"
    groups = image_groups(predictions)
    if groups is not None and len(set(groups)) < 2:
        return "there is only one group"
    return None


def _name(predictions: Predictions, k: int) -> str:
    return predictions.classes[k] if k < len(predictions.classes) else str(k)
