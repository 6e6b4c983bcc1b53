"""The tests that a pair of runs on the same images gets, and which one a table goes by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from histobench.core.statistics.delong import DeLongTest, delong_test
from histobench.core.statistics.mcnemar import McNemar, mcnemar
from histobench.roi.comparison.image_groups import image_groups
from histobench.roi.predictions import Predictions

TESTS = ("auto", "bootstrap", "mcnemar", "delong")
#: Metrics for which DeLong's test is about the metric itself.
MACRO_AUROC = ("auroc", "macro_auroc_ovr")


@dataclass(frozen=True)
class PairTests:
    """p-values of one pair: of the table's metric (bootstrap), of accuracy (McNemar), of AUROC (DeLong)."""

    bootstrap: float
    mcnemar: McNemar
    delong: DeLongTest | None
    no_delong: str | None = None  # why there is no DeLong test

    def p_value(self, test: str) -> float:
        """The p-value of one of the tests; NaN where the test could not be made."""
        if test == "mcnemar":
            return self.mcnemar.p_value
        if test == "delong":
            return np.nan if self.delong is None else self.delong.p_value
        return self.bootstrap

    def reversed(self) -> PairTests:
        """The same tests with the encoders exchanged."""
        swapped = replace(
            self.mcnemar, only_first=self.mcnemar.only_second, only_second=self.mcnemar.only_first
        )
        if self.delong is None:
            return replace(self, mcnemar=swapped)
        delong = replace(self.delong, first=self.delong.second, second=self.delong.first, z=-self.delong.z)
        return replace(self, mcnemar=swapped, delong=delong)


def chosen_test(wanted: str, metric: str, reference: Predictions) -> str:
    """`auto` is DeLong for the (macro) AUROC where it can be computed, and the paired bootstrap otherwise."""
    if wanted != "auto":
        return wanted
    return "delong" if metric in MACRO_AUROC and _why_no_delong(reference) is None else "bootstrap"


def pair_tests(first: Predictions, second: Predictions, *, bootstrap: float) -> PairTests:
    """McNemar and DeLong for two aligned runs, beside the bootstrap's p-value."""
    accuracy = mcnemar(first.predicted == first.labels, second.predicted == second.labels)
    reason = _why_no_delong(first) or _why_no_delong(second)
    if reason is not None:
        return PairTests(bootstrap, accuracy, None, reason)
    return PairTests(bootstrap, accuracy, _delong(first, second))


def _delong(first: Predictions, second: Predictions) -> DeLongTest:
    columns = 1 if first.probabilities.shape[1] == 2 else slice(None)
    return delong_test(
        first.probabilities[:, columns],
        second.probabilities[:, columns],
        first.labels,
        clusters=image_groups(first),
    )


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
