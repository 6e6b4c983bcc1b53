"""A short seeded simulation guards what the default intervals and tests promise (docs/statistics.md)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    """`benchmarks/coverage.py`."""
    sys.path.insert(0, str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("coverage_of_intervals", BENCHMARKS / "coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(BENCHMARKS))
    return module


@pytest.mark.parametrize(
    ("situation", "least"),
    [
        ("12 patients, 2 classes 10:1", 0.89),
        ("5 patients, 2 classes", 0.85),
        ("50 images, 2 classes 10:1", 0.88),
    ],
)
def test_intervals_hold_the_truth_as_often_as_they_say(
    simulation: ModuleType, situation: str, least: float
) -> None:
    found = simulation.coverage(simulation.SITUATIONS[situation], 120, seed=3)
    for metric in simulation.SHOWN:
        share, made = found[metric]
        assert share >= least or made < 30, metric


def test_equal_encoders_over_few_patients_are_rarely_called_different(simulation: ModuleType) -> None:
    claims = simulation.false_claims(simulation.EQUAL[1], 300, seed=3)
    for metric in simulation.TESTED:
        assert claims[metric] < 0.09, metric
    assert claims["McNemar, images"] > 0.08  # what it would be to take images as independent
