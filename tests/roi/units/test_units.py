"""Units give the same bytes whoever does them, however often, and whatever the disk does meanwhile."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from histobench.cli.main import main
from histobench.core import files as reading
from histobench.core.claim import try_claim
from histobench.core.errors import HistobenchError
from histobench.core.progress import Silent
from histobench.roi.comparison.comparison import DatasetTable, dataset_table
from histobench.roi.features.inference import shards as shard_sizes
from histobench.roi.options import Plan
from histobench.roi.plan.plan_file import plan_from, read_plan_values
from histobench.roi.plan.plan_run import outcome_of, run_plan
from histobench.roi.plan.whole_benchmark import collect, run_benchmark
from histobench.roi.units import comparing, extraction, local_engine
from histobench.roi.units.roi_run import KINDS, RoiRun
from histobench.roi.units.status import at_work, check_free, status_of
from histobench.roi.units.unit_worker import UnitWorker
from histobench.work.engines import Display, SlurmEngine, remove_keys, take_keys
from histobench.work.loop import work_through
from histobench.work.run_folder import HUNG, Unit, read_lines

Same = Callable[[Path, Path], None]


class TwoWorkers:
    """Units as on a cluster, done by two workers of this process in turns; one forgets what it had loaded."""

    name = "turns"

    def check(self) -> None:
        pass

    def run(self, folder: RoiRun, display: Display) -> bool:
        workers = [UnitWorker(RoiRun(folder.path), Silent()) for _ in range(2)]
        for turn in range(200):
            folder.refresh()
            if all(folder.state(unit.id) is not None for unit in folder.units() if unit.kind in KINDS):
                break
            left = iter((False, True))
            work_through(RoiRun(folder.path), workers[turn % 2], stopped=lambda left=left: next(left))
        for worker in workers:
            worker.close()
        return True


@pytest.fixture
def plan(
    tiles: Callable[[int], Path],
    write_plan: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Plan:
    monkeypatch.setattr(shard_sizes, "CPU_SHARD_IMAGES", 16)
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    path = write_plan(tiles(60))
    return plan_from(read_plan_values(path), where=str(path), base=path.parent)


@pytest.fixture
def local(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What this process gives by itself."""
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache-local"))
    done = run_benchmark(plan)
    assert done.outcome.evaluated == 4
    assert not done.outcome.failures
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    return plan.results.rename(tmp_path / "local")


@pytest.mark.slow
def test_units_in_any_hands_give_the_bytes_of_one_process(plan: Plan, local: Path, assert_same: Same) -> None:
    done = run_plan(plan, engine=TwoWorkers())
    assert (done.evaluated, done.failures) == (4, [])
    # Whoever evaluates also computes the intervals.
    intervals = [path for path in plan.results.rglob("*_bootstrap_ci.json") if path.is_file()]
    assert len(intervals) == 4
    status = status_of(plan.results)
    # 1 prepares, 4 of shards, 2 of features, 4 evaluate, 2 compare; the report is made at the end
    assert dict(status.states) == {"done": 13, "waiting": 1}
    assert status.images == 120
    again = run_benchmark(plan, engine=TwoWorkers())
    assert (again.outcome.evaluated, again.outcome.unchanged) == (0, 4)
    assert_same(local, plan.results)
    status = status_of(plan.results)
    assert dict(status.states) == {"done": 10}  # rows are in the cache
    assert (status.cells[-1].dataset, status.cells[-1].encoder) == ("(all)", "(report)")


def test_as_many_processes_evaluate_as_there_is_memory_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.npz").write_bytes(bytes(3 * 2**20))
    unit = Unit("features", "set", f"one=features:{tmp_path / 'elsewhere.npz'}")
    folder = RoiRun.create(tmp_path, {"engine": "local"}, [unit])
    each = local_engine.LIBRARIES + local_engine.COPIES * 3 * 2**20
    for free, processes in ((None, 8), (each * 100, 8), (each * 3, 3), (each - 1, 1)):
        monkeypatch.setattr(local_engine, "free_memory", lambda free=free: free)
        assert local_engine._fitting(folder, 8) == processes


@pytest.mark.nightly
@pytest.mark.parametrize("processes", [2, 3])  # all but the first are copies of one
def test_evaluations_in_several_processes_give_the_bytes_of_one(
    plan: Plan, local: Path, assert_same: Same, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(local_engine, "LEAST_EACH", 1)
    monkeypatch.setattr(local_engine, "_processes", lambda folder: processes)
    threads = torch.get_num_threads()
    done = run_benchmark(plan)
    assert (done.outcome.evaluated, done.outcome.failures) == (4, [])
    assert torch.get_num_threads() == threads
    assert [path.name for path in done.outcome.folder.path.glob("logs/*")] == ["evaluating-1.log"]
    assert_same(local, plan.results)


@pytest.mark.nightly
def test_the_report_reads_the_tables_that_units_made_and_makes_those_that_do_not_hold(
    plan: Plan, local: Path, assert_same: Same, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(dataset: str, *given: Any) -> DatasetTable:
        made.append(dataset)
        return dataset_table(dataset, *given)

    monkeypatch.setattr(comparing, "dataset_table", counted)  # that of the report alone

    def report() -> int:
        made.clear()
        outcome = outcome_of(RoiRun(folder.path), plan.results)
        collect(outcome, n_bootstrap=20, say=lambda _: None, heading="Summary")
        assert_same(local, plan.results)
        return len(made)

    folder = run_plan(plan, engine=TwoWorkers()).folder
    assert report() == 0
    first, second = sorted((folder.path / "tables").iterdir())
    first.write_bytes(first.read_bytes()[:1000])  # damaged
    assert report() == 1
    second.unlink()  # then its unit is not done
    assert report() == 2
    assert dict(status_of(plan.results).states)["waiting"] == 1


@pytest.mark.slow
def test_what_fails_is_told_does_not_stop_the_rest_and_is_done_when_asked_again(
    plan: Plan, local: Path, assert_same: Same, tmp_path: Path
) -> None:
    own = Path(plan.encoders[0].partition(":")[0])
    broken = tmp_path / "own2.py"
    broken.write_text(own.read_text().replace("embed_dim = 12", "embed_dim = no_such_name"))
    other = replace(plan, encoders=(plan.encoders[0], f"{broken}:Edge"))
    done = run_benchmark(other, engine=TwoWorkers())
    assert done.outcome.evaluated == 2
    (failure,) = done.outcome.failures
    assert "Edge: features" in failure.job
    assert "no_such_name" in failure.reason
    cell = next(cell for cell in status_of(plan.results).cells if cell.encoder.endswith("own2.py:Edge"))
    assert (cell.states["failed"], cell.states["blocked"]) == (1, 2)
    compared = next(cell for cell in status_of(plan.results).cells if cell.encoder == "(compare)")
    assert dict(compared.states) == {"done": 2}  # of what there is
    theirs = plan.results.rename(tmp_path / "with-failure")
    assert len(run_benchmark(other).outcome.failures) == 1
    assert_same(plan.results, theirs)
    shutil.rmtree(plan.results)
    theirs.rename(plan.results)
    broken.write_text(own.read_text())
    done = run_benchmark(other, engine=TwoWorkers(), retry_failed=True)
    assert not done.outcome.failures
    assert done.outcome.evaluated == 4
    assert {table.entries[0].name for c in done.comparisons for table in c.tables} <= {"Colour", "Edge"}
    assert all(len(table.entries) == 2 for c in done.comparisons for table in c.tables)
    folder = RoiRun.latest(plan.results)
    assert folder is not None
    for path in (folder.path / "tables").iterdir():  # made again with what had failed
        assert len(json.loads(path.read_text())["about"]["runs"]) == 2
    with pytest.raises(HistobenchError, match=r"another plan \(encoders differ\)"):
        run_benchmark(plan, engine=TwoWorkers(), retry_failed=True)


@pytest.mark.nightly
@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_faults_of_the_disk_lose_nothing_and_change_no_byte(
    plan: Plan,
    tmp_path: Path,
    faulty_disk: Any,
    monkeypatch: pytest.MonkeyPatch,
    assert_same: Same,
    seed: int,
) -> None:
    """One read in twelve fails, and listings lag; then the disk is well and the run goes on."""
    monkeypatch.setattr(reading, "PAUSES", (0.0, 0.0))
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache-local"))
    run_benchmark(plan)
    local = plan.results.rename(tmp_path / "local")
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    # The last one is a full disk: temporary files cannot be made, and nothing passes by itself.
    codes = (errno.ENOSPC,) if seed == 5 else (errno.ESTALE, errno.EMFILE, errno.EIO)
    share = 1 / 60 if seed == 5 else 1 / 12
    with faulty_disk.at_random(tmp_path, random.Random(seed), codes, share=share):
        for _ in range(3):
            try:
                run_benchmark(plan, engine=TwoWorkers())
                break
            except (HistobenchError, OSError):
                continue
    assert faulty_disk.failed > 0
    done = run_benchmark(plan, engine=TwoWorkers())
    assert not done.outcome.failures
    assert done.outcome.evaluated + done.outcome.unchanged == 4
    assert_same(local, plan.results)


@pytest.mark.slow
def test_another_engine_or_another_plan_in_the_same_folder_is_refused_in_one_line(plan: Plan) -> None:
    run_benchmark(plan, engine=TwoWorkers())
    folder = RoiRun.latest(plan.results)
    assert folder is not None
    claim = try_claim(folder.path / "claims" / "some.json")
    assert claim is not None
    try:
        with pytest.raises(HistobenchError, match="written by a run with `engine` turns: wait for it"):
            run_benchmark(plan)
        with pytest.raises(HistobenchError, match=r"the plan has changed while jobs .* \(tasks\)"):
            run_benchmark(replace(plan, tasks=("KNN",)), engine=TwoWorkers())
    finally:
        claim.release()


@pytest.mark.slow
def test_a_node_of_another_version_or_kind_is_refused(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[RoiRun] = []

    class OnlyPrepares(TwoWorkers):
        def run(self, folder: RoiRun, display: Display) -> bool:
            work_through(folder, UnitWorker(folder, Silent()), kinds=until)
            folders.append(folder)
            return False

    of_another_version = "but this run was planned with 0.0: install the same version"
    computing, every = ("prepare", "shards"), ("prepare", "shards", "features")
    for done, kinds, note, value, told in (
        (("prepare",), computing, "versions", {"histobench": "0.0"}, of_another_version),
        (("prepare",), computing, "device_kind", "Strange GPU", "but this run was planned on Strange GPU"),
        (computing, ("features",), "versions", {"torch": "0.0"}, of_another_version),
        (every, ("evaluate",), "versions", {"torch": "0.0"}, of_another_version),
    ):
        until = done
        run_benchmark(plan, engine=OnlyPrepares())
        folder = folders[-1]
        path = folder.path / "outputs" / f"{folder.units()[0].id}.json"
        content = json.loads(path.read_text())
        path.write_text(
            json.dumps({**content, note: value if isinstance(value, str) else content[note] | value})
        )
        again = RoiRun(folder.path)
        work_through(again, UnitWorker(again, Silent()), kinds=kinds)
        reasons = {reason for cell in status_of(plan.results).cells for reason in cell.reasons}
        assert all(told in reason for reason in reasons)
        assert reasons


@pytest.mark.slow
def test_the_status_and_its_mistakes_are_readable(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["status", str(tmp_path)]) == 2
    assert "no run in" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "plan.yaml"), "--dry-run"]) == 0
    assert "GPU hours" not in capsys.readouterr().out
    assert main(["run", str(tmp_path / "plan.yaml"), "--dry-run", "--engine", "slurm"]) == 0
    assert "GPU hours in total" in capsys.readouterr().out
    assert main(["run", str(tmp_path / "plan.yaml")]) == 0
    capsys.readouterr()
    assert main(["status", str(plan.results)]) == 0
    said = capsys.readouterr().out
    assert "(--engine local): 14 done" in said
    assert main(["run", str(tmp_path / "plan.yaml"), "--slurm", "partition=a"]) == 2
    assert "--slurm needs --engine slurm" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "plan.yaml"), "--engine", "ray", "--no-cache"]) == 2
    assert "--no-cache needs --engine local" in capsys.readouterr().err
    ray = ["run", str(tmp_path / "plan.yaml"), "--engine", "ray", "--ray-address", "127.0.0.1:9"]
    if importlib.util.find_spec("ray") is not None:
        assert main(ray) == 2
        assert "no Ray cluster at 127.0.0.1:9: " in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", str(tmp_path / "plan.yaml"), "--engine", "slurm"]) == 2
    assert "--engine slurm needs sbatch, which is not here" in capsys.readouterr().err
    for options, told in (("partition", "expected key=value"), ("array=1-9", "array is set by histobench")):
        assert main(["run", str(tmp_path / "plan.yaml"), "--engine", "slurm", "--slurm", options]) == 2
        assert told in capsys.readouterr().err
    assert main(["worker", "roi", str(tmp_path)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err


def test_the_table_of_the_status_lines_up_whatever_datasets_are_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    units = [Unit("evaluate", name, "e", {"task": "KNN"}) for name in ("a", "組織", "bell\x07")]
    folder = RoiRun.create(tmp_path, {"engine": "local"}, units)
    folder.finish(units[0], outcome="evaluated")
    folder.fail(units[1], "no such weights")
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:5] == [
        "dataset   encoder  done  waiting  failed",
        "a         e           1        -       -",
        "組織      e           -        -       1",  # two columns each
        "bell\\x07  e           -        1       -",
        f"run {folder.path.name} (--engine local): 1 done, 1 waiting, 1 failed",
    ]
    assert said[-1] == "FAILED: 組織 x e: no such weights"


def test_an_output_counts_while_every_file_that_it_names_is_there(tmp_path: Path, faulty_disk: Any) -> None:
    many = 3
    units = [Unit("evaluate", "d", "e", {"task": str(number)}) for number in range(many)]
    folder = RoiRun.create(tmp_path, {"engine": "local"}, units)
    files = [tmp_path / "shards" / f"{number}.bin" for number in range(many)]
    files[0].parent.mkdir()
    for unit, path in zip(units, files, strict=True):
        path.touch()
        folder.finish(unit, files=[path], outcome="evaluated")
    assert dict(status_of(tmp_path).states) == {"done": many}
    with faulty_disk.lagging(files[-1]):  # a listing that does not show it yet says nothing
        assert dict(status_of(tmp_path).states) == {"done": many}
    files[-1].unlink()
    assert dict(status_of(tmp_path).states) == {"done": many - 1, "waiting": 1}
    folder.finish(units[0], outcome="evaluated")
    again = RoiRun(folder.path)
    again.refresh()
    assert [again.state(unit.id) for unit in again.units()] == ["done"] * (many - 1) + [None]
    assert again.units() == units
    assert [unit.id for unit in again.units()] == [unit.id for unit in units]


@pytest.mark.parametrize(
    "note",
    [
        b'{"state": "passed"}',
        b'{"state": "done", "unit": "UNIT", "outcome": "x", "files": ["/nowhere"]}',
        b'{"state": "done", "outcome": "evaluated"}',
        b'{"state": "done", "unit": "evaluate-00000000000000000000", "outcome": "evaluated"}',
        b"[" * 100_000,
        b"\x80\x04\x95pickled",
    ],
)
def test_an_output_that_no_worker_wrote_counts_for_nothing(tmp_path: Path, note: bytes) -> None:
    unit = Unit("evaluate", "d", "e", {"task": "KNN"})
    folder = RoiRun.create(tmp_path, {"engine": "local"}, [unit])
    (folder.path / "outputs").mkdir(exist_ok=True)
    (folder.path / "outputs" / f"{unit.id}.json").write_bytes(note.replace(b"UNIT", unit.id.encode()))
    folder.refresh()
    assert folder.state(unit.id) is None
    assert folder.forget_failures() == 0
    assert dict(status_of(tmp_path).states) == {"waiting": 1}
    folder.finish(unit, outcome="evaluated")
    assert folder.state(unit.id) == "done"


def test_the_run_that_was_begun_last_is_the_latest(tmp_path: Path) -> None:
    for _ in range(20):
        begun = RoiRun.create(tmp_path, {}, [])
        latest = RoiRun.latest(tmp_path)
        assert latest is not None
        assert latest.path == begun.path


def test_a_worker_follows_the_units_that_it_was_given_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list of units names encoder files, which are run."""
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    spec = {"recipes": [{"name": f"{tmp_path / 'own.py'}:Own"}], "source": {}, "settings": {}}
    folder = RoiRun.create(tmp_path / "results", {}, [Unit("prepare", "d", "", spec)])
    command = folder.worker_arguments()
    text = (folder.path / "units.jsonl").read_text()
    (folder.path / "units.jsonl").write_text(text.replace("own.py", "evil.py"))
    assert main(command) == 2
    assert "units.jsonl was changed after the run began" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    (folder.path / "units.jsonl").write_text(text)
    assert RoiRun(folder.path, folder.digest).units() == folder.units()


@pytest.mark.slow
def test_no_output_makes_a_worker_run_another_file(
    plan: Plan, local: Path, assert_same: Same, tmp_path: Path
) -> None:
    """Another process changes what one unit has left for the next; then the plan is run again."""
    own = Path(plan.encoders[0].partition(":")[0])
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n{own.read_text()}")

    class Hostile(TwoWorkers):
        def run(self, folder: RoiRun, display: Display) -> bool:
            work_through(folder, UnitWorker(folder, Silent()), kinds=("prepare",))
            path = min((folder.path / "outputs").glob("prepare-*.json"))
            path.write_text(path.read_text().replace(str(own), str(tmp_path / "evil.py")))
            return super().run(RoiRun(folder.path), display)

    before = set(tmp_path.iterdir())
    done = run_plan(plan, engine=Hostile())
    states = status_of(plan.results)
    reasons = [reason for cell in states.cells for reason in cell.reasons]
    assert any(
        "is not in the plan of this run" in reason
        for reason in (*reasons, *(each.reason for each in done.failures))
    )
    assert not (tmp_path / "ran").exists()
    assert set(tmp_path.iterdir()) - before <= {plan.results, tmp_path / "cache"}
    assert before <= set(tmp_path.iterdir())
    run_benchmark(plan, engine=TwoWorkers())
    assert_same(local, plan.results)


@pytest.mark.parametrize(
    "line",
    [
        *("{}", "{"),
        *(
            json.dumps({**json.loads(Unit("hash", "d", "e").as_line()), **other})
            for other in (
                {"id": "../../../elsewhere"},
                {"id": "hash-0123456789abcdef0123/../../elsewhere"},
                {"id": "report-0123456789abcdef0123"},
            )
        ),
    ],
)
def test_a_line_that_is_no_unit_is_told_in_one_sentence(tmp_path: Path, line: str) -> None:
    (tmp_path / "units.jsonl").write_text(f"{line}\n")
    with pytest.raises(HistobenchError, match="is not a list of units"):
        read_lines(tmp_path / "units.jsonl")


@pytest.mark.parametrize("cancels", [True, False])
def test_jobs_are_queued_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancels: bool) -> None:
    """A Slurm that takes two jobs of a user, and no third."""
    commands = tmp_path / "bin"
    commands.mkdir()
    asked = tmp_path / "asked"
    sbatch = f"""#!/bin/bash
n=$(grep -c sbatch {asked} 2>/dev/null); echo sbatch $(grep -o afterany:.. <<< "$*") >> {asked}
[ "$n" = 2 ] && {{ echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1; }}
echo $((71 + n))
"""
    scancel = f"#!/bin/bash\necho scancel $@ >> {asked}\nexit {int(not cancels)}\n"
    for name, text in (("sbatch", sbatch), ("scancel", scancel)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    folder = RoiRun.create(tmp_path / "results", {"engine": "slurm"}, [Unit("prepare", "d", "")])
    told = "what was queued before it is canceled" if cancels else "cancel the others: scancel 71 72"
    line = rf"QOSMaxSubmitJobPerUserLimit \(the job evaluate with 1 tasks\); {told}$"
    with pytest.raises(HistobenchError, match=line):
        SlurmEngine({}, {}).run(folder, Display())
    queued = ["sbatch", "sbatch afterany:71", "sbatch afterany:72"]
    assert asked.read_text().splitlines() == [*queued, "scancel 71 72"]


def test_jobs_without_a_device_have_the_options_of_the_others_and_their_own() -> None:
    shared = {"partition": "gpu", "gres": "gpu:1", "time": "9:00", "tasks": "5"}
    engine = SlurmEngine(shared, {"partition": "cpu"})
    assert (engine.tasks, engine._options[False]) == (
        {True: 5, False: 5},
        {"partition": "cpu", "time": "9:00"},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "restarts", "again"),
    [
        ("kill -9 $$", 2, True),
        ("kill -9 $$", 3, False),
        ("sleep 2; kill -USR1 $PPID; exec sleep 60", 49, True),
        ("sleep 2; kill -USR1 $PPID; exec sleep 60", 50, False),
    ],
)
def test_a_task_that_is_killed_or_signaled_is_queued_again_though_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, restarts: int, again: bool
) -> None:
    asked = tmp_path / "asked"
    for name, text in (("sbatch", "echo 7"), ("scontrol", f"echo $@ > {asked}"), ("python", program)):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    folder = RoiRun.create(tmp_path / "results", {"engine": "slurm"}, [Unit("prepare", "d", "")])
    SlurmEngine({}, {}).run(folder, Display())
    count = {"SLURM_RESTART_COUNT": str(restarts), "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
    script = ["bash", folder.path / "jobs" / "shards.sh"]
    done = subprocess.run(script, env={**os.environ, **count}, capture_output=True, text=True, timeout=50)
    assert done.returncode == (0 if again else 1)
    assert asked.exists() == again
    assert ("run the command again to continue" in done.stdout) == (not again)


def test_a_damaged_entry_in_the_last_run_is_reported_and_the_next_run_goes_on(
    plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = plan.results / "elsewhere"
    for name, damage in (
        ("claims", lambda path: path.symlink_to(elsewhere)),
        ("driver.json", os.mkfifo),
        ("slurm.json", Path.mkdir),
        ("plan.json", lambda path: (path.unlink(), os.mkfifo(path))),
    ):
        folder = RoiRun.create(plan.results, {"engine": "local"}, [Unit("prepare", "d", "")])
        damage(folder.path / name)
        check_free(plan.results, {"engine": "ray"})
        assert not at_work(folder)
    assert "is damaged and was skipped" in caplog.text


def test_status_names_a_worker_that_shows_no_sign_of_life(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    units = [Unit("prepare", "tiles", ""), Unit("prepare", "others", "")]
    folder = RoiRun.create(tmp_path, {"engine": "slurm"}, units)
    unit, finished = folder.units()
    folder.finish(finished)
    claim = folder.claim(unit)
    assert claim is not None
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "another worker takes over" not in said
    assert "left at the pace so far" in said
    path = folder.path / "claims" / f"{unit.id}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "began": time.time() - 2 * HUNG}))
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "began 120 min ago" in said
    assert "without a sign of life" not in said
    os.utime(path, (1.0, 1.0))
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "without a sign of life; if it hangs, end that process" in said
    assert "left at the pace so far" not in said
    assert folder.claim(unit) is not None
    assert not claim.holds()


def test_encoders_share_a_device_as_far_as_its_memory_goes() -> None:
    share = extraction.PARAMETERS * 0.4
    wanted: Any = [SimpleNamespace(pixels=pixels, parameters=share) for pixels in "ababaa"]
    assert extraction._teams(wanted) == [{0, 2}, {1, 3}, {4, 5}]


def test_a_submission_has_no_key_and_its_jobs_are_found_by_the_name_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, asked = tmp_path / "bin", tmp_path / "asked"
    commands.mkdir()
    for name, text in (
        ("sbatch", f"env > {tmp_path / 'environment'}; echo 7; echo $@ > {asked}"),
        ("squeue", f"echo asked >> {tmp_path / 'squeue'}; for name in ${{4//,/ }}; do echo $name 7; done"),
    ):
        (commands / name).write_text(f"#!/bin/bash\n{text}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-0123456789")
    folder = RoiRun.create(tmp_path / "results", {"engine": "slurm"}, [Unit("prepare", "d", "")])
    keys = {"OPENAI_API_KEY": "sk-very-secret-0123456789"}
    SlurmEngine({}, {}, environment=keys).run(folder, Display())
    assert "very-secret" not in (tmp_path / "environment").read_text() + asked.read_text()
    assert (folder.path / "keys.json").stat().st_mode & 0o777 == 0o600
    assert folder.path.name in asked.read_text()
    assert at_work(folder)
    assert (tmp_path / "squeue").read_text() == "asked\n"
    monkeypatch.delenv("OPENAI_API_KEY")
    take_keys(folder)
    assert os.environ["OPENAI_API_KEY"] == keys["OPENAI_API_KEY"]
    remove_keys(folder)
    assert not (folder.path / "keys.json").exists()


@pytest.mark.parametrize("cpus", [["x86_64 avx2"], ["x86_64 avx2", "x86_64 avx512f"]])
def test_the_results_say_when_cpus_of_several_kinds_were_used(tmp_path: Path, cpus: list[str]) -> None:
    units = [Unit("evaluate", "d", str(number), {"preset": "uni"}) for number in range(4)]
    folder = RoiRun.create(tmp_path, {}, units)
    for number, unit in enumerate(units):
        folder.finish(unit, outcome="evaluated", cpu=cpus[number % len(cpus)])
    assert outcome_of(folder, tmp_path).evaluated == 4
    assert [json.loads(path.read_text()) for path in tmp_path.glob("cpus.json")] == [cpus][: len(cpus) - 1]


@pytest.mark.slow
@pytest.mark.parametrize("on_bad_image", ["stop", "skip"])
def test_every_engine_reports_the_same_bad_images(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_same: Same, on_bad_image: str
) -> None:
    source = tmp_path / "tiles"
    shutil.copytree(plan.datasets[0].source.parent, source)
    table = source / "tiles.csv"
    table.write_text(table.read_text().replace(str(plan.datasets[0].source.parent), str(source)))
    (source / "7.png").unlink()
    for number in (20, 50):  # in different shards
        (source / f"{number}.png").write_bytes(b"no image %d" % number)
    plan = replace(
        plan,
        datasets=(replace(plan.datasets[0], source=table),),
        settings=replace(plan.settings, on_bad_image=on_bad_image),
    )
    reasons, folders = [], []
    for number, engine in enumerate((None, TwoWorkers())):
        monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / f"cache-{number}"))
        done = run_benchmark(plan, engine=engine)
        reasons.append([failure.reason for failure in done.outcome.failures])
        folders.append(plan.results.rename(tmp_path / f"results-{number}"))
    assert reasons[0] == reasons[1]
    if on_bad_image == "skip":
        assert not reasons[0]
        assert_same(*folders)
    else:
        assert len(reasons[0]) == 2
        assert all(f"{number}.png" in reason for reason in reasons[0] for number in (7, 20, 50))
