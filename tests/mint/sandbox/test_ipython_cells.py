"""Cells behave as the published benchmark's Python tool did."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from histobench.mint.sandbox import Limits, SandboxPool, open_sandbox
from histobench.mint.tools.python_tool import PythonREPL, as_observation

DASHES = "-" * 75


@pytest.fixture
def repl(ipython_pool: SandboxPool) -> Iterator[PythonREPL]:
    tool = PythonREPL({"wikipedia_search": lambda query: f"about {query}"}, pool=ipython_pool)
    yield tool
    tool.close()


def test_prints_and_the_value_of_the_last_expression_are_shown(repl: PythonREPL) -> None:
    assert repl("print('a')\n6 * 7") == "a\nOut[1]: 42\n"


def test_a_value_over_several_lines_starts_on_its_own_line(repl: PythonREPL) -> None:
    assert repl("['x' * 50] * 3").startswith("Out[1]: \n['xxx")


def test_a_semicolon_and_none_suppress_the_value(repl: PythonREPL) -> None:
    assert repl("1;") == "[Executed Successfully with No Output]"
    assert repl("None") == "[Executed Successfully with No Output]"


def test_state_lasts_over_cells_and_ends_with_reset(repl: PythonREPL) -> None:
    repl("x = 1")
    assert repl("x + 1") == "Out[2]: 2\n"
    repl.reset()
    assert "NameError: name 'x' is not defined" in repl("x")


def test_a_traceback_is_plain_and_shows_context(repl: PythonREPL) -> None:
    text = repl("def f(x):\n    y = 1\n    return y / x\n\nprint('before')\nf(0)\n")
    assert text == (
        f"before\n{DASHES}\n"
        "ZeroDivisionError                         Traceback (most recent call last)\n"
        "Cell In[1], line 6\n"
        "      3     return y / x\n"
        "      5 print('before')\n"
        "----> 6 f(0)\n"
        "\n"
        "Cell In[1], line 3, in f(x)\n"
        "      1 def f(x):\n"
        "      2     y = 1\n"
        "----> 3     return y / x\n"
        "\n"
        "ZeroDivisionError: division by zero\n"
    )


def test_a_syntax_error_stops_everything_before_it_starts(repl: PythonREPL) -> None:
    assert repl("print('never')\nx = = 1") == (
        "  Cell In[1], line 2\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n\n"
    )


def test_an_error_of_the_compiler_comes_after_the_statements_before_it(repl: PythonREPL) -> None:
    text = repl("print('first')\nreturn 1")
    assert text.startswith("first\n")
    assert "SyntaxError: 'return' outside function" in text


def test_standard_error_warnings_and_display_are_dropped(repl: PythonREPL) -> None:
    code = (
        "import sys, warnings\nprint('no', file=sys.stderr)\nwarnings.warn('no')\n"
        "from IPython.display import display\ndisplay(1)"
    )
    assert repl(code) == "[Executed Successfully with No Output]"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("exit()", "AttributeError: 'InteractiveShell' object has no attribute 'ask_exit'"),
        ("import sys\nsys.exit(3)", "An exception has occurred, use %tb to see the full traceback."),
        ("input('name? ')", "EOFError: EOF when reading a line"),
        ("!echo shell", "shell\n"),
        ("%timeit", ""),
        ("len?", ""),
    ],
)
def test_special_cells_neither_end_nor_hang_the_session(repl: PythonREPL, code: str, words: str) -> None:
    repl("kept = 5")
    assert words in repl(code)
    assert repl("print(kept)") == "5\n"


def test_the_prompt_of_input_is_part_of_the_output(repl: PythonREPL) -> None:
    assert repl("input('name? ')").startswith(f"name? {DASHES}\nEOFError")


@pytest.mark.slow
def test_a_time_out_is_an_ordinary_traceback_and_keeps_the_state(ipython_pool: SandboxPool) -> None:
    tool = PythonREPL(pool=ipython_pool, timeout=2)
    tool("kept = 1")
    text = tool("while True:\n    kept = 2")
    assert text.startswith(f"{DASHES}\nTimeoutError")
    assert (
        "File <hidden_filepath>:32, in PythonREPL.time_limit.<locals>.signal_handler(signum, frame)" in text
    )
    assert text.endswith("TimeoutError: Timed out after 2 seconds.\n")
    assert tool("kept") == "Out[3]: 2\n"
    tool.close()


@pytest.mark.slow
def test_a_deep_recursion_is_shown_without_delay(repl: PythonREPL) -> None:
    text = repl("def f(n):\n    return f(n + 1)\nf(0)")
    assert "skipping similar frames: f at line 2 (29" in text
    assert "RecursionError: maximum recursion depth exceeded" in text


def test_tools_are_ordinary_names_that_can_be_overwritten(repl: PythonREPL) -> None:
    assert repl("print(wikipedia_search('cells'))") == "about cells\n"
    repl("wikipedia_search = 3")
    assert repl("wikipedia_search") == "Out[3]: 3\n"


def test_an_error_of_a_tool_is_raised_in_the_cell(ipython_pool: SandboxPool) -> None:
    def broken(query: str) -> str:
        raise KeyError(query)

    class OwnError(Exception):
        pass

    def stranger() -> str:
        raise OwnError("strange")

    tool = PythonREPL({"broken": broken, "stranger": stranger}, pool=ipython_pool)
    assert tool("try:\n    broken('x')\nexcept KeyError as e:\n    print('caught', e)") == "caught \"'x'\"\n"
    assert tool("1\nstranger()") == (
        f"{DASHES}\nRuntimeError                              Traceback (most recent call last)\n"
        "Cell In[2], line 2\n      1 1\n----> 2 stranger()\n\nRuntimeError: strange\n"
    )
    tool.close()


def test_the_hash_of_a_string_is_the_same_in_every_session(ipython_pool: SandboxPool) -> None:
    seen = set()
    for _ in range(3):
        tool = PythonREPL(pool=ipython_pool)
        seen.add(tool("print(list({'a', 'b', 'c', 'd', 'e', 'f'}))"))
        tool.close()
    assert len(seen) == 1


@pytest.mark.slow
def test_a_cell_that_ran_out_of_memory_says_where_and_the_session_goes_on(ipython_pool: SandboxPool) -> None:
    with open_sandbox(
        ipython_pool.backend, preload=(), shell="ipython", limits=Limits(memory_mb=300)
    ) as pool:
        tool = PythonREPL(pool=pool)
        tool("kept = 1")
        text = tool("def fill():\n    x = []\n    while True:\n        x.append([0] * 1000)\nfill()")
        assert "----> 4     x.append([0] * 1000)" in text
        assert text.rstrip().endswith("MemoryError:")
        # What the failed frames held is free again.
        assert tool("y = [[0] * 1000 for _ in range(20_000)]\nprint(kept, len(y))") == "1 20000\n"
        tool.close()


@pytest.mark.parametrize(
    ("length", "check"),
    [
        (0, lambda text: text == "[Executed Successfully with No Output]"),
        (2000, lambda text: text == "x" * 2000),
        (2001, lambda text: text == "x" * 2000 + "...\n[Output Truncated]"),
    ],
)
def test_long_output_is_cut(length: int, check: Callable[[str], bool]) -> None:
    assert check(as_observation("x" * length))
