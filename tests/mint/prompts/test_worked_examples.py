"""The worked examples show what really happens: their code is run and every observation compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from histobench.mint.envs.action import classify
from histobench.mint.sandbox import SandboxPool
from histobench.mint.tasks.base import EXAMPLES
from histobench.mint.tools.base import Tool
from histobench.mint.tools.python_tool import PythonREPL
from histobench.mint.tools.wikipedia_search import FolderIndex, WikipediaQueryRun

pytestmark = pytest.mark.slow

GOALS = ["put", "clean", "heat", "cool", "examine", "puttwo"]
KINDS = ["reasoning", "humaneval", "mbpp", *(f"alfworld/{goal}" for goal in GOALS)]
_BLOCK = re.compile(
    r"^(Task|Assistant|Observation|Expert feedback):\n(.*?)"
    r"(?=\n\n(?:Assistant|Observation|Expert feedback):\n|\Z)",
    re.DOTALL | re.MULTILINE,
)


def _blocks(kind: str, file: str) -> list[tuple[str, str]]:
    text = (EXAMPLES / kind / file).read_text(encoding="utf-8").removesuffix("\n")
    return [(match[1], match[2]) for match in _BLOCK.finditer(text)]


def _check_observations(blocks: list[tuple[str, str]], tools: Sequence[Tool], pool: SandboxPool) -> int:
    session = PythonREPL({tool.name: tool for tool in tools}, pool=pool)
    seen, compared = "", 0
    for role, text in blocks:
        if role == "Assistant":
            action = classify(text)
            assert action.kind in ("execute", "proposal")
            seen = session(action.content).strip() if action.kind == "execute" else ""
        elif role == "Observation":
            assert text == seen
            compared += 1
    session.close()
    return compared


def test_the_reasoning_example_is_real(pool: SandboxPool) -> None:
    search = WikipediaQueryRun(FolderIndex(Path(__file__).parent / "articles"))
    assert _check_observations(_blocks("reasoning", "with_tool.txt"), [search], pool) == 3


@pytest.mark.parametrize("kind", ["humaneval", "mbpp"])
def test_the_programming_examples_are_real(kind: str, pool: SandboxPool) -> None:
    blocks = _blocks(kind, "with_tool.txt")
    assert _check_observations(blocks, [], pool) == 2
    solution = classify(blocks[-1][1]).content
    tests = {
        "humaneval": "assert longest_plateau([2, 2, 5, 5, 5, 1]) == 3 and longest_plateau([]) == 0",
        "mbpp": 'assert repeated_words("the cat and the dog and the bird") == ["the", "and"]',
    }
    session = PythonREPL({}, pool=pool)
    assert session(f"{solution}\n{tests[kind]}") == "[Executed Successfully with No Output]"
    session.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_two_versions_of_an_example_differ_in_the_feedback_alone(kind: str) -> None:
    plain, helped = _blocks(kind, "with_tool.txt"), _blocks(kind, "with_tool_and_feedback.txt")
    assert plain == [block for block in helped if block[0] != "Expert feedback"]
    feedback = [text for role, text in helped if role == "Expert feedback"]
    observations = [text for role, text in helped if role == "Observation"]
    assert len(feedback) == len(observations)
    assert all(text.startswith(("This is GOOD.", "This is BAD.")) for text in feedback)
    assert plain[0][0] == "Task"
    assert classify(plain[-1][1]).kind == "proposal"
