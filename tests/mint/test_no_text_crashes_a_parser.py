"""No text, however odd, makes a parser or a checker fail in another way than it promises.

HISTOBENCH_EXAMPLES=10000 looks harder.
"""

from __future__ import annotations

import ast
import contextlib
import gzip
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import examples
from histobench.core.errors import HistobenchError
from histobench.mint.configs.cell import parse_cell
from histobench.mint.envs.action import classify
from histobench.mint.prompts.published import LiteralSource
from histobench.mint.results.episode_outcome import read_outcome_table
from histobench.mint.results.recording import read_recordings
from histobench.mint.results.stored_episode import read_episodes
from histobench.mint.tasks import reasoning, strict_answer, theorem_answer
from histobench.mint.tasks.arithmetic import MATHEMATICS, NotArithmeticError, evaluate
from histobench.mint.tasks.base import read_records
from histobench.mint.tasks.codegen import without_fence
from histobench.mint.tools.python_tool import as_observation
from histobench.mint.tools.wikipedia_search import Tape, rendered
from reproduction import python38_shell
from reproduction.gates import Journal, alike, expert_calls, expert_observations, same
from reproduction.python38_language import as_python38

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("HISTOBENCH_EXAMPLES", examples(200)))
_WORDS = (
    "0 1 7 -3 2.5 1e9 1e999 nan inf , . / * ** ^ + - ( ) [ ] { } = ≈ $ % ° \\frac{1}{2} \\boxed{3} a) (b) "
    "C ) True False yes no or approximately x × 10^3 10^999 sqrt(2) factorial(9) lambda: __import__('os') "
    "python def Options: \\n <execute> </execute> <solution> </solution> F=None max5_p2 PHF= / Assistant: "
    "Observation: goto('x') take(1,2) 𝟗 ٣ ½ \""
    " ``` \x00 \ud800"
)
PIECES = st.sampled_from(_WORDS.split(" "))
TEXTS = st.text(max_size=60) | st.lists(PIECES, max_size=12).map(" ".join) | st.lists(PIECES).map("".join)
OPTIONS = st.dictionaries(st.sampled_from("abcde"), TEXTS, min_size=1).map(lambda d: {"a": "x", **d})
REFERENCE = st.sampled_from(["5", "-108.0", "0", "yes", "no", "paris", "", "nan", "1e400"])


LINE = st.sampled_from(
    [
        '{"id": 1, "prompt": "p", "reference": "r"}',
        '{"id": 1}',
        "[]",
        "null",
        '{"state": {}, "task": {}}',
        '{"episode": "e"}',
        '{"settings": {"max_steps": 5, "max_propose": 2}, "model": "m", "task": "t", "turns": []}',
        '{"settings": [], "turns": [null]}',
        'name = "x" + "y".format(a="{b}")',
        'class A: name = "{0}".format()',
    ]
)
LINES = st.lists(LINE | TEXTS, max_size=5).map("\n".join)


def _quiet(parser: Callable[..., Any], *expected: type[Exception]) -> Callable[..., None]:
    def call(*texts: Any) -> None:
        with contextlib.suppress(*expected):
            parser(*texts)

    return call


def _file(parser: Callable[[Path], Any], name: str) -> Callable[[str], None]:
    """A parser of a file, given the file's text; what it may raise is this project's own error."""

    def call(text: str) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(HistobenchError):
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            raw = text.encode("utf-8", "surrogatepass")
            path.write_bytes(gzip.compress(raw, 0) if name.endswith(".gz") else raw)
            parser(path)

    return call


def _old_words(text: str) -> None:
    python38_shell.reword_message(text, failing_frame=text)
    python38_shell.as_on_a_terminal(text)
    try:
        tree = ast.parse(text, "<string>")
    except SyntaxError as error:
        python38_shell.reword_syntax_error(error)
    else:
        compile(as_python38(tree), "cell", "exec")


FILES: dict[str, Callable[[str], None]] = {
    "tasks": _file(read_records, "test_prompts.json"),
    "recorded episodes": _file(lambda path: list(read_recordings(path)), "m.k5.jsonl.gz"),
    "finished episodes": _file(
        lambda path: list(read_episodes(path)), "m/F=None/max5_p2+tool+cd/reasoning/gsm8k/results.jsonl"
    ),
    "outcomes": _file(lambda path: list(read_outcome_table(path)), "outcomes.csv"),
    "journal": _file(Journal, "journal.jsonl"),
    "tape": _file(Tape, "tape.json"),
    "published prompts": _file(lambda path: LiteralSource(path).class_texts(), "prompts.py"),
    "old words": _quiet(_old_words, ValueError, SyntaxError),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FILES)
def test_a_file_may_hold_anything(name: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(LINES)
    def check(text: str) -> None:
        FILES[name](text)

    check()


ONE_TEXT = {
    "action": _quiet(classify),
    "arithmetic": _quiet(evaluate, NotArithmeticError),
    "mathematics": _quiet(lambda text: evaluate(text, MATHEMATICS), NotArithmeticError),
    "number": _quiet(strict_answer.stated_number),
    "fence": _quiet(without_fence),
    "options": _quiet(reasoning.parse_options),
    "folder of a run": _quiet(parse_cell, HistobenchError),
    "expert's actions": _quiet(expert_calls, SyntaxError, ValueError),
    "expert's observations": _quiet(expert_observations),
    "observation": _quiet(as_observation),
    "article": _quiet(lambda text: rendered([(text, text)])),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ONE_TEXT)
def test_a_parser_reads_any_text(name: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(TEXTS)
    def check(text: str) -> None:
        ONE_TEXT[name](text)

    check()


CHECKERS: dict[str, tuple[Callable[..., bool], Any]] = {
    "free form, published": (reasoning.published_text, st.tuples(REFERENCE, TEXTS)),
    "free form, recorded": (
        lambda reference, text: reasoning.published_text(reference, text, recorded=True),
        st.tuples(REFERENCE, TEXTS),
    ),
    "free form, strict": (strict_answer.same_text, st.tuples(REFERENCE, TEXTS)),
    "multiple choice, published": (reasoning.published_option, st.tuples(st.just("a"), OPTIONS, TEXTS)),
    "multiple choice, strict": (reasoning.strict_option, st.tuples(st.just("a"), OPTIONS, TEXTS)),
    "comparison": (same, st.tuples(TEXTS, TEXTS)),
    "looser comparison": (alike, st.tuples(TEXTS, TEXTS)),
}
TYPED = st.sampled_from(
    [
        (3, "integer"),
        (2.5, "float"),
        (4, "float"),
        (True, "bool"),
        ("a", "option"),
        ([1, 2], "list of integer"),
    ]
)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CHECKERS)
def test_a_checker_judges_any_answer(name: str) -> None:
    checker, arguments = CHECKERS[name]

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(arguments)
    def check(values: tuple[Any, ...]) -> None:
        assert checker(*values) in (True, False)

    check()


@pytest.mark.parametrize("checker", [theorem_answer.published, theorem_answer.strict])
def test_a_theorem_checker_judges_any_answer(checker: Callable[..., bool]) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(TYPED, TEXTS)
    def check(typed: tuple[Any, str], text: str) -> None:
        assert checker(*typed, text) in (True, False)

    check()
