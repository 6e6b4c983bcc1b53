"""How large the next test set must be: power from two stored runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.left_out_table import left_out_table
from histobench.roi.comparison.metric_function import one_metric
from histobench.roi.comparison.sampling_units import SamplingUnits, aligned
from histobench.roi.comparison.selection import by_dataset, distinct_names, select_runs
from histobench.roi.predictions import Predictions
from histobench.roi.result_options import PowerOptions, PowerSettings
from histobench.roi.results.reader import load_runs
from histobench.roi.results.stored_run import StoredRun
from histobench.statistics.jackknife import SHARE_OF_UNSEEN, pair_errors
from histobench.statistics.power import PowerEstimate, power_from_predictions
from histobench.statistics.resampling import Metric, sampling_design


@dataclass(frozen=True)
class PowerAnalysis:
    """What two stored runs say about a test set that could show a difference of delta."""

    dataset: str
    first: str
    second: str
    metric: str
    delta: float
    power: float
    alpha: float
    unit: str  # "images" or "groups"
    estimate: PowerEstimate
    discordant: float  # share of images that exactly one of the two gets right


def power_of_results(results: str | Path, options: PowerOptions) -> list[PowerAnalysis]:
    """Return the analysis of each dataset of a results folder on which both encoders were run."""
    runs = select_runs(load_runs(results), **options.conditions())
    return [plan_test_set(members, options) for members in by_dataset(runs).values()]


def plan_test_set(runs: Sequence[StoredRun], settings: PowerSettings) -> PowerAnalysis:
    """Images or groups needed so that two encoders' difference of `delta` shows; `runs` are two runs."""
    named = distinct_names(runs)
    if len(named) != 2:
        raise HistobenchError(
            f"power needs exactly two runs on one dataset, not {len(named)} ({', '.join(named) or 'none'}); "
            "choose with `encoders` a,b and, where there are more, `preset`, `setting` or `dataset`"
        )
    first, second = named
    dataset = runs[0].identity.dataset
    predictions = aligned({name: run.predictions for name, run in named.items()}, dataset=dataset)
    reference = predictions[first]
    units = SamplingUnits.of(reference)
    design = sampling_design(len(reference), clusters=units.group_of)
    metrics = {name: _metric(predictions[name], settings.metric) for name in named}
    found = left_out_table(predictions, [settings.metric], units)[settings.metric]
    freedom = float(pair_errors(found)[2][0, 1])
    unseen = float(SHARE_OF_UNSEEN * found.unseen_variance.sum()) ** 0.5
    try:
        estimate = power_from_predictions(
            metrics[first],
            metrics[second],
            design,
            delta=settings.delta,
            alpha=settings.alpha,
            power=settings.power,
            n_resamples=settings.n_bootstrap or 4000,
            seed=settings.seed,
            unseen=unseen,
            test_freedom=freedom if math.isfinite(freedom) else math.inf,
        )
    except ValueError as error:
        raise HistobenchError(f"{first} and {second} on {dataset}: {error}") from error
    right = [run.predicted == run.labels for run in predictions.values()]
    discordant = float(np.mean(right[0] != right[1]))
    return PowerAnalysis(
        dataset=dataset,
        first=first,
        second=second,
        metric=settings.metric,
        delta=settings.delta,
        power=settings.power,
        alpha=settings.alpha,
        unit="groups" if design.is_clustered else "images",
        estimate=estimate,
        discordant=discordant,
    )


def _metric(predictions: Predictions, metric: str) -> Metric:
    evaluate = one_metric({"": predictions}, metric)

    def value(counts: NDArray[np.int32]) -> NDArray[np.float64]:
        return evaluate(counts)[""]

    return value


def in_words(plan: PowerAnalysis) -> str:
    """The plan as a few sentences."""
    estimate = plan.estimate
    per_group = (
        "" if plan.unit == "images" else f" (about {estimate.samples_needed:,} images at the present size)"
    )
    how = "simulated test sets" if estimate.simulated else "the normal formula"
    lines = [
        f"{plan.dataset or 'results'}: {plan.metric}, {plan.first} against {plan.second}",
        f"  to see a difference of {plan.delta:g} with power {plan.power:g} (two-sided, "
        f"alpha {plan.alpha:g}):",
        f"  {estimate.units_needed:,} test {plan.unit}{per_group}, by {how}; "
        f"the normal formula says {estimate.units_needed_normal:,}",
        f"  the noise is known from {estimate.present_units:,} {plan.unit} only: it may take "
        f"{estimate.units_low:,} to {estimate.units_high:,} (80% range). "
        f"{estimate.units_at_pilot:,} would do if it were known exactly; as it is, they show the "
        f"difference with power {estimate.assurance_at_pilot:.2f} on average",
    ]
    lines += [
        f"  the present {estimate.present_units:,} {plan.unit} show it with power "
        f"{estimate.present_power:.2f}, and differences from {estimate.detectable:.4f} on with power "
        f"{plan.power:g}",
        f"  stored difference: {estimate.observed:+.4f} (standard error {estimate.standard_error:.4f}); "
        f"exactly one of the two is right on {100 * plan.discordant:.1f}% of the images",
    ]
    return "\n".join(lines)
