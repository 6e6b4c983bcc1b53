"""Several processes play one run: together they play every episode once, and keep one limit of cost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.mint.agents.costs import Ledger
from histobench.mint.outcomes import read_outcomes
from histobench.mint.results.stored_episode import WRITERS, find_result_files
from histobench.mint.runs import episode_queue
from histobench.mint.runs.episode_queue import EpisodeCounter, PendingEpisode, Run, place_of, run_episode
from histobench.mint.runs.episode_run import RunContext
from histobench.mint.runs.parted_run import PartedRun, count, plan_parts
from histobench.mint.runs.play import Played, load_cells, no_display
from histobench.mint.runs.run_options import SPENT, RunOptions
from histobench.mint.runs.writers import Part, open_writer, spent_by_writers
from histobench.work import clusters
from histobench.work.engines import RayEngine, RayWorker

pytestmark = pytest.mark.slow

EPISODES = 30
PARTS = 3


def play_part(run: PartedRun, number: int) -> Played:
    """What a worker does that takes this unit."""
    options, part, spent, more = run.spec(run.units()[number])
    return run.play_part(options, more, open_writer(run.results, part, spent_before=spent), no_display)


@pytest.fixture
def options(
    tmp_path: Path, make_data: Callable[[int], Path], make_recording: Callable[[int], Path], one_sandbox: None
) -> RunOptions:
    """A run of thirty recorded episodes."""
    return RunOptions(
        agent=f"replay:{make_recording(EPISODES)}",
        tasks="gsm8k",
        data=str(make_data(EPISODES)),
        output=str(tmp_path / "parted"),
        concurrency=2,
    )


def test_the_parts_of_a_run_share_its_episodes_out() -> None:
    shares = [[Part(number, 4).has("gpt/F=None", task) for task in range(200)] for number in range(4)]
    assert all(sum(column) == 1 for column in zip(*shares, strict=True))
    assert min(map(sum, shares)) > 25


def test_a_worker_knows_what_the_others_have_paid_and_hold_back(tmp_path: Path) -> None:
    writers = [open_writer(tmp_path, Part(number, 3)) for number in range(3)]
    for number, writer in enumerate(writers):
        writer.keep_spent(10.0**number, 2 * 10.0**number)
    assert writers[1].spent_by_others() == (101.0, 202.0)


def test_the_time_left_follows_from_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(monotonic=lambda: now.seconds, seconds=100.0)
    monkeypatch.setattr(episode_queue, "time", now)
    counter = EpisodeCounter(10)
    counter.add_earlier(successes=1, failures=1)
    for now.seconds in (103.0, 109.0):
        counter.add(done=1, successes=1, tokens=5)
    counter.add(failures=1)
    standing = counter.standing(spent=2.0, unpriced=3)
    assert (standing.seconds, standing.seconds_left, standing.success_rate) == (9.0, 4.5 * 5, 75.0)


def test_workers_together_play_what_one_process_plays(lab: Any, options: RunOptions) -> None:
    arguments = ["--agent", options.agent, "--tasks", "gsm8k", "--data", options.data]
    assert main(["mint", "run", *map(str, arguments), "-o", str(lab.tmp_path / "whole")]) == 0
    run = plan_parts(options, PARTS)
    loaded, _ = load_cells(options)
    for number in range(PARTS):
        play_part(run, number)
        assert 0 < count(run, loaded).standing().done <= EPISODES
    assert lab.script.totals(run.results) == lab.script.totals(lab.tmp_path / "whole")
    # Another number of workers, and one process, find nothing left to do.
    again = plan_parts(options, 2)
    assert not play_part(again, 0).outcome.standing.done < EPISODES / 4
    assert main(["mint", "run", *map(str, arguments), "-o", str(run.results)]) == 0
    assert lab.script.totals(run.results) == lab.script.totals(lab.tmp_path / "whole")
    assert len(list(read_outcomes(run.results))) == EPISODES


@pytest.mark.nightly
def test_a_worker_that_is_killed_is_followed_by_one_that_plays_the_rest(
    lab: Any, options: RunOptions
) -> None:
    run = plan_parts(options, 2)
    program = "import sys; from histobench.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, *run.worker_arguments()]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    beside = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waited, deadline = threading.Event(), time.monotonic() + 600
    while (
        time.monotonic() < deadline
        and first.poll() is None
        and not any(path.stat().st_size for path in run.results.rglob("?of2-*/**/*.jsonl"))
    ):
        waited.wait(0.01)
    first.kill()
    first.wait()
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        assert beside.wait(timeout=600) == 0
    finally:
        beside.kill()
    played, _ = lab.script.totals(run.results)
    assert sorted(played) == sorted(map(str, range(EPISODES)))


@pytest.mark.parametrize("is_told", [True, False])
def test_an_episode_that_failed_with_its_sandbox_counts_unless_the_run_is_being_ended(
    is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm ends all processes of a job at once; the sandbox may be gone before this process knows."""
    pool = SimpleNamespace(pid=7, backend="none", is_lost_since=lambda pid: pid == 7)
    kept: list[object] = []
    store = SimpleNamespace(add=lambda *episode: kept.append(episode), describe=None)
    run = Run([], tmp_path, open_player=lambda *_: None)  # type: ignore[arg-type, return-value]
    run.pending = [PendingEpisode(None, None, 1, store, None, None)]  # type: ignore[arg-type]
    failed = SimpleNamespace(
        success=False, episode={}, details={}, images=(), usage=SimpleNamespace(total_tokens=0)
    )
    monkeypatch.setattr(episode_queue, "run_episode", lambda *_, **__: failed)
    monkeypatch.setattr(episode_queue, "LAST_WORDS", 60.0 if is_told else 0.01)
    if is_told:
        monkeypatch.setattr(episode_queue, "wait", lambda *_: sys.exit("SIGTERM"))
    with pytest.raises(SystemExit) if is_told else nullcontext():
        run.carry_out(RunContext(pool, None, None, threading.Event()))  # type: ignore[arg-type]
    assert len(kept) == (0 if is_told else 1)


def test_what_two_workers_have_played_counts_once(options: RunOptions) -> None:
    run = plan_parts(options, 1)
    play_part(run, 0)
    (folder,) = (run.results / WRITERS).glob("1of1-*")
    shutil.copytree(folder, folder.with_name("1of1-00000000"))
    assert len(find_result_files(run.results)) == 3  # the third is that of runs in one process, and empty
    outcomes = list(read_outcomes(run.results))
    assert sorted(outcome.task_id for outcome in outcomes) == sorted(map(str, range(EPISODES)))


def test_a_limit_of_cost_holds_for_all_workers_together(lab: Any, one_sandbox: None) -> None:
    lab.server.answer = lambda body, number: lab.replies.chat(
        lab.script.answer(body), read=1_000_000, written=0
    )
    prices = lab.tmp_path / "prices.yaml"
    prices.write_text("scripted: [1.0, 0.0]\n")  # a dollar for every answer
    options = RunOptions(
        agent=f"openai:scripted@{lab.server.url}",
        tasks="gsm8k",
        data=str(lab.make_data(60)),
        output=str(lab.tmp_path / "out"),
        concurrency=1,
        max_cost=12.0,
        prices=str(prices),
    )
    run = plan_parts(options, PARTS)
    stopped: list[str | None] = []

    def work(number: int) -> None:
        stopped.append(play_part(run, number).outcome.stopped)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(PARTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert len(stopped) == PARTS
    assert all(why is not None and "of at most $12.0000" in why for why in stopped)
    assert 12.0 <= spent_by_writers(run.results) <= 12.0 + PARTS  # each may have had one answer under way
    assert len(lab.server.requests) == spent_by_writers(run.results)
    # It holds for whoever goes on, too.
    assert main(["mint", "run", *_flags(options)]) == 1
    assert len(lab.server.requests) == spent_by_writers(run.results)
    Ledger(run.results / SPENT).keep(3.0, 0.0)
    assert plan_parts(replace(options, max_cost=99.0), PARTS).spec()[2] == 3.0  # theirs is counted as theirs


def _flags(options: RunOptions) -> list[str]:
    names = ("agent", "tasks", "data", "output", "max_cost", "prices")
    return [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]


def test_while_workers_play_no_other_run_does(
    options: RunOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    run = plan_parts(options, 2)
    claim = run.claim(run.units()[0])
    assert claim is not None
    try:
        with pytest.raises(HistobenchError, match="is being played by 1 workers"):
            plan_parts(options, 2)
        flags = ["--agent", str(options.agent), "--tasks", "gsm8k", "--data", str(options.data)]
        assert main(["mint", "run", *flags, "-o", str(run.results)]) == 2
        assert "is being played by 1 workers" in capsys.readouterr().err
    finally:
        claim.release()
    plan_parts(options, 2)


def test_a_node_that_cannot_play_uses_up_one_part_and_no_more(lab: Any, options: RunOptions) -> None:
    run = plan_parts(options, PARTS)
    data = Path(str(options.data))
    data.rename(lab.tmp_path / "gone")
    assert main(run.worker_arguments()) == 2
    (lab.tmp_path / "gone").rename(data)
    assert main(run.worker_arguments()) == 0
    done = count(run, load_cells(options)[0]).standing().done
    assert EPISODES / 3 < done < EPISODES
    assert len(run.problems()) == 1


def test_a_part_with_a_defect_is_tried_once_and_the_others_are_played(lab: Any, options: RunOptions) -> None:
    run = plan_parts(options, PARTS)
    loaded, _ = load_cells(options)
    place = place_of(loaded[0][0].cell, 1)
    bad = next(task.task_id for task in loaded[0][1] if Part(0, PARTS).has(place, task.task_id))
    asked = []

    def play(planned: Any, task: Any, *rest: Any, **more: Any) -> Any:
        asked.append(task.task_id)
        if task.task_id == bad:
            raise KeyError("a defect of this task")
        return run_episode(planned, task, *rest, **more)

    lab.monkeypatch.setattr(episode_queue, "run_episode", play)
    assert main(run.worker_arguments()) not in (0, 143)
    assert main(run.worker_arguments()) == 0
    assert asked.count(bad) == 1
    assert count(run, loaded).standing().done > EPISODES / 3
    assert "unexpected KeyError" in run.problems()[0]


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_part_that_a_live_worker_plays_is_not_played_on_ray_as_well(
    elsewhere: bool, options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartedRun, "patience", 0.3)
    run = plan_parts(options, 1)
    (unit,) = run.units()
    claim = run.claim(unit)
    assert claim is not None
    if not elsewhere:
        claim.release()
    RayWorker(PartedRun, str(run.path), run.digest, os.getcwd()).work(run.kinds)
    claim.release()
    assert (run.output(unit.id) is None) == elsewhere


def test_of_two_commands_at_once_one_begins_a_run(lab: Any, options: RunOptions) -> None:
    lab.monkeypatch.setattr(RayEngine, "check", lambda engine: None)
    output = Path(str(options.output))
    program = "import sys; from pathlib import Path; from histobench.mint.runs.writers import beginning\n"
    program += "with beginning(Path(sys.argv[1])):\n    print('begun', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(output)]
    flags = ["--agent", str(options.agent), "--tasks", "gsm8k", "--data", str(options.data)]
    flags += ["-o", str(output)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"begun\n"
        for engine in ([], ["--engine", "ray"]):
            assert main(["mint", "run", *flags, *engine]) == 2
            assert "another run begins in" in lab.capsys.readouterr().err
    assert main(["mint", "run", *flags, "--limit", "1"]) == 0


def test_slurm_gets_a_task_for_each_part_with_all_options_and_status_shows_them(
    lab: Any, options: RunOptions
) -> None:
    queued: list[tuple[str, int, dict[str, str]]] = []

    def submit(name: str, command: list[str], *, tasks: int, options: dict[str, str], **_: Any) -> str:
        assert command[:2] == ["worker", "mint"]
        queued.append((name, tasks, options))
        return "7"

    lab.monkeypatch.setattr(clusters, "submit_array", submit)
    lab.monkeypatch.setattr(clusters, "check_options", lambda options: None)
    flags = ["--agent", str(options.agent), "--tasks", "gsm8k", "--data", str(options.data)]
    flags += ["-o", str(options.output), "--engine", "slurm", "--slurm", "gres=gpu:1,partition=p,tasks=5"]
    assert main(["mint", "run", *flags]) == 0
    assert queued == [("agents", 5, {"gres": "gpu:1", "partition": "p"})]
    assert "5 tasks play 30 episodes; logs in " in lab.capsys.readouterr().out
    assert main(["status", str(options.output)]) == 0
    shown = lab.capsys.readouterr().out
    assert "5 waiting" in shown
    assert "gsm8k" in shown


@pytest.mark.parametrize(
    ("squeue", "said"),
    [
        ("echo $4 7; echo $4 7", "job 7 of Slurm plays .* with 2 tasks"),
        ("true", None),
        ("echo 'slurm_load_jobs error: Unable to contact controller' >&2; exit 1", "cannot ask Slurm"),
    ],
)
def test_jobs_that_are_queued_count_as_workers(
    lab: Any, squeue: str, said: str | None, options: RunOptions
) -> None:
    run = plan_parts(options, 2, engine="slurm")
    (lab.tmp_path / "bin").mkdir()
    (lab.tmp_path / "bin" / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
    (lab.tmp_path / "bin" / "squeue").chmod(0o755)
    lab.monkeypatch.setenv("PATH", f"{lab.tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    flags = ["--agent", str(options.agent), "--tasks", "gsm8k", "--data", str(options.data), "--limit", "2"]
    assert main(["mint", "run", *flags, "-o", str(run.results)]) == (0 if said is None else 2)
    if said is None:
        plan_parts(options, 2)
    else:
        with pytest.raises(HistobenchError, match=said):
            plan_parts(options, 2)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"agent": "human"}, "a human plays in one terminal"),
        ({"agent": "local:", "feedback": "human"}, "a human plays in one terminal"),
        ({"agent": "openai:m@http://127.0.0.1:1/v1?subscription-key=secret"}, "an address with a key"),
    ],
)
def test_what_cannot_go_to_other_machines_is_refused_before_anything_is_written(
    changed: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(HistobenchError, match=said) as caught:
        plan_parts(RunOptions(output=str(tmp_path / "out"), **changed), 2)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_no_key_is_written_down_for_the_workers_not_even_of_an_expert_that_no_cell_asks(
    options: RunOptions, tmp_path: Path
) -> None:
    expert = "openai:E@http://me:hunter2@host/v1"
    with pytest.raises(HistobenchError, match="not written down for other machines"):
        plan_parts(options, 2, more={"expert": expert})
    assert not [path for path in tmp_path.rglob("*.json") if "hunter2" in path.read_text()]
