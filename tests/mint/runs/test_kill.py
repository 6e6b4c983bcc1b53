"""`kill -9` at random moments: after restarts every episode is there once, and the sums are the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.nightly

EPISODES = 200
KILLS = 4


def command(recording: Path, data: Path, output: Path) -> list[str]:
    program = "import sys; from histobench.cli.main import main; sys.exit(main())"
    arguments = ["--agent", f"replay:{recording}", "--tasks", "gsm8k", "--data", str(data), "-o", str(output)]
    return [sys.executable, "-c", program, "mint", "run", *arguments, "--concurrency", "4"]


def test_a_killed_run_goes_on_where_it_was(lab: Any) -> None:
    data, recording = lab.make_data(EPISODES), lab.make_recording(EPISODES)
    subprocess.run(command(recording, data, lab.tmp_path / "whole"), check=True, capture_output=True)
    expected = lab.script.totals(lab.tmp_path / "whole")
    assert len(expected[0]) == EPISODES
    killed = lab.tmp_path / "killed"
    moments = sorted(random.Random(20).sample(range(1, EPISODES // 2), KILLS))
    kills = [kill_after(moment, command(recording, data, killed), killed) for moment in moments]
    assert any(kills)
    with next(killed.rglob("results.jsonl")).open("ab") as file:  # what a kill inside a write would leave
        file.write(b'{"state": {"history": [{"role"')
    subprocess.run(command(recording, data, killed), check=True, capture_output=True)
    assert lab.script.totals(killed) == expected


def test_a_request_to_end_keeps_finished_episodes_and_exits_with_143(lab: Any) -> None:
    data, recording, output = lab.make_data(EPISODES), lab.make_recording(EPISODES), lab.tmp_path / "out"
    process = subprocess.Popen(
        command(recording, data, output),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.poll() is None and lines_in(output) < 10:
        time.sleep(0.002)
    process.terminate()
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "Traceback" not in said
    assert_ends(process.pid)
    kept = lab.script.totals(output)[0]
    assert 10 <= len(kept) < EPISODES
    before = next(output.rglob("results.jsonl")).read_bytes()
    subprocess.run(command(recording, data, output), check=True, capture_output=True)
    assert len(lab.script.totals(output)[0]) == EPISODES
    assert next(output.rglob("results.jsonl")).read_bytes().startswith(before)  # nothing is played again


def kill_after(episodes: int, arguments: list[str], output: Path) -> bool:
    """Start a run and kill it, and nothing else, shortly after so many episodes are on disk.

    False where a busy machine let it come to its end before this process had a turn.
    """
    process = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 600
    while process.poll() is None and lines_in(output) < episodes:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(random.uniform(0, 0.02))  # anywhere inside an episode, a write, a sync
    process.kill()
    said = process.communicate()[1].decode()
    assert process.returncode in (-signal.SIGKILL, 0), said
    assert_ends(process.pid)
    return process.returncode != 0


def assert_ends(session: int) -> None:
    """The sandbox's processes do not outlive the run that was killed."""
    deadline = time.monotonic() + 300
    while living := [pid for pid in os.listdir("/proc") if pid.isdigit() and session_of(int(pid)) == session]:
        assert time.monotonic() < deadline, living
        time.sleep(0.05)


def session_of(pid: int) -> int | None:
    """The session of a process that runs; a dead one that nobody has waited for has none."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return None
    return None if state == "Z" else int(session)


def lines_in(output: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in output.rglob("results.jsonl"))
