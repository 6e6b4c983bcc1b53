"""Means over episodes: both sources of chance count, and tables go by what is reported."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sk

from histobench.roi.comparison.comparison import CompareSettings, compare_runs
from histobench.roi.comparison.episode_intervals import crossed_columns, crossed_metrics, left_out_values
from histobench.roi.comparison.selection import select_runs
from histobench.roi.evaluation.context import TaskResult
from histobench.roi.metrics.batched import evaluate_episodes
from histobench.roi.predictions import Predictions
from histobench.roi.results.episode_predictions import EpisodePredictions, episode_file
from histobench.roi.results.layout import RunIdentity, TaskFiles
from histobench.roi.results.reader import load_runs
from histobench.roi.results.writer import write_episodes, write_task
from histobench.statistics.jackknife import satterthwaite
from histobench.statistics.resampling import sampling_design

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "studies"))
from episode_coverage import CASES, coverage


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

    found = crossed_metrics(kept, sampling_design(90, clusters=groups))["balanced_accuracy"]
    shares = [spread(without_patient), spread(without_episode) - both]
    assert found.values[0] == pytest.approx(reported(kept, everyone, every_episode))
    assert found.variance[0] == pytest.approx(sum(shares), rel=1e-9)
    assert found.freedom == pytest.approx(satterthwaite(shares, [8, 11]), rel=1e-9)


def test_drawing_episodes_and_patients_again_gives_the_same_spread() -> None:
    kept, groups = simulated(3, patients=30, episodes=25)
    rng = np.random.default_rng(0)
    codes = np.unique(groups, return_inverse=True)[1]
    rows = [np.flatnonzero(codes == k) for k in range(30)]
    drawn = []
    for _ in range(400):
        images = np.concatenate([rows[k] for k in rng.integers(30, size=30)])
        right = (kept.votes == kept.labels[:, None])[np.ix_(images, rng.integers(25, size=25))].mean(axis=1)
        drawn.append(np.mean([right[kept.labels[images] == c].mean() for c in range(3)]))
    found = crossed_metrics(kept, sampling_design(90, clusters=groups))["balanced_accuracy"]
    # Drawing twice counts what is particular to an episode and an image about once more.
    assert found.variance[0] ** 0.5 == pytest.approx(np.std(drawn), rel=0.15)


def test_a_class_outside_of_an_episode_is_no_mistake() -> None:
    votes = np.array([[0, -1], [1, 1], [-1, 2], [0, -1], [1, 1], [-1, 2]])
    kept = EpisodePredictions(votes, np.array([0, 1, 2, 0, 1, 2]), np.array([[0, 1], [1, 2]]))
    found = crossed_metrics(kept, sampling_design(6))
    assert found["accuracy"].values[0] == 1.0
    assert found["quadratic_kappa"].values[0] == 1.0


def test_runs_with_other_numbers_of_episodes_keep_their_own_variance() -> None:
    (a, groups), (b, _) = simulated(1, episodes=10), simulated(2, episodes=25)
    design = sampling_design(90, clusters=groups)
    each = [left_out_values(kept, design, ("accuracy",))["accuracy"] for kept in (a, b)]
    found = crossed_columns(("a", "b"), each, design)
    alone = [crossed_columns((name,), [values], design) for name, values in zip("ab", each, strict=True)]
    for column, single in enumerate(alone):
        assert found.variance[column] == pytest.approx(single.variance[0], rel=0.05)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("case", [0, 4], ids=["60 images", "12 patients, 5 runs"])
def test_the_interval_holds_the_truth_where_one_over_episodes_does_not(case: int) -> None:
    held = coverage(CASES[case], 150, 17, rounds=40)
    for metric in ("accuracy", "balanced_accuracy"):
        assert held["over episodes alone"][metric] < 0.8
        assert 0.90 <= held["crossed"][metric] <= 1.0  # 95 % within three standard errors


def write(folder: Path, encoder: str, kept: EpisodePredictions, groups: list[str]) -> None:
    """A few-shot run whose ensemble of predictions is what `kept` votes for."""
    n, episodes = kept.votes.shape
    probabilities = np.stack([(kept.votes == c).mean(axis=1) for c in range(3)], axis=1)
    predictions = Predictions(
        probabilities=probabilities,
        labels=kept.labels,
        predicted=probabilities.argmax(1),
        classes=("a", "b", "c"),
        img_names=tuple(f"{k}.png" for k in range(n)),
        groups=tuple(groups),
        episodes=np.full(n, episodes),
    )
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
    (table,) = compare_runs(runs, CompareSettings(metric="accuracy")).tables
    assert [entry.name for entry in table.entries] == ["steady", "scattered"]
    for entry in table.entries:
        assert entry.value == entry.reported
        assert entry.interval.low is not None
        assert entry.interval.low < entry.reported < entry.interval.high
    assert table.resampled == "episodes and groups (patients or slides)"
    (pair,) = table.pairs
    assert pair.difference == pytest.approx(table.entries[0].value - table.entries[1].value)
    assert (pair.interval.contains(0.0)) == (pair.p_value >= 0.05)


def test_order_of_images_does_not_matter(tmp_path: Path) -> None:
    groups = [f"p{k // 10}" for k in range(90)]
    first, second = steady_and_scattered()
    write(tmp_path / "one", "steady", first, groups)
    write(tmp_path / "one", "scattered", second, groups)
    runs = select_runs(load_runs(tmp_path / "one"), task="Few-shot")
    turned = runs[1]
    order = np.arange(90)[::-1]
    from histobench.roi.comparison.sampling_units import taken

    straight = compare_runs(runs, CompareSettings(metric="f1_score")).tables[0]
    assert turned.episodes is not None
    turned.__dict__["episodes"] = turned.episodes.taken(order)
    turned.__dict__["predictions"] = taken(turned.predictions, order)
    again = compare_runs(runs, CompareSettings(metric="f1_score")).tables[0]
    assert again.entries == straight.entries
    assert [pair.p_value for pair in again.pairs] == [pair.p_value for pair in straight.pairs]


def test_tests_of_single_predictions_are_refused_for_means(tmp_path: Path) -> None:
    kept, groups = simulated()
    for name in ("a", "b"):
        write(tmp_path, name, kept, groups)
    runs = select_runs(load_runs(tmp_path), task="Few-shot")
    with pytest.raises(Exception, match="leave `test` out"):
        compare_runs(runs, CompareSettings(metric="accuracy", test="mcnemar"))


def test_an_old_folder_is_compared_over_episodes_and_says_so(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        write(tmp_path, name, *simulated(seed))
    for path in tmp_path.rglob("*.npz"):
        path.unlink()
    runs = select_runs(load_runs(tmp_path), task="Few-shot")
    (table,) = compare_runs(runs, CompareSettings(metric="accuracy")).tables
    assert table.resampled == "episodes"
    assert any("over episodes alone" in note for note in table.notes)
    assert all(entry.value == entry.reported for entry in table.entries)
