"""How large the next test set must be: power from two stored runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.left_out_table import left_out_table
from histobench.roi.comparison.metric_intervals import one_metric
from histobench.roi.comparison.sampling_units import SamplingUnits, aligned
from histobench.roi.comparison.selection import by_dataset, distinct_names, select_runs
from histobench.roi.result_options import PowerOptions, PowerSettings
from histobench.roi.results.reader import load_runs
from histobench.roi.results.stored_run import StoredRun
from histobench.statistics.jackknife import SHARE_OF_UNSEEN, pair_errors
from histobench.statistics.power import PowerEstimate, power_from_predictions
from histobench.statistics.resampling import sampling_design


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
    units = SamplingUnits.of(predictions[first])
    design = sampling_design(len(units.labels), clusters=units.group_of)
    found = left_out_table(predictions, [settings.metric], units)[settings.metric]
    freedom = float(pair_errors(found)[2][0, 1])
    try:
        estimate = power_from_predictions(
            one_metric(predictions[first], settings.metric),
            one_metric(predictions[second], settings.metric),
            design,
            delta=settings.delta,
            alpha=settings.alpha,
            power=settings.power,
            n_resamples=settings.n_bootstrap or 4000,
            seed=settings.seed,
            unseen=float(SHARE_OF_UNSEEN * found.unseen_variance.sum()) ** 0.5,
            test_freedom=freedom if math.isfinite(freedom) else math.inf,
        )
    except ValueError as error:
        raise HistobenchError(f"{first} and {second} on {dataset}: {error}") from error
    right, other = (run.predicted == run.labels for run in predictions.values())
    discordant = float(np.mean(right != other))
    unit = "groups" if design.is_clustered else "images"
    asked = settings.metric, settings.delta, settings.power, settings.alpha
    return PowerAnalysis(dataset, first, second, *asked, unit, estimate, discordant)


def in_words(plan: PowerAnalysis) -> list[str]:
    """The size to plan with comes first; what else is known stands below."""
    estimate, unit = plan.estimate, plan.unit
    images = f" (about {estimate.samples_needed:,} images)" if unit == "groups" else ""
    return [
        f"{plan.dataset or 'results'}: {plan.metric}, {plan.first} against {plan.second}",
        f"Plan {estimate.units_needed:,} test {unit}{images} to show a difference of {plan.delta:g} with "
        f"power {plan.power:g} (two-sided, alpha {plan.alpha:g}).",
        f"The noise is estimated from {estimate.present_units:,} {unit}: the size truly needed is between "
        f"{estimate.units_low:,} and {estimate.units_high:,} {unit} (80% range).",
        f"The present {estimate.present_units:,} {unit} show this difference with power "
        f"{estimate.present_power:.2f}; with power {plan.power:g} they show a difference of "
        f"{estimate.detectable:.3f}.",
        f"Measured difference: {estimate.observed:+.4f} (standard error {estimate.standard_error:.4f}); "
        f"exactly one of the two is right on {100 * plan.discordant:.1f}% of the images.",
    ]
