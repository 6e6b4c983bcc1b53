"""Units of unequal size are worth fewer units of equal size."""

from __future__ import annotations

import numpy as np
import pytest

from histobench.statistics.power import effective_freedom, effective_number
from histobench.statistics.resampling import design_for_labels, sampling_design


def test_units_of_one_size_count_fully() -> None:
    labels = np.repeat([0, 1], [30, 12])
    by_image = sampling_design(42, strata=labels)
    assert effective_freedom(by_image) == pytest.approx(by_image.degrees_of_freedom)
    patients = sampling_design(40, clusters=np.repeat(np.arange(8), 5))
    assert effective_freedom(patients) == pytest.approx(7)


def test_one_patient_with_almost_all_images_is_worth_about_one() -> None:
    assert effective_number([1000, 1, 1, 1, 1]) == pytest.approx(1004**2 / (1000**2 + 4))
    design = sampling_design(1004, clusters=np.repeat(np.arange(5), [1000, 1, 1, 1, 1]))
    assert effective_freedom(design) < 0.1


def test_a_rare_class_in_few_patients_limits_what_a_class_average_is_worth() -> None:
    patients = np.repeat(np.arange(20), 10)
    labels = np.zeros(200, dtype=int)
    labels[[0, 10, 20]] = 1  # three of twenty patients have one image of the rare class each
    design = design_for_labels(labels, patients.tolist())
    assert effective_freedom(design) == pytest.approx(19)
    assert 2 <= effective_freedom(design, labels) < 4


def test_the_spread_over_unequal_patients_follows_the_effective_number() -> None:
    """The coefficient of variation of a variance is sqrt(2 / freedom): measured on simulated patients."""
    generator = np.random.default_rng(0)
    sizes = np.array([200, 40, 40, 30, 20, 20, 10, 10, 10, 5])
    design = sampling_design(int(sizes.sum()), clusters=np.repeat(np.arange(10), sizes))
    # Independent images: a patient's total has a variance proportional to its size.
    totals = generator.normal(0, np.sqrt(sizes), (20_000, 10))
    variances = (totals**2).sum(axis=1)
    freedom = 2 * variances.mean() ** 2 / variances.var()
    assert effective_freedom(design) + 1 == pytest.approx(freedom, rel=0.05)
