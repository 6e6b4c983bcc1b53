"""Recorded episodes are played again, compared, and remembered."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from histobench.mint.configs.datasets import select_datasets
from histobench.mint.results.recording import Recording, read_recordings
from histobench.mint.sandbox import SandboxPool, open_sandbox, shared_pool
from histobench.mint.tasks import ReasoningTask
from histobench.mint.tools.python_tool import PythonREPL
from reproduction import reproduce
from reproduction.gates import (
    NEWER,
    Gate,
    RecordedREPL,
    Replayed,
    environment_opener,
    execution_gates,
    replay,
    same,
    sample,
)
from reproduction.reproduce import main


def _record(task_id: int = 0, observation: str = "Out[1]: 5", *, success: bool = True) -> dict:
    execute = {
        "assistant": "<execute>2 + 3</execute>",
        "kind": "execute",
        "observation": observation,
        "steps_left": 4,
        "proposals_left": 2,
    }
    answer = {"assistant": "<solution>5</solution>", "kind": "proposal", "verdict": "correct"}
    return {
        "model": "m",
        "task": "gsm8k",
        "task_id": task_id,
        "settings": {"max_steps": 5, "max_propose": 2, "feedback": None, "first_cell_number": 1},
        "turns": [execute, answer],
        "success": success,
        "terminate_reason": "task_success" if success else "max_propose_steps",
        "counts": {"propose_solution": 1, "use_tool": 1, "invalid_action": 0},
    }


def _write(folder: Path, *records: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "m.k5.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return folder


@pytest.fixture
def recordings(tmp_path: Path) -> list[Recording]:
    """Two episodes: one as it is, one whose record shows something else."""
    folder = _write(tmp_path / "replay", _record(0), _record(1, "Out[1]: 6", success=False))
    return list(read_recordings(folder))


RULER = "-" * 75 + "\n"
TASKS = {("gsm8k", number): ReasoningTask(id=number, prompt="2 + 3?", reference="5") for number in (0, 1)}


@pytest.mark.slow
@pytest.mark.usefixtures("needs_sandbox")
def test_an_episode_is_played_again_and_compared(recordings: list[Recording]) -> None:
    good, bad = (replay(recording, environment_opener(TASKS, {})) for recording in recordings)
    assert (good.agrees, good.observations, good.same) == (True, 1, 1)
    assert (bad.agrees, bad.same) == (False, 0)
    assert bad.differences == ((1, "Out[1]: 6", "Out[1]: 5"),)
    assert TASKS["gsm8k", 0].rule == "strict"  # the shared task is left as it was


def test_rates_are_held_against_what_is_required(recordings: list[Recording]) -> None:
    played = [
        Replayed(recordings[0], True, 100, ((1, "5", "6"),)),
        Replayed(recordings[1], True, 100, ((1, "5", "6"),) * 2),
    ]
    gates = {gate.subject.strip(): gate for gate in execution_gates(played, ["gsm8k", "math"])}
    assert gates["execution: success"].verdict == "FAIL"
    assert gates["execution: observations without alfworld"].verdict == "PASS"
    assert gates["gsm8k: observations"].verdict == "FAIL"
    assert "math: success" not in gates
    assert Gate("nothing", 0, 0, 1.0).verdict == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<f at 0x7f00>", "<f at 0x55>"),
        ("Out[2]: 5", "Out[3]: 5"),
        ("File /usr/lib/python3.8/json/decoder.py:355", "File /opt/py/json/decoder.py:12"),
        (f"5\n{RULER}KeyError    Traceback (most recent)\nCell In[3]", f"5\n{RULER}KeyError: 1"),
        ("  Cell In[1], line 2\n    x = = 1\nTabError: old", "  Cell In[7], line 2\n    ^\nSyntaxError: new"),
        (f"{RULER}SyntaxError   Traceback", "Traceback (most):\n  Cell In[2]\n    2 +\nSyntaxError: words"),
        ("1" * 900 + " /a/long/path/x.py" + "...\n[Output Truncated]", "1" * 900 + "...\n[Output Truncated]"),
    ],
)
def test_what_depends_on_the_machine_does_not_count(one: str, other: str) -> None:
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5", "6"),
        ("Out[2]: 5", "Out[2]: 6"),
        ("line 1", "line 2"),
        ("0x1f", "0x2f"),
        (f"5\n{RULER}KeyError: 1", f"6\n{RULER}KeyError: 1"),
        (f"{RULER}KeyError    Traceback", f"{RULER}ValueError    Traceback"),
        ("1" * 400 + "...\n[Output Truncated]", "1" * 300 + "...\n[Output Truncated]"),
    ],
)
def test_what_the_code_did_counts(one: str, other: str) -> None:
    assert not same(one, other)


@pytest.mark.slow
@pytest.mark.usefixtures("needs_sandbox")
def test_the_command_prints_the_gates_and_fails_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "open_sandbox", lambda *_, **__: nullcontext(shared_pool()))
    data = tmp_path / "processed" / "gsm8k"
    data.mkdir(parents=True)
    tasks = [{"id": number, "prompt": "2 + 3?", "reference": "5"} for number in (0, 1)]
    (data / "test_prompts.json").write_text("\n".join(map(json.dumps, tasks)), encoding="utf-8")
    arguments = ["--tasks", "gsm8k", "--workers", "1"]
    folder = _write(tmp_path / "good", _record(0), _record(1))
    assert main([*arguments, str(folder)]) == 0
    assert capsys.readouterr().out.count("PASS") == 4
    folder = _write(tmp_path / "bad", _record(0), _record(1, "Out[1]: 6"))
    assert main([*arguments, str(folder)]) == 1
    assert "FAIL" in capsys.readouterr().out
    assert main([*arguments, str(folder), "--models", "n"]) == 2


@pytest.mark.usefixtures("needs_sandbox")
@pytest.mark.slow
def test_a_sample_of_the_public_recordings_agrees(shared_dir: Path) -> None:
    datasets = select_datasets(["reasoning", "code_generation"])
    tasks = {
        (dataset.name, task.task_id): task
        for dataset in datasets
        for task in dataset.load(shared_dir / "mint" / "processed")
    }
    # Flags mark what cannot come out the same: time-outs, random numbers, the live encyclopedia of 2023.
    plain = [
        recording
        for recording in read_recordings(shared_dir / "mint" / "replay")
        if not recording.flags and (recording.task, recording.task_id) in tasks
    ]
    chosen = sample(plain, 1)
    assert len({(recording.run, recording.task) for recording in chosen}) == len(chosen) > 35
    opener = environment_opener(tasks, {}, pool=shared_pool())
    played = [replay(recording, opener) for recording in chosen]
    assert [episode.recording.name for episode in played if not episode.agrees] == []
    assert sum(episode.observations for episode in played) > 60
    assert [episode.differences for episode in played if episode.differences] == []


@pytest.fixture(scope="module")
def ipython_pool(needs_sandbox: None) -> Iterator[SandboxPool]:
    """Sessions with IPython, nothing preloaded."""
    pytest.importorskip("IPython")
    with open_sandbox(preload=(), shell="ipython") as pool:
        yield pool


@pytest.mark.slow
def test_cells_run_as_in_python_38(ipython_pool: SandboxPool) -> None:
    tool = RecordedREPL(PythonREPL(pool=ipython_pool), 2)
    assert tool("1 + 1") == "Out[2]: 2\n"
    assert "Cell In[3], line 1" in tool("1 / 0")
    assert tool("_2 + len(In)") == "Out[4]: 7\n"
    assert "is not subscriptable" in tool("def f(x: list[int]): pass")
    assert "ImportError" in tool("from math import lcm")
    assert "ended during this cell" in tool("import os\nos._exit(1)")
    assert "ImportError" in tool("from math import lcm")
    tool.close()


@pytest.mark.nightly
def test_runs_of_a_newer_python_differ_in_the_number_of_the_first_cell_alone(
    ipython_pool: SandboxPool,
) -> None:
    tool = RecordedREPL(PythonREPL(pool=ipython_pool), 2, NEWER)
    assert tool("x: list[int] = [1]\nx") == "Out[2]: [1]\n"
    tool.close()
