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


def test_cells_may_start_with_number_two(ipython_pool: SandboxPool) -> None:
    tool = PythonREPL(pool=ipython_pool, first_cell_number=2)
    assert tool("1 + 1") == "Out[2]: 2\n"
    assert "Cell In[3], line 1" in tool("1 / 0")
    assert tool("_2 + len(In)") == "Out[4]: 7\n"
    tool.close()


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


# The words of Python 3.8, each taken from a recorded episode.
OLD_WORDS = {
    "x = 2n + 1": "    x = 2n + 1\n         ^\nSyntaxError: invalid syntax",
    "a + 1 = 3": "    a + 1 = 3\n    ^\nSyntaxError: cannot assign to operator",
    "print((1)": "    print((1)\n             ^\nSyntaxError: unexpected EOF while parsing",
    "M = 1.0 × 10": "    M = 1.0 × 10\n            ^\nSyntaxError: invalid character in identifier",
    "print(1))": "    print(1))\n            ^\nSyntaxError: unmatched ')'",
    "def f():\nreturn 1": "    return 1\n    ^\nIndentationError: expected an indented block",
    "def f():\n    x += 1\nf()": "UnboundLocalError: local variable 'x' referenced before assignment",
    "class A:\n    def f(self, x): pass\nA().f()": (
        "TypeError: f() missing 1 required positional argument: 'x'"
    ),
    "int([])": "TypeError: int() argument must be a string, a bytes-like object or a number, not 'list'",
    "eval('2 +')": "    2 +\n      ^\nSyntaxError: unexpected EOF while parsing",
    "chr('a')": "TypeError: an integer is required (got type str)",
    "range('a')": "TypeError: 'str' object cannot be interpreted as an integer",
    "1 % 0": "ZeroDivisionError: integer division or modulo by zero",
    'def f():\n"""\nabc\n"""\n    return 1': (
        'Cell In[1], line 4\n    """\n    ^\nIndentationError: expected an indented block'
    ),
}
# Words and positions as the source of Python 3.8 says; no recording shows them.
OLD_WORDS |= {
    "1.0 // 0": "ZeroDivisionError: float divmod()",
    "'abc'['x']": "TypeError: string indices must be integers\n",
    "'%d' % 'a'": "TypeError: %d format: a number is required, not str",
    "isinstance(1, 'a')": "TypeError: isinstance() arg 2 must be a type or tuple of types",
    "print x": "          ^\nSyntaxError: Missing parentheses in call to 'print'. Did you mean print(x)?",
    "exec 'x'": "SyntaxError: Missing parentheses in call to 'exec'",
    "x = 'abc\ny = 2": "    x = 'abc\n            ^\nSyntaxError: EOL while scanning string literal",
    "f'{1'": "    f'{1'\n    ^\nSyntaxError: f-string: expecting '}'",
    'f"{x["a"]}"': '    f"{x["a"]}"\n          ^\nSyntaxError: invalid syntax',
    "x = f'{a b}'": "File <fstring>:1\n    (a b)\n       ^\nSyntaxError: invalid syntax",
    "x = 0777": "           ^\nSyntaxError: leading zeros in decimal integer literals are not permitted",
    "if 1:\n\tx = 1\n        y = 2": "TabError: inconsistent use of tabs and spaces in indentation",
}


@pytest.mark.parametrize("code", OLD_WORDS)
def test_errors_can_be_worded_as_in_the_recordings(ipython_pool: SandboxPool, code: str) -> None:
    tool = PythonREPL(pool=ipython_pool, wording="python3.8")
    assert OLD_WORDS[code] in tool(code)
    assert tool("print('goes on')") == "goes on\n"
    tool.close()


# What the Python of the recordings did not have, and how it said so.
NOT_YET = {
    "def f(x: list[int]): pass": "TypeError: 'type' object is not subscriptable",
    "x: dict[str, int] = {}": "TypeError: 'type' object is not subscriptable",
    "int[0]": "TypeError: 'type' object is not subscriptable",
    "import math\nmath.lcm(2, 3)": "AttributeError: module 'math' has no attribute 'lcm'",
    "from math import lcm": "ImportError: cannot import name 'lcm' from 'math' (unknown location)",
}


@pytest.mark.parametrize("code", NOT_YET)
def test_what_came_later_can_be_refused_as_in_the_recordings(ipython_pool: SandboxPool, code: str) -> None:
    old, new = PythonREPL(pool=ipython_pool, wording="python3.8"), PythonREPL(pool=ipython_pool)
    assert NOT_YET[code] in old(code)
    assert NOT_YET[code] not in new(code)
    # A name that the episode gave a meaning of its own keeps it; libraries are not held to the old language.
    assert old("list, dict = [7, 8], {'a': 9}\nprint(list[0], list[-1:], dict['a'])") == "7 [8] 9\n"
    assert old("import dataclasses, typing\nprint(typing.List[int])") == "typing.List[int]\n"
    old.close()
    new.close()


def test_a_shell_command_is_seen_through_a_terminal_as_in_the_recordings(ipython_pool: SandboxPool) -> None:
    old, new = PythonREPL(pool=ipython_pool, wording="python3.8"), PythonREPL(pool=ipython_pool)
    assert old("!printf 'a\\nb\\n'") == "a\r\nb\r\n"
    assert new("!printf 'a\\nb\\n'") == "a\nb\n"
    assert old("!nothing-here") == "/bin/bash: nothing-here: command not found\r\n"
    old.close()
    new.close()


def test_what_has_gone_since_can_be_used_as_in_the_recordings(ipython_pool: SandboxPool) -> None:
    tool = PythonREPL(pool=ipython_pool, wording="python3.8")
    assert tool("from fractions import gcd\nprint(gcd(12, 18), gcd(12, -18))") == "6 -6\n"
    assert tool("from collections import Iterable\nprint(isinstance([], Iterable))") == "True\n"
    assert tool("import math\nprint(math.factorial(5.0))") == "120\n"
    assert "----> 1 math.factorial(2.5)\n\nValueError: factorial() only accepts" in tool(
        "math.factorial(2.5)"
    )
    assert tool("import random\nprint(len(random.sample({1, 2, 3}, 2)))") == "2\n"
    tool.close()


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
