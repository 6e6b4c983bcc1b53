"""Every pair of a table's runs: differences, intervals and tests, in columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.left_out_table import MACRO_AUROC
from histobench.roi.comparison.sampling_units import image_groups
from histobench.roi.predictions import Predictions
from histobench.statistics.delong import DeLongTest, delong_test
from histobench.statistics.many_models import SimultaneousPairs
from histobench.statistics.tests import McNemar, clustered_mcnemar, mcnemar

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: The family-wise error rate of every table.
ALPHA = 0.05


@dataclass(frozen=True)
class Pairs:
    """One row for each pair, first - second on the same images; NaN where there is no number.

    `low`, `high` and `p_adjusted` are for all pairs at once (max-t): the bounds exclude 0 exactly where
    `p_adjusted` is below `alpha`. `own_low`, `own_high` and `p_value` are those of the pair as if it were the
    only one.
    """

    names: tuple[str, ...]  # best first
    difference: Floats
    low: Floats
    high: Floats
    p_value: Floats
    p_adjusted: Floats
    own_low: Floats
    own_high: Floats
    alpha: float = ALPHA

    @classmethod
    def of(cls, names: tuple[str, ...], together: SimultaneousPairs, *, alpha: float = ALPHA) -> Pairs:
        """Of these runs, best first, from what holds for all of them at once."""
        place = np.array([together.names.index(name) for name in names])
        first, second = places_of_pairs(len(names))
        cells = place[first], place[second]
        own_low, own_high, p_value = together.alone()
        return cls(
            names=names,
            difference=together.difference[cells],
            low=together.low[cells],
            high=together.high[cells],
            p_value=p_value[cells],
            p_adjusted=together.p_adjusted[cells],
            own_low=own_low[cells],
            own_high=own_high[cells],
            alpha=alpha,
        )

    @classmethod
    def untested(cls, names: tuple[str, ...], values: Floats) -> Pairs:
        """Differences of values [m] of which nothing shows how far they vary."""
        first, second = places_of_pairs(len(names))
        low, high, p, adjusted, own_low, own_high = np.full((6, len(first)), np.nan)
        return cls(names, values[first] - values[second], low, high, p, adjusted, own_low, own_high)

    def __len__(self) -> int:
        return len(self.difference)

    @property
    def places(self) -> tuple[Places, Places]:
        """Where the first and the second run of each pair stand among the names."""
        return places_of_pairs(len(self.names))

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Whether the difference is shown: the rule that marks, ties, ranks and sets of the best go by."""
        return self.p_adjusted < self.alpha

    def against_best(self) -> dict[str, bool]:
        """Whether the difference from the best run holds, for every other one."""
        # The pairs of the first name come first.
        return dict(zip(self.names[1:], self.holds.tolist(), strict=False))


NO_PAIRS = Pairs((), *np.empty((7, 0)))


def places_of_pairs(n: int) -> tuple[Places, Places]:
    """The pairs of n things, in the order of `itertools.combinations`."""
    first, second = np.triu_indices(n, 1)
    return first, second


# The tests that pairs of runs on the same images get, and which one a table goes by.

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
