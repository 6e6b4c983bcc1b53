"""Fixtures of the language-model track's tests.

A real HTTP server that misbehaves on demand, small datasets, and a scripted model that answers them.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chat_server import ChatServer, Reply, chat

QUESTION = "What is {number} + 1? Answer with a number."
#: Which of five ways a question is answered, by its last digit: few run code, which is slow.
WAYS = (0, 2, 3, 4, 2, 0, 3, 4, 0, 1)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    loopback = ChatServer()
    yield loopback
    loopback.close()


@pytest.fixture
def replies() -> SimpleNamespace:
    return SimpleNamespace(Reply=Reply, chat=chat)


@pytest.fixture
def make_data(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder of datasets in which gsm8k has `n` easy questions."""

    def make(n: int, name: str = "gsm8k") -> Path:
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True, exist_ok=True)
        tasks = [{"id": i, "prompt": QUESTION.format(number=i), "reference": str(i + 1)} for i in range(n)]
        (folder / "test_prompts.json").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        return tmp_path / "data"

    return make


def scripted_turns(number: int) -> list[str]:
    """What the model says: it answers at once, computes first, is wrong, or confused."""
    answer = f"<solution>{number + 1}</solution>"
    wrong = "<solution>-7</solution>"
    code = f"<execute>print({number} + 1)</execute>"
    ways = ([answer], [code, answer], [wrong, wrong], ["Hm.", answer], [wrong, answer])
    return list(ways[WAYS[number % 10]])


def scripted_answer(body: dict[str, Any]) -> str:
    """The scripted model, from the conversation alone."""
    talk = body["messages"]
    number = int(re.findall(r"What is (\d+) \+ 1\?", talk[0]["content"])[-1])
    turn = sum(message["role"] == "assistant" for message in talk)
    turns = scripted_turns(number)
    return turns[min(turn, len(turns) - 1)]


@pytest.fixture
def make_recording(tmp_path: Path) -> Callable[[int], Path]:
    """Writes recordings of `n` episodes of those questions."""

    def make(n: int) -> Path:
        path = tmp_path / "scripted.k5.jsonl.gz"
        with gzip.open(path, "wt") as file:
            for number in range(n):
                record = {
                    "family": "reasoning",
                    "task": "gsm8k",
                    "task_id": number,
                    "model": "scripted",
                    "settings": {"max_steps": 5, "max_propose": 2},
                    "turns": [{"assistant": text, "kind": "?"} for text in scripted_turns(number)],
                    "success": True,
                    "terminate_reason": "task_success",
                    "counts": {"propose_solution": 0, "use_tool": 0, "invalid_action": 0},
                }
                file.write(json.dumps(record) + "\n")
        return path

    return make


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Every line of every results file."""
    files = sorted(folder.rglob("results.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def totals(folder: Path) -> tuple[list[str], dict[str, int]]:
    """Task ids in order, and sums over all episodes."""
    lines = read_lines(folder)
    sums: dict[str, int] = {"success": 0}
    for line in lines:
        sums["success"] += line["state"]["success"]
        for counter in ("agent_action_count", "token_counter"):
            for name, value in line["state"][counter].items():
                sums[name] = sums.get(name, 0) + value
        reason = line["state"]["terminate_reason"]
        sums[reason] = sums.get(reason, 0) + 1
    return sorted(str(line["task"]["task_id"]) for line in lines), sums


@pytest.fixture(scope="session")
def small_sandbox(needs_sandbox: None) -> Iterator[Any]:
    """One sandbox for the tests of a process; scripted models need no scientific packages."""
    from histobench.mint.sandbox import open_sandbox

    with open_sandbox(preload=()) as pool:
        yield pool


@pytest.fixture
def one_sandbox(small_sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs inside this process share one sandbox: starting one takes seconds."""
    import histobench.mint.sandbox as sandbox

    monkeypatch.setattr(sandbox, "open_sandbox", lambda backend, **_: contextlib.nullcontext(small_sandbox))


@pytest.fixture
def script(needs_sandbox: None) -> SimpleNamespace:
    return SimpleNamespace(answer=scripted_answer, turns=scripted_turns, lines=read_lines, totals=totals)


@pytest.fixture
def lab(
    tmp_path: Path, make_data: Any, make_recording: Any, server: Any, replies: Any, script: Any, capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> SimpleNamespace:  # fmt: skip
    """What a run of agents needs, under the names of its fixtures."""
    return SimpleNamespace(**locals())
