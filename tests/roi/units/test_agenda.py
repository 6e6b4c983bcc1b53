"""What can be done next is what a look at all outputs would say, though only some of them are looked at."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from histobench.core.progress import Silent
from histobench.roi.units.roi_run import KINDS, RoiRun
from histobench.work import run_folder
from histobench.work.loop import Agenda, work_through
from histobench.work.run_folder import Unit, write_lines


def units_of(datasets: int, encoders: int) -> list[Unit]:
    units: list[Unit] = []
    for dataset in map(str, range(datasets)):
        prepare = Unit("prepare", dataset, "")
        units.append(prepare)
        for encoder in map(str, range(encoders)):
            features = Unit("features", dataset, encoder, {}, (prepare.id,))
            tasks = [{"preset": "uni", "task": task} for task in ("KNN", "Proto")]
            units += [features, *(Unit("evaluate", dataset, encoder, spec, (features.id,)) for spec in tasks)]
        for task in ("KNN", "Proto"):
            needs = [unit.id for unit in units if unit.dataset == dataset and unit.spec.get("task") == task]
            units.append(Unit("compare", dataset, "", {"preset": "uni", "task": task}, tuple(needs)))
    return units


def shards_of(prepare: Unit) -> list[Unit]:
    return [
        Unit(
            "shards",
            prepare.dataset,
            "e",
            {"prepare": prepare.id, "encoders": [team], "begin": row},
            (prepare.id,),
        )
        for team in range(2)
        for row in range(5)
    ]


def ready_by_looking_at_everything(path: Path) -> set[str]:
    folder = RoiRun(path)
    folder.refresh()
    done = {unit.id for unit in folder.units() if folder.state(unit.id) is not None}
    ready = set()
    for unit in folder.units():
        needs = set(unit.needs)
        if unit.kind == "features":
            needs |= {shard.id for shard in folder.found_by(unit.needs[0])}
        if unit.id not in done and needs <= done:
            ready.add(unit.id)
    return ready


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_two_that_share_a_run_do_every_unit_in_its_turn(tmp_path: Path, seed: int) -> None:
    """Each takes batches in turns; some are lost, and each sees late what the other has done."""
    rng = random.Random(seed)
    path = RoiRun.create(tmp_path, {}, units_of(3, 2)).path
    workers = [(folder := RoiRun(path), Agenda(folder)) for _ in range(2)]
    for _ in range(2000):
        folder, agenda = workers[rng.randrange(2)]
        if agenda.is_stale or rng.random() < 0.1:
            agenda.refresh()
        batch = next(agenda.ready(KINDS), [])[: rng.randint(1, 3)]
        if not batch:
            agenda.is_stale = bool(agenda.left)
            continue
        undone = {unit.id for unit in batch if RoiRun(path).output(unit.id) is None}
        assert undone <= ready_by_looking_at_everything(path)
        if rng.random() < 0.8:  # else the worker was lost
            for unit in batch:
                if unit.kind == "prepare":
                    write_lines(path / "shards" / f"{unit.id}.jsonl", shards_of(unit))
                folder.finish(unit)
        agenda.note(batch)
    end = RoiRun(path)
    end.refresh()
    assert len(end.units()) == 3 * (1 + 10 + 6 + 2)
    assert {end.state(unit.id) for unit in end.units()} == {"done"}


def test_a_worker_does_not_read_what_others_write_while_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = [Unit("evaluate", "d", str(number), {"preset": "uni"}) for number in range(20)]
    folder = RoiRun.create(tmp_path, {}, units)
    folder.finish(units[0])
    (gone := tmp_path / "gone").touch()
    folder.finish(units[1], files=[gone])
    gone.unlink()
    agenda, read = Agenda(other := RoiRun(folder.path)), []
    assert len(agenda.left) == 19  # what was there before is read, and counts with its files
    for unit in units:
        folder.finish(unit)
    monkeypatch.setattr(run_folder, "read_note", lambda path: read.append(path))
    agenda.refresh()
    assert (agenda.left, read) == (set(), [])
    assert other.output(units[2].id) is None  # who needs the content reads it
    assert len(read) == 1


def test_a_worker_that_comes_late_lists_what_is_done_and_reads_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = [Unit("evaluate", "d", str(number), {"preset": "uni"}) for number in range(20)]
    folder = RoiRun.create(tmp_path, {}, units)
    for unit in units:
        folder.finish(unit)
    read: list[object] = []
    monkeypatch.setattr(run_folder, "read_note", read.append)
    late = RoiRun(folder.path)
    work_through(late, late.open_worker(Silent()), stopped=lambda: bool(read))
    assert read == []
