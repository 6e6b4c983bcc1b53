"""A large few-shot evaluation is played in parts, and comes out as if it had been played in one piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from histobench.core.progress import Silent
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.evaluation import few_shot_task as few_shot
from histobench.roi.options import Plan
from histobench.roi.plan.plan_file import read_plan
from histobench.roi.plan.whole_benchmark import run_benchmark
from histobench.roi.protocols.few_shot import few_shot_settings
from histobench.roi.units import few_shot_parts as episodes
from histobench.roi.units.few_shot_parts import parts_of
from histobench.roi.units.roi_run import RoiRun
from histobench.roi.units.status import status_of
from histobench.roi.units.unit_worker import UnitWorker
from histobench.work import clusters
from histobench.work.engines import Display, SlurmEngine
from histobench.work.run_folder import Unit

SETTINGS = [(way, shot) for way in (2, 3) for shot in (1, 4)]


@pytest.fixture
def plan(
    tiles: Callable[[int], Path],
    write_plan: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Plan:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    plan = read_plan(write_plan(tiles(60)))
    options = replace(plan.options, n_way=(2,), n_shot=(1, 4, 99), n_iter=6, keep_probabilities=True)
    return replace(plan, encoders=plan.encoders[:1], tasks=("Few-shot", "KNN"), options=options)


@pytest.fixture
def whole(plan: Plan, tmp_path: Path) -> Path:
    """What one process gives that plays everything in one piece."""
    done = run_benchmark(plan)
    assert (done.outcome.evaluated, done.outcome.failures) == (2, [])
    assert not (plan.results / "work" / "episodes").exists()
    return plan.results.rename(tmp_path / "whole")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """The settings that are played from here on."""
    found: Counter[tuple[int, int]] = Counter()

    def noted(*data: Any, settings: Any, **options: Any) -> Any:
        for setting, result in zip(
            settings, few_shot_settings(*data, settings=settings, **options), strict=True
        ):
            found[setting] += 1
            yield result

    monkeypatch.setattr(few_shot, "few_shot_settings", noted)
    return found


def latest(results: Path) -> RoiRun:
    folder = RoiRun.latest(results)
    assert folder is not None
    folder.refresh()
    return folder


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_parts_in_any_hands_give_the_bytes_of_one_piece(
    plan: Plan,
    whole: Path,
    assert_same: Callable[[Path, Path], None],
    played: Counter[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    hands: Any,
    seed: int | None,
) -> None:
    engine = None if seed is None else hands(seed, at_once=1)
    monkeypatch.setattr(episodes, "LARGE_SECONDS", 0.001)
    done = run_benchmark(plan, engine=engine)
    assert (done.outcome.evaluated, done.outcome.failures) == (2, [])
    assert dict(played) == dict.fromkeys(SETTINGS, 1)  # nothing twice
    kinds = Counter(unit.kind for unit in latest(plan.results).units())
    assert (kinds["episodes"], kinds["evaluate"]) == (4, 2)
    assert set(status_of(plan.results).states) == {"done"}
    again = run_benchmark(plan, engine=engine)
    assert again.outcome.unchanged == 2
    assert sum(played.values()) == 4
    assert_same(whole, plan.results)


@pytest.mark.nightly
@pytest.mark.slow
def test_what_is_damaged_gone_or_of_other_features_is_played_again(
    plan: Plan,
    whole: Path,
    assert_same: Callable[[Path, Path], None],
    played: Counter[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    hands: Any,
) -> None:
    monkeypatch.setattr(episodes, "LARGE_SECONDS", 0.001)
    run_benchmark(plan, engine=hands(0, until="evaluate", at_once=1))
    files = sorted((plan.results / "work" / "episodes").rglob("*.npz"))
    assert [path.name for path in files] == [f"{way}way_{shot}shot.npz" for way, shot in SETTINGS]
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 16
    files[0].write_bytes(data)
    files[1].write_bytes(b"")
    folder = latest(plan.results)
    failing = next(unit for unit in folder.units() if unit.spec.get("settings") == [[3, 1]])
    (folder.path / "outputs" / f"{failing.id}.json").unlink()
    files[2].unlink()
    folder.fail(failing, "its worker died 4 times")
    evaluate = [
        unit for unit in folder.units() if unit.kind == "evaluate" and unit.spec["task"] == "Few-shot"
    ]
    again = RoiRun(folder.path)
    UnitWorker(again, Silent()).perform(evaluate)  # the one who puts it together plays what cannot be had
    assert (again.output(evaluate[0].id) or {})["outcome"] == "evaluated"
    assert played == Counter({(2, 1): 2, (2, 4): 2, (3, 1): 2, (3, 4): 1})
    other = replace(plan, seed=3)
    before = played.total()
    run_benchmark(other)
    assert played.total() == before + 4  # of another seed nothing is known
    run_benchmark(plan)
    assert played.total() == before + 4
    seeded = [path for path in plan.results.rglob("*") if path.is_dir() and path.name.startswith("seed-")]
    assert seeded
    place = Path("tiles", "Colour", "uni", "Few-shot")
    assert_same(whole / place, plan.results / place)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1.6, 3.0, 1e9])
def test_settings_are_cut_by_what_they_are_estimated_to_take(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, limit: float
) -> None:
    monkeypatch.setattr(episodes, "LARGE_SECONDS", limit)
    images = [RoiImage(Path(str(number)), number % 5, "", "") for number in range(5000)]
    dataset = RoiDataset("d", tuple("abcde"), {"train": tuple(images[:1000]), "test": tuple(images)})
    options = asdict(replace(plan.options, n_way=(2, 3, 4), n_shot=(1, 2, 4, 1000), n_iter=300))
    parts = parts_of(dataset, "uni", options)
    assert parts_of(dataset, "thunder", options) == []  # which votes, and has no such episodes
    if limit == 1e9:
        assert parts == []
        return
    settings = [setting for part in parts for setting in part.settings]
    assert settings == [(way, shot) for way in (2, 3, 4, 5) for shot in (1, 2, 4)]
    assert all(part.seconds <= limit or len(part.settings) == 1 for part in parts)
    assert len(parts) < len(settings)
    # Nothing could have been put to the part before it.
    assert all(
        before.seconds + parts_of_one(dataset, options, part.settings[0]) > limit
        for before, part in pairwise(parts)
    )


def parts_of_one(dataset: RoiDataset, options: dict[str, Any], setting: tuple[int, int]) -> float:
    tested = len(dataset.splits["test"]) / len(dataset.classes) * setting[0]
    episode = episodes.EPISODE_SECONDS + episodes.SCORE_SECONDS * tested * setting[0]
    return float(options["n_iter"] * episode)


def test_slurm_asks_for_the_tasks_that_the_episodes_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: dict[str, int] = {}

    def submit(name: str, command: list[str], **options: Any) -> str:
        tasks[command[-1]] = options["tasks"]
        return name

    monkeypatch.setattr(clusters, "submit_array", submit)
    units = [Unit("prepare", "d", "")]
    units += [Unit("episodes", "d", "e", {"settings": [n]}, seconds=300.0) for n in range(30)]
    SlurmEngine({}, {}).run(RoiRun.create(tmp_path, {}, units), Display())
    assert tasks["features,episodes,evaluate,splits,compare"] == 10


def test_a_setting_is_read_as_it_was_played(tmp_path: Path) -> None:
    import torch

    from histobench.roi.evaluation.few_shot_task import PlayedSetting

    generator = torch.Generator().manual_seed(0)
    train, test = (torch.randn(n, 8, generator=generator) for n in (40, 25))
    labels = torch.arange(40) % 4, torch.arange(25) % 4
    (setting,) = few_shot_settings(
        train,
        labels[0],
        test,
        labels[1],
        n_classes=4,
        settings=[(3, 2)],
        n_iter=5,
        keep_probabilities=True,
    )
    played = PlayedSetting.of(setting, labels[1].numpy())
    played.write(tmp_path / "x.npz")
    read = PlayedSetting.read(tmp_path / "x.npz")
    assert read is not None
    assert (read.name, read.outcome.info) == ("3way_2shot", setting.outcome.info)
    assert list(read.metrics) == list(setting.episode_metrics)
    for name, values in setting.episode_metrics.items():
        assert values.tobytes() == read.metrics[name].tobytes()
    assert read.outcome.probabilities.tobytes() == setting.outcome.probabilities.tobytes()
    assert read.outcome.predicted.dtype == setting.outcome.predicted.dtype
    np.testing.assert_array_equal(read.outcome.predicted, setting.outcome.predicted)
    np.testing.assert_array_equal(read.taken, setting.episodes_per_image)
    np.testing.assert_array_equal(read.episodes.votes, setting.votes)
    np.testing.assert_array_equal(read.episodes.classes, setting.episodes.classes)
    np.testing.assert_array_equal(read.episodes.log_odds, played.episodes.log_odds)
    assert PlayedSetting.read(tmp_path / "none.npz") is None
