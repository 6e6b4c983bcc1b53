"""The report's numbers are those of `histobench compare`; where they cannot be, it says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

import histobench as hb
from comparison_runs import write_to
from histobench.cli.main import main
from histobench.report.table import TableJob, _columns, build_table
from histobench.roi.comparison.comparison import compare_runs
from histobench.roi.comparison.selection import distinct_names, select_runs
from histobench.roi.comparison.table_statistics import Pairs, table_statistics
from histobench.roi.predictions import Predictions
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.reader import load_runs
from report.site_data import unpacked


def named_pairs(pairs: Pairs) -> list[tuple[str, str]]:
    return [(pairs.names[i], pairs.names[j]) for i, j in zip(*pairs.places, strict=True)]


@pytest.fixture
def runs(simulated: ModuleType) -> dict[str, Predictions]:
    data = simulated.SimulatedSet.of_size("d", 150, classes=("a", "b", "c"))
    skills = {"good": 2.6, "alike": 2.55, "weak": 0.8}
    return {
        name: simulated.simulated_predictions(data, skill=skill, sharpness=1, seed=k)
        for k, (name, skill) in enumerate(skills.items())
    }


@pytest.mark.parametrize("metric", ["balanced_accuracy", "f1_score", "auroc"])
def test_the_numbers_of_the_report_are_those_of_compare(results: Path, metric: str) -> None:
    chosen = select_runs(load_runs(results), task="KNN", dataset="clinic")
    table = compare_runs(chosen, CompareSettings(metric=metric)).tables[0]
    named = {name: run.predictions for name, run in distinct_names(chosen).items()}
    found = table_statistics(named)
    statistics = found.metrics[metric]
    assert statistics.test == "max-t"
    assert list(statistics.order) == [entry.name for entry in table.entries]
    assert [statistics.intervals[entry.name] for entry in table.entries] == [
        e.interval for e in table.entries
    ]
    pairs = statistics.pairs
    assert named_pairs(pairs) == [(pair.first, pair.second) for pair in table.pairs]
    assert pairs.holds.tolist() == [pair.holds for pair in table.pairs]
    assert pairs.difference.tolist() == [pair.difference for pair in table.pairs]
    assert pairs.p_value.tolist() == pytest.approx([pair.p_value for pair in table.pairs])
    assert pairs.p_adjusted.tolist() == pytest.approx([pair.p_simultaneous for pair in table.pairs])
    assert pairs.low.tolist() == pytest.approx([pair.simultaneous.low for pair in table.pairs])
    assert statistics.standings is not None
    assert statistics.standings.ranks == table.standings.ranks
    assert statistics.standings.best == table.standings.best
    assert statistics.standings.winner == table.standings.winner


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["clinic", "tissue"])
def test_one_rule_decides_in_the_report_in_compare_and_in_python(
    results: Path, tmp_path: Path, dataset: str
) -> None:
    """A difference holds where the interval that holds for all pairs at once excludes 0."""
    chosen = distinct_names(select_runs(load_runs(results), task="KNN", dataset=dataset))
    shown = table_statistics({name: run.predictions for name, run in chosen.items()}).metrics["accuracy"]
    expected = dict(zip(named_pairs(shown.pairs), shown.pairs.holds.tolist(), strict=True))
    assert expected == {
        pair: not low <= 0 <= high
        for pair, low, high in zip(named_pairs(shown.pairs), shown.pairs.low, shown.pairs.high, strict=True)
    }
    frame = hb.open_results(results).compare(metric="accuracy", task="KNN", dataset=dataset).to_frame()
    assert (
        dict(zip(zip(frame["first"], frame["second"], strict=True), frame["holds"], strict=True)) == expected
    )
    assert (frame["holds"] == (frame["p (max-t)"] < 0.05)).all()
    assert frame["p (max-t)"].tolist() == pytest.approx(shown.pairs.p_adjusted.tolist())
    (table,) = compare_runs(list(chosen.values()), CompareSettings(metric="accuracy")).tables
    for row, pair in zip(frame.to_dict("records"), table.pairs, strict=True):
        alone = [pair.interval.low, pair.interval.high, pair.p_value, pair.p_adjusted]
        assert [row[name] for name in ("low", "high", "p", "p (Holm)")] == pytest.approx(alone)
    command = ["compare", str(results), "--metric", "accuracy", "--task", "KNN", "--dataset", dataset]
    assert main([*command, "-o", str(tmp_path)]) == 0
    written = json.loads(next(tmp_path.glob("*.json")).read_text())["datasets"][0]
    assert {(pair["first"], pair["second"]): pair["holds"] for pair in written["pairs"]} == expected
    assert written["correction"].startswith("max-t")
    best = shown.order[0]
    assert shown.standings is not None
    for name in shown.order[1:]:
        assert shown.standing(name) == ("behind" if expected[best, name] else "tie")
        low, high = shown.standings.ranks[name]
        better = sum(held for (_, second), held in expected.items() if second == name)
        worse = sum(held for (first, _), held in expected.items() if first == name)
        assert (low, high) == (1 + better, len(shown.order) - worse)


def test_too_few_groups_and_episodes_alone_decide_nothing_anywhere(
    simulated: ModuleType, tmp_path: Path
) -> None:
    data = simulated.SimulatedSet.of_size("d", 120, classes=("a", "b", "c"), patients=4)
    simulated.write_folder(
        tmp_path, encoders={"good": 4.0, "weak": 0.2}, sets=[data], tasks=["KNN", "Few-shot"]
    )
    for task in ("KNN", "Few-shot"):
        chosen = distinct_names(select_runs(load_runs(tmp_path), task=task))
        found = table_statistics({name: run.predictions for name, run in chosen.items()}, chosen)
        assert {found.metrics["accuracy"].standing(name) for name in chosen} == {"untested"}
        (table,) = compare_runs(list(chosen.values()), CompareSettings("accuracy")).tables
        (pair,) = table.pairs
        assert (pair.holds, pair.simultaneous.low, pair.interval.low) == (False, None, None)
        assert np.isnan(pair.p_value)
        assert table.standings is None
        assert any("are not tested" in note or "nothing is tested" in note for note in table.notes)


def test_who_stands_how(runs: dict[str, Predictions]) -> None:
    statistics = table_statistics(runs).metrics["accuracy"]
    standings = {name: statistics.standing(name) for name in runs}
    assert standings["weak"] == "behind"
    assert sorted(standings[name] for name in ("good", "alike")) == ["best", "tie"]


@pytest.mark.slow
def test_equal_encoders_in_many_are_not_told_apart_by_a_test_of_something_else(simulated: ModuleType) -> None:
    # Ten runs of one skill: a test of accuracy must not decide about the balanced accuracy of rare classes.
    data = simulated.SimulatedSet.of_size("d", 400, classes=("a", "b", "c"))
    runs = {f"e{k}": simulated.simulated_predictions(data, skill=1.5, sharpness=1, seed=k) for k in range(10)}
    found = table_statistics(runs)
    statistics = found.metrics["balanced_accuracy"]
    assert statistics.test == "max-t"
    assert not statistics.pairs.holds.any()
    holm = multipletests(statistics.pairs.p_value, method="holm")[1]
    assert (statistics.pairs.p_adjusted <= holm + 1e-9).all()
    assert statistics.standings is not None
    assert set(statistics.standings.ranks.values()) == {(1, 10)}


def test_too_few_groups_mark_no_ties(runs: dict[str, Predictions]) -> None:
    grouped = {
        name: replace(run, groups=tuple(f"p{k % 3}" for k in range(len(run)))) for name, run in runs.items()
    }
    found = table_statistics(grouped)
    assert found.n_groups == 3
    statistics = found.metrics["accuracy"]
    assert statistics.test == ""
    assert statistics.note.startswith("too few groups: 3 (an interval needs 5)")
    assert {statistics.standing(name) for name in grouped} == {"untested"}


def test_runs_on_other_images_are_not_compared(runs: dict[str, Predictions]) -> None:
    runs["weak"] = replace(runs["weak"], img_names=tuple(f"other-{k}" for k in range(150)))
    found = table_statistics(runs)
    assert "different images" in found.problem
    assert found.metrics == {}


def test_probabilities_that_miss_a_class_have_no_auroc(runs: dict[str, Predictions]) -> None:
    probabilities = runs["weak"].probabilities.copy()
    probabilities[:, 2] = np.nan
    runs["weak"] = replace(runs["weak"], probabilities=probabilities)
    statistics = table_statistics(runs).metrics["auroc"]
    assert statistics.intervals["weak"].low is None
    assert set(statistics.pairs.names) == {"good", "alike"}


def test_one_run_alone_has_intervals_and_no_ties(runs: dict[str, Predictions]) -> None:
    statistics = table_statistics({"good": runs["good"]}).metrics["accuracy"]
    low, high = statistics.intervals["good"].low, statistics.intervals["good"].high
    assert low is not None
    assert high is not None
    assert low < high
    assert statistics.standing("good") == "untested"


def test_each_column_of_a_page_is_the_statistic_of_its_name(runs: dict[str, Predictions]) -> None:
    pairs = table_statistics(runs).metrics["accuracy"].pairs
    page = {
        name: unpacked(value) for name, value in _columns(pairs, {"good": 7, "alike": 3, "weak": 5}).items()
    }
    numbers = {"good": 7, "alike": 3, "weak": 5}
    expected = {
        "first": [numbers[pairs.names[place]] for place in pairs.places[0]],
        "second": [numbers[pairs.names[place]] for place in pairs.places[1]],
        "difference": pairs.difference,
        "low": pairs.low,
        "high": pairs.high,
        "p": pairs.p_value,
        "corrected": pairs.p_adjusted,
        "holds": pairs.holds,
    }
    assert page.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(page[name], np.asarray(values, dtype=float), rtol=1e-5, err_msg=name)
    assert (page["p"] < page["corrected"]).any()
    right = {name: (run.predicted == run.labels).mean() for name, run in runs.items()}
    for pair, difference in zip(named_pairs(pairs), page["difference"], strict=True):
        assert difference == pytest.approx(right[pair[0]] - right[pair[1]], abs=1e-6)
    assert (page["low"] < page["difference"]).all()
    assert (page["difference"] < page["high"]).all()


def test_an_image_is_worth_showing_if_any_run_gets_it_wrong(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = write_to(tmp_path, name, dataset="d", test_set=1)
    runs = {number: (run.identity.encoder, run) for number, run in enumerate(load_runs(folder))}
    (found,) = build_table(TableJob(0, "d", 0, runs, tmp_path / "site", tmp_path)).image_sets.values()
    wrong = [run.predictions.predicted != run.predictions.labels for _, run in runs.values()]
    assert (wrong[0] & ~wrong[1]).any()
    assert (wrong[1] & ~wrong[0]).any()
    np.testing.assert_array_equal(found.wrong, wrong[0] | wrong[1])
