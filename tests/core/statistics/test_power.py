"""Sample sizes against closed forms, exact enumeration and simulated experiments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import NormalIndPower, TTestPower

from histobench.statistics.power import (
    Pilot,
    UnitNoise,
    assurance,
    planned_units,
    power_from_predictions,
    t_power,
    units_for_error,
)
from histobench.statistics.resampling import sampling_design


def mean_of(values: np.ndarray):
    return lambda counts: counts @ values / counts.sum(axis=1)


def test_units_for_error_is_statsmodels_one_sample_size() -> None:
    expected = NormalIndPower(ddof=0).solve_power(effect_size=0.04 / 0.2, alpha=0.05, power=0.8, ratio=0)
    assert units_for_error(0.02, 100, 0.04) == math.ceil(expected)


@pytest.mark.slow
def test_what_the_test_adds_asks_for_more_units() -> None:
    generator = np.random.default_rng(1)
    first = (generator.random(200) < 0.8).astype(float)
    second = np.where(generator.random(200) < 0.15, 1 - first, first)
    settings = {"delta": 0.1, "n_resamples": 2000, "seed": 2}
    plain, wide, few = (
        power_from_predictions(mean_of(first), mean_of(second), sampling_design(200), **settings, **more)
        for more in ({}, {"unseen": 0.03}, {"test_freedom": 8.0})
    )
    assert plain.units_low < plain.units_at_pilot < plain.units_high
    for estimate in (wide, few):
        assert estimate.units_needed > 1.03 * plain.units_needed
        assert estimate.present_power < plain.present_power
        assert estimate.detectable > plain.detectable


def test_what_was_not_seen_shrinks_faster_than_the_standard_error() -> None:
    plain, wide = Pilot(0.05, 200, 199.0), Pilot(0.05, 200, 199.0, unseen=0.1)
    for units, wider in ((200, 5**0.5), (800, 2**0.5), (80_000, 1.01**0.5)):
        spread = [pilot.reach_at(units, 0.05, 0.05) for pilot in (wide, plain)]
        assert spread[0] / spread[1] == pytest.approx(wider)


@pytest.mark.slow
def test_present_power_and_detectable_difference_fit_together() -> None:
    generator = np.random.default_rng(3)
    first, second = generator.random((2, 300))
    metrics = mean_of(first), mean_of(second)
    design = sampling_design(300)
    detectable = power_from_predictions(*metrics, design, delta=0.05, n_resamples=2000).detectable
    again = power_from_predictions(*metrics, design, delta=detectable, n_resamples=2000)
    assert again.present_power == pytest.approx(0.8, abs=0.03)
    assert again.units_needed == pytest.approx(300, rel=0.08)


@pytest.mark.slow
def test_dependent_images_need_more_patients_than_independent_ones() -> None:
    generator = np.random.default_rng(4)
    patients = np.repeat(np.arange(80), 5)
    taste = generator.normal(0, 0.2, 80)[patients]
    first = (generator.random(400) < np.clip(0.7 + taste, 0, 1)).astype(float)
    second = (generator.random(400) < np.clip(0.7 - taste, 0, 1)).astype(float)
    settings = {"delta": 0.05, "n_resamples": 1000}
    by_patient = power_from_predictions(
        mean_of(first), mean_of(second), sampling_design(400, clusters=patients), **settings
    )
    by_image = power_from_predictions(mean_of(first), mean_of(second), sampling_design(400), **settings)
    assert by_patient.present_units == 80
    assert by_patient.samples_needed == by_patient.units_needed * 5
    assert by_patient.samples_needed > 1.3 * by_image.samples_needed


def test_the_noise_of_a_mean_is_that_of_its_units() -> None:
    first, second = np.random.default_rng(6).random((2, 40))
    found = UnitNoise.of(mean_of(first), mean_of(second), sampling_design(40))
    apart = first - second
    np.testing.assert_allclose(found.effects * (39 / 40) ** 0.5, apart - apart.mean())
    assert found.error == pytest.approx(apart.std(ddof=1) / 40**0.5)
    rare = np.r_[np.ones(3), np.zeros(37)]  # three units carry the noise
    carried = UnitNoise.of(mean_of(rare), mean_of(np.zeros(40)), sampling_design(40))
    assert carried.freedom < 8 < found.freedom


def test_models_that_never_differ_are_refused() -> None:
    same = mean_of(np.ones(10))
    with pytest.raises(ValueError, match="never differ"):
        power_from_predictions(same, same, sampling_design(10), delta=0.1)


@pytest.mark.parametrize(("units", "delta"), [(5, 1.2), (12, 0.5), (40, 0.4), (2000, 0.06)])
def test_power_is_that_of_the_t_test(units: int, delta: float) -> None:
    pilot = Pilot(1 / 10**0.5, 10, 9.0)  # each unit has a spread of 1
    expected = TTestPower().power(delta, units, 0.05)
    assert float(t_power(pilot, pilot.standard_error, units, delta)) == pytest.approx(expected, abs=0.002)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("units", [8, 12, 30])
def test_studies_planned_from_small_pilots_have_the_power_that_was_wanted(units: int) -> None:
    """Pilots are drawn, studies planned from each, and the true power of these studies averaged."""
    generator = np.random.default_rng(units)
    at_pilot, assured = [], []
    for _ in range(30):
        # Stratified draws of the pilot's variance: the average needs fewer of them.
        share = (len(assured) + generator.random()) / 30
        spread = float(np.sqrt(stats.chi2.ppf(share, units - 1) / (units - 1)))
        plan = planned_units(Pilot(spread / units**0.5, units, units - 1.0), 0.5)
        assert plan.low <= plan.at_pilot <= plan.assured <= plan.high
        at_pilot.append(TTestPower().power(0.5, plan.at_pilot, 0.05))
        assured.append(TTestPower().power(0.5, plan.assured, 0.05))
    assert np.mean(assured) == pytest.approx(0.8, abs=0.02)
    assert np.mean(at_pilot) < 0.79


def test_the_range_of_sizes_is_that_of_the_variance() -> None:
    pilot = Pilot(0.05, 20, 19.0)
    plan = planned_units(pilot, 0.01)
    low, high = 19 / stats.chi2.ppf([0.9, 0.1], 19)
    assert plan.low / plan.at_pilot == pytest.approx(low, rel=0.01)
    assert plan.high / plan.at_pilot == pytest.approx(high, rel=0.01)
    assert plan.assurance_at_pilot == pytest.approx(assurance(pilot, plan.at_pilot, 0.01))
