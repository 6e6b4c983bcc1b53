"""A grammar for servers of llama.cpp: well-formed actions, and a solution in the last step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from histobench.cli.main import main
from histobench.mint.envs.action import ACTION_GRAMMAR, SOLUTION_GRAMMAR

pytestmark = pytest.mark.usefixtures("one_sandbox")


def test_the_last_step_gets_the_grammar_of_a_solution(
    server: Any, replies: Any, make_data: Callable[[int], Path], tmp_path: Path
) -> None:
    server.answer = lambda body, number: replies.chat("<execute>1</execute>")
    arguments = [
        "--tasks",
        "gsm8k",
        "--data",
        str(make_data(1)),
        "--k",
        "3",
        "--output",
        str(tmp_path / "out"),
    ]
    assert main(["mint", "run", "--agent", f"openai:m@{server.url}", "--constrain", *arguments]) == 0
    sent = [body["grammar"] for body in server.requests]
    assert sent == [ACTION_GRAMMAR, ACTION_GRAMMAR, SOLUTION_GRAMMAR]


def test_native_calls_are_required_instead_of_a_grammar(
    server: Any, replies: Any, make_data: Callable[[int], Path], tmp_path: Path
) -> None:
    # A small model behind llama.cpp wrote its calls as text in 40 of 40 episodes.
    server.answer = lambda body, number: replies.chat("I would call propose_solution.")
    arguments = ["--tasks", "gsm8k", "--data", str(make_data(1)), "--output", str(tmp_path / "out")]
    given = ["--agent", f"openai:m@{server.url}", "--calls", "native", "--k", "2", *arguments]
    assert main(["mint", "run", "--constrain", *given]) == 0
    assert [(body["tool_choice"], "grammar" in body) for body in server.requests] == [("required", False)] * 2
