"""No text, however odd, makes a parser or a checker fail in another way than it promises.

HISTOBENCH_EXAMPLES=10000 looks harder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import examples
from histobench.core.errors import HistobenchError
from histobench.mint.configs.cell import parse_cell
from histobench.mint.envs.action import classify
from histobench.mint.tasks import reasoning, strict_answer, theorem_answer
from histobench.mint.tasks.arithmetic import MATHEMATICS, NotArithmeticError, evaluate
from histobench.mint.tasks.codegen import without_fence
from histobench.mint.tools.python_tool import as_observation
from histobench.mint.tools.wikipedia_search import rendered
from reproduction.gates import expert_calls, expert_observations, same

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


def _quiet(parser: Callable[..., Any], *expected: type[Exception]) -> Callable[..., None]:
    def call(*texts: Any) -> None:
        with contextlib.suppress(*expected):
            parser(*texts)

    return call


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
}
NUMBERS = [(3, "integer"), (2.5, "float"), (4, "float")]
TYPED = st.sampled_from([*NUMBERS, (True, "bool"), ("a", "option"), ([1, 2], "list of integer")])


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
