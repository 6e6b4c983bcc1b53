"""Properties of every table, and a short seeded simulation of what intervals and tests promise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import examples
from comparison_runs import pages_of_runs
from histobench.api.benchmark import open_results
from histobench.report.site import build_site
from histobench.roi.comparison.bootstrap_intervals import BootstrapSettings, bootstrap_runs
from histobench.roi.comparison.comparison import compare_runs
from histobench.roi.comparison.left_out_table import left_out_table
from histobench.roi.comparison.metric_intervals import range_of, run_metric_intervals
from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.comparison.table_statistics import MetricStatistics, metric_statistics
from histobench.roi.comparison.tidy_rows import read_rows, write_whole_table
from histobench.roi.predictions import Predictions
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.reader import load_runs
from histobench.statistics.jackknife import LeaveOneOut

METRICS = ("balanced_accuracy", "accuracy", "f1_score", "mcc", "auroc", "log_loss", "ece")


def table(
    predicted: np.ndarray, labels: np.ndarray, group: np.ndarray | None, *, sure: float = 0.9
) -> tuple[dict[str, Predictions], SamplingUnits]:
    """Runs of predicted classes [m, n]."""
    c = int(max(labels.max(), predicted.max())) + 1
    runs = {
        f"encoder {k}": Predictions(
            np.where(np.eye(c)[row] == 1, sure, (1 - sure) / max(c - 1, 1)),
            labels,
            row,
            tuple(f"class {j}" for j in range(c)),
            tuple(map(str, range(len(labels)))),
            None if group is None else tuple(map(str, group)),
        )
        for k, row in enumerate(predicted)
    }
    return runs, SamplingUnits.of(runs["encoder 0"])


def statistics_of(runs: dict[str, Predictions], units: SamplingUnits, metric: str) -> MetricStatistics:
    return metric_statistics(metric, left_out_table(runs, [metric], units)[metric], units)


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Predictions], SamplingUnits]:
    """Random test sets: perfect, identical and poor encoders, rare and missing classes, uneven groups."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    c, m = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    groups = draw(st.sampled_from([0, 3, 6, 12, 25]))
    if groups:
        uneven = draw(st.booleans())
        sizes = rng.geometric(0.15, groups) if uneven else np.full(groups, 6)
        group = np.repeat(np.arange(groups), sizes)
    else:
        group = np.arange(draw(st.integers(8, 80)))
    n = len(group)
    labels = rng.choice(c, n, p=rng.dirichlet(np.full(c, 2.0)))
    accuracy = draw(st.sampled_from([0.3, 0.8, 0.98, 1.0]))
    predicted = np.stack(
        [np.where(rng.random(n) < accuracy, labels, rng.integers(0, c, n)) for _ in range(m)]
    )
    if draw(st.booleans()):
        predicted[-1] = predicted[0]
    return table(predicted, labels, group if groups else None)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(tables(), st.sampled_from(METRICS))
def test_what_holds_for_every_table(made: tuple[dict[str, Predictions], SamplingUnits], metric: str) -> None:
    runs, units = made
    found = statistics_of(runs, units, metric)
    least, most = range_of(metric, units.n_columns)
    for interval in found.intervals.values():
        if interval.low is None or interval.high is None:
            assert interval.reason
            continue
        assert least - 1e-9 <= interval.low < interval.high <= most + 1e-9
    pairs = found.pairs
    if not found.test:
        assert np.isnan(pairs.low).all()
        assert np.isnan(pairs.p_value).all()
        assert found.standings is None
        return
    known = np.isfinite(pairs.p_adjusted)
    assert (known == np.isfinite(pairs.low)).all()
    excludes = (pairs.low > 0) | (pairs.high < 0)
    assert (excludes[known] == (pairs.p_adjusted[known] < 0.05)).all()
    own = (pairs.own_low > 0) | (pairs.own_high < 0)
    assert (own[known] == (pairs.p_value[known] < 0.05)).all()
    for low, high in ((pairs.low, pairs.high), (pairs.own_low, pairs.own_high)):
        assert (low[known] >= least - most - 1e-9).all()
        assert (high[known] <= most - least + 1e-9).all()
        assert (low[known] <= high[known]).all()
    assert found.standings is not None
    leader, *others = pairs.names
    tied = {leader, *(name for name, apart in zip(others, excludes, strict=False) if not apart)}
    assert set(found.standings.best) == tied
    winner = found.standings.winner.interval
    if winner.low is not None and winner.high is not None:
        assert least - 1e-9 <= winner.low < winner.high <= most + 1e-9
        single = found.intervals[found.standings.winner.name]
        assert single.low is not None
        assert winner.low <= single.low + 1e-9


def test_a_rare_class_without_a_mistake_keeps_its_own_doubt() -> None:
    """More groups must not make a balanced accuracy surer than the recall of a class allows."""
    y = np.tile([0] * 22 + [1] * 3, 12)
    h = y.copy()
    h[[0, 130, 255]] = 1
    for group in (np.repeat(np.arange(12), 25), None):
        runs, _ = table(h[None], y, group)
        values, found = run_metric_intervals(runs["encoder 0"])
        for metric in ("balanced_accuracy", "macro_recall"):
            low, rare = found[metric].low, found["recall@1"].low
            assert low is not None
            assert rare is not None
            assert low <= values[metric] - (values["recall@1"] - rare) / 3
        f1 = found["f1_score"].low
        assert f1 is not None
        assert f1 < 0.95


def test_rounding_is_not_taken_for_spread() -> None:
    """Six patients, `a` always right, `b` wrong on two of ten of each: a difference without any spread."""
    y, group = np.tile([0, 1], 30), np.repeat(np.arange(6), 10)
    wrong = y.copy()
    wrong[np.arange(60) % 10 < 2] ^= 1
    runs, units = table(np.stack([y, wrong]), y, group)
    for metric in ("accuracy", "balanced_accuracy", "auroc"):
        pairs = statistics_of(runs, units, metric).pairs
        assert pairs.p_value[0] < 0.05
        assert pairs.high[0] - pairs.low[0] > 0.01
    rows = np.array([[1, 0.8]] * 3 + [[1, 0.8 + 1e-16]] * 3)
    found = LeaveOneOut(("a", "b"), np.array([1, 0.8]), rows)
    assert found.variance.tolist() == [0, 0]


def test_one_group_with_nearly_all_images_gives_no_interval_and_the_reason() -> None:
    group = np.r_[np.zeros(115, dtype=int), np.arange(1, 6)]
    y = np.arange(120) % 2
    other = y.copy()
    other[::20] ^= 1
    runs, units = table(np.stack([y, other]), y, group)
    for metric in ("accuracy", "balanced_accuracy"):
        found = statistics_of(runs, units, metric)
        assert not found.test
        assert "96% of the images" in found.note
        assert all(interval.low is None for interval in found.intervals.values())


@pytest.mark.slow
@pytest.mark.parametrize("groups", [True, False])
def test_every_surface_shows_the_same_interval(
    write_run: Callable[..., Path], tmp_path: Path, groups: bool
) -> None:
    write_run("good", 2.0, groups=groups)
    results = write_run("poor", 0.5, groups=groups)
    list(bootstrap_runs(load_runs(results), BootstrapSettings(n_bootstrap=20)))  # nobody is to show these
    (table_of,) = compare_runs(load_runs(results), CompareSettings("balanced_accuracy")).tables
    python = open_results(results).to_frame().query("metric == 'balanced_accuracy'").set_index("encoder")
    parquet = {
        row["encoder"]: row
        for row in read_rows(write_whole_table(results))
        if row["metric"] == "balanced_accuracy"
    }
    pages = pages_of_runs(build_site(results, tmp_path / "site"))
    on_pages = sorted(page["bounds"]["balanced_accuracy"] for page in pages)
    for entry in table_of.entries:
        both = pytest.approx((entry.interval.low, entry.interval.high), rel=0, abs=1e-12)
        assert (python.loc[entry.name, "low"], python.loc[entry.name, "high"]) == both
        assert (parquet[entry.name]["low"], parquet[entry.name]["high"]) == both
        (path,) = (results / f"Colon_{entry.name}").rglob("*_intervals.json")
        stored = json.loads(path.read_text())["metrics"]["balanced_accuracy"]
        assert (stored["ci_lower"], stored["ci_upper"]) == both
        assert any(
            tuple(bounds) == pytest.approx((entry.interval.low, entry.interval.high), abs=1e-4)
            for bounds in on_pages
        )
