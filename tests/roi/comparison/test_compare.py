"""`histobench compare`: ranking, claims, refusals and files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from comparison_runs import Write, simulated_predictions
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.comparison import Comparison, compare_runs
from histobench.roi.comparison.sampling_units import taken
from histobench.roi.comparison.selection import distinct_names
from histobench.roi.predictions import Predictions
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.reader import load_runs


def compare(results: Path, **settings: object) -> Comparison:
    return compare_runs(load_runs(results), CompareSettings(**settings))  # type: ignore[arg-type]


@pytest.fixture
def three(write_run: Write) -> Path:
    """Two good encoders that cannot be told apart, and a bad one."""
    write_run("good", 2.0)
    write_run("also_good", 2.0)
    return write_run("bad", 0.3)


def test_a_perfect_score_and_equal_encoders_leave_room_for_what_was_not_seen(write_run: Write) -> None:
    good = simulated_predictions(signal=1.5)
    perfect = replace(good, probabilities=np.eye(3)[good.labels], predicted=good.labels)
    write_run("perfect", predictions=perfect, groups=False)
    write_run("again", predictions=perfect, groups=False)
    (table,) = compare(write_run("good", predictions=good, groups=False), metric="accuracy").tables
    assert [entry.rank for entry in table.entries] == [1, 1, 3]
    assert table.entries[0].interval.high == 1
    assert table.entries[0].interval.low == pytest.approx(150 / (150 + 1.96**2), abs=2e-3)
    bound = stats.binomtest(0, 150).proportion_ci(method="exact").high
    same = table.pair("perfect", "again")
    assert same is not None
    assert same.p_adjusted == 1
    # A standard error of three eighths of an image where no image differs.
    assert same.interval.high == pytest.approx(stats.t.ppf(0.975, 149) * 0.375 / 150)
    assert same.interval.low == -same.interval.high
    assert same.interval.high < bound


def test_groups_known_to_one_run_serve_all(write_run: Write) -> None:
    write_run("a", groups=False)
    (table,) = compare(write_run("b", groups=True)).tables
    assert table.n_groups == 30
    assert table.resampled == "groups (patients or slides)"


def change_first_label(predictions: Predictions) -> Predictions:
    labels = predictions.labels.copy()
    labels[0] = (labels[0] + 1) % 3
    return replace(predictions, labels=labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p: taken(p, np.arange(140)),
            r"different images of Colon: 150 and 140, 10 only for a \(such as tile_0_0140.png\)",
        ),
        (change_first_label, r"the true labels of 1 test images of Colon differ, such as tile_0_0000.png: "),
        (lambda p: replace(p, classes=("TUM", "STR", "ADI")), "their class maps differ"),
        (
            lambda p: replace(p, img_names=tuple(f"x{name}" for name in p.img_names)),
            r"150 only for a \(such as tile_0_0000.png\) and 150 only for b \(such as xtile_0_0000.png\)",
        ),
        (lambda p: replace(p, groups=("one",) * 75 + ("two",) * 75), r"the groups \(patients or slides\)"),
    ],
)
def test_runs_on_different_test_images_are_refused_with_what_differs(
    change: Callable[[Predictions], Predictions], message: str, write_run: Write
) -> None:
    predictions = simulated_predictions(signal=1.0, groups=True)
    write_run("a", predictions=predictions)
    results = write_run("b", predictions=change(predictions))
    with pytest.raises(HistobenchError, match=r"cannot compare a with b: .*" + message):
        compare(results)


def test_a_metric_that_one_run_lacks_leaves_it_at_the_end(write_run: Write) -> None:
    predictions = simulated_predictions(signal=1.0)
    uncovered = predictions.probabilities.copy()
    uncovered[:, 2] = np.nan
    write_run("whole", predictions=predictions)
    results = write_run("other", 0.9)
    runs = load_runs(results)
    runs[0].__dict__["predictions"] = replace(runs[0].predictions, probabilities=uncovered)
    (table,) = compare_runs(runs, CompareSettings("auroc")).tables
    assert [(entry.name, entry.rank) for entry in table.entries] == [("whole", 1), ("other", None)]
    assert table.pairs == ()
    assert table.notes == ("the metric has no value for other",)


@pytest.fixture
def many_datasets(write_run: Write) -> Path:
    for k, dataset in enumerate(("Colon", "Breast", "Lung", "Skin", "Liver", "Brain")):
        for encoder, signal in (("strong", 2.5), ("middle", 1.2), ("weak", 0.3)):
            write_run(encoder, signal, dataset=dataset, test_set=k)
    return write_run("extra", 2.0, dataset="Colon", test_set=0)


@pytest.mark.slow
def test_all_four_forms_are_written_and_agree(
    many_datasets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = many_datasets / "tables"
    assert main(["compare", str(many_datasets), "-o", str(output)]) == 0
    stem = "comparison_Linear-Probe_balanced_accuracy"
    rows = list(csv.DictReader((output / f"{stem}.csv").read_text().splitlines()))
    first = next(row for row in rows if row["dataset"] == "Colon" and row["rank"] == "1")
    text = (output / f"{stem}.md").read_text()
    assert f"| 1 | {first['encoder']} | {float(first['value']):.4f} [" in text
    assert r"\toprule" in (output / f"{stem}.tex").read_text()
    printed = capsys.readouterr().out
    assert "Friedman chi2 = 12.00" in printed
    assert "* may be the best" in printed


def test_what_is_said_of_the_table_holds_for_all_encoders_at_once(three: Path) -> None:
    """Against plain loops: leave out an image at a time, add up squares, take Student's t."""
    (table,) = compare(three).tables
    standings = table.standings
    assert standings is not None
    best, second, last = (entry.name for entry in table.entries)
    runs = {run.identity.encoder: run.predictions for run in load_runs(three)}
    labels = runs[best].labels
    order = {name: k for k, name in enumerate(runs[best].img_names)}
    right = {
        name: (run.predicted == run.labels)[np.argsort([order[image] for image in run.img_names])]
        for name, run in runs.items()
    }
    differences = right[best].astype(float) - right[last]
    without = []
    for image in range(len(labels)):
        kept = np.arange(len(labels)) != image
        without.append(np.mean([differences[kept & (labels == k)].mean() for k in range(3)]))
    variance = (len(labels) - 1) * np.var(without)
    pair = table.pair(best, last)
    assert pair is not None
    half = (pair.simultaneous.high - pair.simultaneous.low) / 2
    own = (pair.interval.high - pair.interval.low) / 2
    assert own == pytest.approx(stats.t.ppf(0.975, 149) * variance**0.5, rel=0.02)
    assert half > own
    assert pair.holds == (pair.simultaneous.low > 0) == (pair.p_simultaneous < 0.05)
    assert standings.ranks == {best: (1, 2), second: (1, 2), last: (3, 3)}
    assert standings.best == tuple(name for name in runs if name != last)
    assert standings.winner.name == best
    assert standings.winner.value < standings.winner.measured == table.entries[0].value
    assert standings.winner.interval.low < table.entries[0].interval.low


@pytest.mark.slow
def test_a_dataset_that_hardly_anybody_was_run_on_does_not_empty_the_ranking(
    many_datasets: Path, write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run("weak", 0.5, dataset="Kidney", test_set=9)
    ranking = compare(many_datasets).ranking
    assert ranking is not None
    assert ranking.names == ("strong", "middle", "weak")
    assert ranking.left_out_datasets == ("Kidney",)
    assert (ranking.left_out, ranking.groups) == (("extra",), (("strong", "middle"), ("middle", "weak")))
    assert dict(ranking.run_on) == {"strong": 6, "middle": 6, "weak": 7, "extra": 1}
    assert main(["compare", str(many_datasets)]) == 0
    said = capsys.readouterr().out
    assert "on 1 of 7" in said
    assert "too few encoders were run on them: Kidney" in said


def test_few_shot_values_are_those_of_the_stored_predictions_and_this_is_said(write_run: Write) -> None:
    results = write_run("a", task="Few-shot", setting="3way_4shot")
    (path,) = results.rglob("*_complete_results.json")
    stored = json.loads(path.read_text())
    stored["metrics"]["balanced_accuracy"] = 0.123
    path.write_text(json.dumps(stored))
    (table,) = compare(results).tables
    assert table.entries[0].reported == 0.123
    assert "mean probabilities over episodes" in table.notes[0]


def test_runs_of_one_encoder_are_told_apart_by_what_differs(write_run: Write) -> None:
    write_run("a", folder="one")
    write_run("a", preset="sklearn", folder="two")
    write_run("a", preset="sklearn", seed=3, folder="three")
    runs = load_runs(write_run("b", folder="four"))
    assert set(distinct_names(runs)) == {"a [uni]", "a [sklearn] [seed 0]", "a [sklearn] [seed 3]", "b"}
    again = load_runs(write_run("b", folder="five"))
    assert len(distinct_names(again)) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compare RESULTS --metric acuracy", "--metric: unknown metric 'acuracy'; did you mean accuracy"),
        ("compare RESULTS --encoders ,", "--encoders: empty"),
        ("power RESULTS --encoders good", "--encoders must name two encoders"),
        ("power RESULTS --encoders good,c", "no run of the encoder 'c'"),
        ("bootstrap nowhere", "no results folder at nowhere"),
        ("bootstrap RESULTS --random_state -1", "--seed: expected a whole number of at least 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: str, message: str, three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(three) if word == "RESULTS" else word for word in arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
