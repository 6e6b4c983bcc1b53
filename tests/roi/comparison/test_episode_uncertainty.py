"""Means over episodes: both sources of chance count, and tables go by what is reported."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from comparison_runs import pages_of_runs
from histobench.api.benchmark import open_results
from histobench.core.errors import HistobenchError
from histobench.report.site import build_site
from histobench.roi.comparison.comparison import compare_runs
from histobench.roi.comparison.episode_intervals import (
    crossed_columns,
    known_metrics,
    left_out_values,
    too_few_episodes,
)
from histobench.roi.comparison.sampling_units import SamplingUnits, taken
from histobench.roi.comparison.selection import select_runs
from histobench.roi.comparison.stored_intervals import predictions_digest, write_default_intervals
from histobench.roi.comparison.tidy_rows import TIDY_FILE, read_rows, write_tidy_rows
from histobench.roi.comparison.unseen_moves import UnseenMoves
from histobench.roi.evaluation.context import TaskResult
from histobench.roi.metrics.batched import evaluate_episodes
from histobench.roi.predictions import Predictions
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.episode_predictions import EpisodePredictions, episode_file
from histobench.roi.results.layout import RunIdentity, TaskFiles
from histobench.roi.results.reader import load_runs
from histobench.roi.results.writer import write_episodes, write_task
from histobench.statistics.jackknife import LeaveOneOut


def simulated(
    seed: int = 0, *, n: int = 90, episodes: int = 12, patients: int = 9, sure: float = 0.5
) -> tuple[EpisodePredictions, list[str]]:
    """Votes of three classes: every image has its difficulty, every episode its luck."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    patient = np.arange(n) * patients // n
    hard = rng.normal(size=(n, 1)) + rng.normal(size=patients)[patient, None]
    luck = 0.7 * rng.normal(size=(1, episodes))
    right = hard + luck + rng.normal(size=(n, episodes)) + sure > 0
    wrong = (labels[:, None] + rng.integers(1, 3, size=(n, episodes))) % 3
    votes = np.where(right, labels[:, None], wrong)
    kept = EpisodePredictions(votes, labels, np.tile(np.arange(3), (episodes, 1)))
    return kept, [f"p{k}" for k in patient]


def averaged(kept: EpisodePredictions, groups: list[str] | None) -> Predictions:
    """The predictions averaged over episodes, as a few-shot run stores them."""
    n, episodes = kept.votes.shape
    probabilities = np.stack([(kept.votes == c).mean(axis=1) for c in range(3)], axis=1)
    return Predictions(
        probabilities=probabilities,
        labels=kept.labels,
        predicted=probabilities.argmax(1),
        classes=("a", "b", "c"),
        img_names=tuple(f"{k}.png" for k in range(n)),
        groups=None if groups is None else tuple(groups),
        episodes=np.full(n, episodes),
    )


def crossed_metrics(kept: EpisodePredictions, groups: list[str] | None) -> dict[str, LeaveOneOut]:
    run = averaged(kept, groups)
    units = SamplingUnits.of(run)
    values = left_out_values(kept, units, known_metrics(kept))
    return {
        name: crossed_columns(name, (name,), [each], UnseenMoves([run], units))
        for name, each in values.items()
    }


def reported(kept: EpisodePredictions, images: np.ndarray, episodes: np.ndarray) -> float:
    scores = [sk.balanced_accuracy_score(kept.labels[images], kept.votes[images, e]) for e in episodes]
    return float(np.mean(scores))


@pytest.mark.slow
def test_the_variance_is_that_of_a_plain_loop_over_patients_and_episodes() -> None:
    kept, groups = simulated()
    everyone, every_episode = np.arange(90), np.arange(12)
    patients = sorted(set(groups))
    members = [np.flatnonzero(np.array(groups) != patient) for patient in patients]
    without_patient = np.array([reported(kept, rows, every_episode) for rows in members])
    without_episode = np.array([reported(kept, everyone, np.delete(every_episode, e)) for e in range(12)])
    table = np.array([[reported(kept, rows, np.array([e])) for rows in members] for e in range(12)])
    apart = table - table.mean(1, keepdims=True)
    both = ((apart - apart.mean(0)) ** 2).sum() * (8 / 9) / (12 * 11)

    def spread(values: np.ndarray) -> float:
        return (len(values) - 1) / len(values) * float(((values - values.mean()) ** 2).sum())

    found = crossed_metrics(kept, groups)["balanced_accuracy"]
    shares = [spread(without_patient), spread(without_episode) - both]
    assert found.values[0] == pytest.approx(reported(kept, everyone, every_episode))
    assert found.variance[0] == pytest.approx(sum(shares), rel=1e-9)
    assert 3 <= found.degrees[0] <= 8 + 11


def test_a_class_outside_of_an_episode_is_no_mistake() -> None:
    votes = np.array([[0, -1], [1, 1], [-1, 2], [0, -1], [1, 1], [-1, 2]])
    kept = EpisodePredictions(votes, np.array([0, 1, 2, 0, 1, 2]), np.array([[0, 1], [1, 2]]))
    found = crossed_metrics(kept, None)
    assert found["accuracy"].values[0] == 1.0
    assert found["quadratic_kappa"].values[0] == 1.0


def test_runs_with_other_numbers_of_episodes_keep_their_own_variance() -> None:
    (a, groups), (b, _) = simulated(1, episodes=10), simulated(2, episodes=25)
    runs = [averaged(kept, groups) for kept in (a, b)]
    units = SamplingUnits.of(runs[0])
    each = [left_out_values(kept, units, ("accuracy",))["accuracy"] for kept in (a, b)]
    found = crossed_columns("accuracy", ("a", "b"), each, UnseenMoves(runs, units))
    for k, name in enumerate("ab"):
        single = crossed_columns("accuracy", (name,), [each[k]], UnseenMoves([runs[k]], units))
        assert found.variance[k] == pytest.approx(single.variance[0], rel=0.05)


def write(folder: Path, encoder: str, kept: EpisodePredictions, groups: list[str]) -> None:
    """A few-shot run whose ensemble of predictions is what `kept` votes for."""
    predictions = averaged(kept, groups)
    said = np.eye(3)[kept.votes].transpose(1, 0, 2)
    result = TaskResult.averaged(
        predictions, evaluate_episodes(said, kept.labels), kept, setting="3way_4shot"
    )
    files = write_task(
        folder / encoder,
        "Few-shot",
        predictions,
        identity=RunIdentity("d", encoder),
        scores=result.scores,
        per_class=result.per_class,
        confusion_matrix=result.confusion_matrix,
        setting="3way_4shot",
    )
    assert result.episode_metrics is not None
    write_episodes(files, result.episode_metrics, info={})
    with episode_file(TaskFiles.of(folder / encoder, "Few-shot").episode_predictions) as file:
        file.add("3way_4shot", kept)


def steady_and_scattered(n: int = 90, episodes: int = 15) -> tuple[EpisodePredictions, EpisodePredictions]:
    """One encoder is always wrong about the same images, the other about others each time."""
    rng = np.random.default_rng(4)
    labels = np.arange(n) % 3
    steady = np.where((np.arange(n) < 27)[:, None], (labels[:, None] + 1) % 3, labels[:, None])
    steady = np.repeat(steady, episodes, axis=1)
    missed = rng.random((n, episodes)) < 0.40
    scattered = np.where(missed, (labels[:, None] + rng.integers(1, 3, (n, episodes))) % 3, labels[:, None])
    classes = np.tile(np.arange(3), (episodes, 1))
    return EpisodePredictions(steady, labels, classes), EpisodePredictions(scattered, labels, classes)


def test_tables_go_by_the_reported_mean_and_not_by_the_ensemble(tmp_path: Path) -> None:
    groups = [f"p{k // 10}" for k in range(90)]
    for name, kept in zip(("steady", "scattered"), steady_and_scattered(), strict=True):
        write(tmp_path, name, kept, groups)
    runs = select_runs(load_runs(tmp_path), task="Few-shot")
    ensemble = {
        run.identity.encoder: np.mean(run.predictions.predicted == run.predictions.labels) for run in runs
    }
    assert ensemble["scattered"] > ensemble["steady"]
    (table,) = compare_runs(runs, CompareSettings(metric="accuracy", alpha=0.2)).tables
    assert [entry.name for entry in table.entries] == ["steady", "scattered"]
    for entry in table.entries:
        assert (entry.value, entry.interval.level) == (entry.reported, 0.8)
        assert entry.interval.low is not None
        assert entry.interval.low < entry.reported < entry.interval.high
    assert table.resampled == "episodes and groups (patients or slides)"
    (pair,) = table.pairs
    assert pair.difference == pytest.approx(table.entries[0].value - table.entries[1].value)
    assert (pair.interval.contains(0.0)) == (pair.p_value >= 0.2)
    assert pair.interval.level == 0.8


def test_order_of_images_does_not_matter(tmp_path: Path) -> None:
    groups = [f"p{k // 10}" for k in range(90)]
    first, second = steady_and_scattered()
    write(tmp_path / "one", "steady", first, groups)
    write(tmp_path / "one", "scattered", second, groups)
    runs = select_runs(load_runs(tmp_path / "one"), task="Few-shot")
    turned = runs[1]
    order = np.arange(90)[::-1]
    straight = compare_runs(runs, CompareSettings(metric="f1_score")).tables[0]
    assert turned.episodes is not None
    turned.__dict__["episodes"] = turned.episodes.taken(order)
    turned.__dict__["predictions"] = taken(turned.predictions, order)
    again = compare_runs(runs, CompareSettings(metric="f1_score")).tables[0]
    assert again.entries == straight.entries
    assert [pair.p_value for pair in again.pairs] == [pair.p_value for pair in straight.pairs]


@pytest.mark.parametrize("kept_file", [True, False])
def test_too_few_episodes_or_none_kept_have_a_reason_and_no_test(tmp_path: Path, kept_file: bool) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        write(tmp_path, name, *simulated(seed, episodes=2 if kept_file else 12))
    if not kept_file:
        for path in tmp_path.rglob("*.npz"):
            path.unlink()
    runs = select_runs(load_runs(tmp_path), task="Few-shot")
    (table,) = compare_runs(runs, CompareSettings(metric="accuracy")).tables
    reason = "2 episodes or runs (an interval needs 3)" if kept_file else "were not kept"
    assert any(reason in note for note in table.notes)
    assert table.standings is None
    assert np.isnan(table.pairs[0].p_value)
    assert all(entry.interval.low is None and entry.value == entry.reported for entry in table.entries)


def test_intervals_of_a_mean_know_all_that_it_was_computed_from(tmp_path: Path) -> None:
    write(tmp_path, "a", *simulated(1))
    files, digests = TaskFiles.of(tmp_path / "a", "Few-shot", "3way_4shot"), set()
    for path in (files.detailed, files.per_episode):
        digests.add(predictions_digest(files))
        path.write_text(path.read_text() + "\n")
    digests.add(predictions_digest(files))
    files.episode_predictions.unlink()  # its content is checked where it is read
    assert len(digests | {predictions_digest(files)}) == 4
    enough = [(count, task) for count in (1, 2, 3) for task in ("Few-shot", "KNN")
              if not too_few_episodes(count, task)]  # fmt: skip
    assert enough == [(1, "KNN"), (3, "Few-shot"), (3, "KNN")]


@pytest.mark.slow
def test_a_fault_of_the_disk_leaves_no_table_without_intervals(tmp_path: Path, faulty_disk: Any) -> None:
    write(tmp_path, "a", *simulated(1))
    folder = tmp_path / "a"
    (episodes,) = folder.rglob("*_episode_predictions.npz")
    with faulty_disk.failing(episodes, errno.EIO), pytest.raises(HistobenchError, match="Input/output error"):
        write_tidy_rows(folder)
    with faulty_disk.failing(episodes, errno.EIO, times=1):
        write_tidy_rows(folder)
    lows = {row["metric"]: row["low"] for row in read_rows(folder / TIDY_FILE)}
    assert lows["balanced_accuracy"] is not None


def test_a_few_shot_number_has_one_interval_everywhere(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        write(tmp_path / "results", name, *simulated(seed, sure=0.5 + seed / 4))
    runs = select_runs(load_runs(tmp_path / "results"), task="Few-shot")
    pages = pages_of_runs(build_site(tmp_path / "results", tmp_path / "site"))
    for metric in ("accuracy", "balanced_accuracy", "f1_score"):
        (table,) = compare_runs(runs, CompareSettings(metric=metric)).tables
        python = open_results(tmp_path / "results").to_frame().query("metric == @metric").set_index("encoder")
        for entry in table.entries:
            run = next(run for run in runs if run.identity.encoder == entry.name)
            both = pytest.approx((entry.interval.low, entry.interval.high), rel=0, abs=1e-12)
            stored = write_default_intervals(run)["metrics"][metric]
            assert (stored["ci_lower"], stored["ci_upper"]) == both
            assert 2 < (stored["ci_upper"] - stored["ci_lower"]) / stored["std"] < 8
            assert (python.loc[entry.name, "low"], python.loc[entry.name, "high"]) == both
            write_tidy_rows(tmp_path / "results" / entry.name)
            rows = read_rows(tmp_path / "results" / entry.name / TIDY_FILE)
            assert [(row["low"], row["high"]) for row in rows if row["metric"] == metric] == [both]
            shown = pytest.approx((entry.interval.low, entry.interval.high), abs=1e-4)
            assert any(tuple(page["bounds"][metric]) == shown for page in pages)
