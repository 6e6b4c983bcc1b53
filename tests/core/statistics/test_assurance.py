"""Plans from small pilots keep what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from histobench.statistics.power import Pilot, assurance, planned_units, t_power


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


def test_a_large_pilot_leaves_nothing_open() -> None:
    plan = planned_units(Pilot(0.01, 5000, 4999.0), 0.02)
    assert plan.assured == pytest.approx(plan.at_pilot, rel=0.01)
    assert plan.high == pytest.approx(plan.low, rel=0.1)


def test_a_pilot_that_shows_no_noise_plans_nothing() -> None:
    for pilot in (Pilot(0.1, 1, 0.0), Pilot(0.0, 9, 8.0)):
        with pytest.raises(ValueError, match="at least two units"):
            planned_units(pilot, 0.1)
