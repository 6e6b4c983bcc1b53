"""Sample sizes against closed forms, exact enumeration and simulated experiments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from statsmodels.stats.power import NormalIndPower

from histobench.statistics.power import (
    UnitNoise,
    power_from_predictions,
    simulated_power,
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
    for estimate in (wide, few):
        assert estimate.units_needed > 1.03 * plain.units_needed
        assert estimate.present_power < plain.present_power
        assert estimate.detectable > plain.detectable


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


@pytest.mark.slow
def test_simulated_power_grows_with_size_from_alpha_to_one() -> None:
    generator = np.random.default_rng(5)
    first, second = generator.random((2, 200))
    noise = UnitNoise.of(mean_of(first), mean_of(second), sampling_design(200))
    powers = [simulated_power(noise, delta=0.06, n_units=n, n_resamples=2000) for n in (5, 50, 500, 5000)]
    assert powers == sorted(powers)
    assert powers[0] < 0.15
    assert powers[-1] > 0.999


def test_the_noise_of_a_mean_is_that_of_its_units() -> None:
    first, second = np.random.default_rng(6).random((2, 40))
    found = UnitNoise.of(mean_of(first), mean_of(second), sampling_design(40))
    apart = first - second
    np.testing.assert_allclose(found.effects * (39 / 40) ** 0.5, apart - apart.mean())
    assert found.error == pytest.approx(apart.std(ddof=1) / 40**0.5)
    rare = np.r_[np.ones(3), np.zeros(37)]  # three units carry the noise
    carried = UnitNoise.of(mean_of(rare), mean_of(np.zeros(40)), sampling_design(40))
    assert carried.freedom < 8 < found.freedom


def test_impossible_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="delta must be positive"):
        units_for_error(0.1, 10, 0.0)
    with pytest.raises(ValueError, match="alpha"):
        units_for_error(0.1, 10, 0.1, alpha=1.5)
    same = mean_of(np.ones(10))
    with pytest.raises(ValueError, match="never differ"):
        power_from_predictions(same, same, sampling_design(10), delta=0.1)
