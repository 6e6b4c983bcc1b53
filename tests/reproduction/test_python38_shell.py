"""Sessions behave like those of the public recordings when asked to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from histobench.mint.sandbox import SandboxPool, open_sandbox
from histobench.mint.tools.python_tool import PythonREPL
from reproduction.gates import NATIVE, RecordedREPL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ipython_pool(needs_sandbox: None) -> Iterator[SandboxPool]:
    """Sessions with IPython, nothing preloaded."""
    pytest.importorskip("IPython")
    with open_sandbox(preload=(), shell="ipython", warm=1) as pool:
        yield pool


def test_cells_may_start_with_number_two(ipython_pool: SandboxPool) -> None:
    tool = RecordedREPL(PythonREPL(pool=ipython_pool), 2)
    assert tool("1 + 1") == "Out[2]: 2\n"
    assert "Cell In[3], line 1" in tool("1 / 0")
    assert tool("_2 + len(In)") == "Out[4]: 7\n"
    tool.close()


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
    tool = RecordedREPL(PythonREPL(pool=ipython_pool))
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
    old, new = RecordedREPL(PythonREPL(pool=ipython_pool)), PythonREPL(pool=ipython_pool)
    assert NOT_YET[code] in old(code)
    assert NOT_YET[code] not in new(code)
    # A name that the episode gave a meaning of its own keeps it; libraries are not held to the old language.
    assert old("list, dict = [7, 8], {'a': 9}\nprint(list[0], list[-1:], dict['a'])") == "7 [8] 9\n"
    assert old("import dataclasses, typing\nprint(typing.List[int])") == "typing.List[int]\n"
    old.close()
    new.close()


def test_a_shell_command_is_seen_through_a_terminal_as_in_the_recordings(ipython_pool: SandboxPool) -> None:
    old, new = RecordedREPL(PythonREPL(pool=ipython_pool)), PythonREPL(pool=ipython_pool)
    assert old("!printf 'a\\nb\\n'") == "a\r\nb\r\n"
    assert new("!printf 'a\\nb\\n'") == "a\nb\n"
    assert old("!nothing-here") == "/bin/bash: nothing-here: command not found\r\n"
    old.close()
    new.close()


def test_what_has_gone_since_can_be_used_as_in_the_recordings(ipython_pool: SandboxPool) -> None:
    tool = RecordedREPL(PythonREPL(pool=ipython_pool))
    assert tool("from fractions import gcd\nprint(gcd(12, 18), gcd(12, -18))") == "6 -6\n"
    assert tool("from collections import Iterable\nprint(isinstance([], Iterable))") == "True\n"
    assert tool("import math\nprint(math.factorial(5.0))") == "120\n"
    assert "----> 1 math.factorial(2.5)\n\nValueError: factorial() only accepts" in tool(
        "math.factorial(2.5)"
    )
    assert tool("import random\nprint(len(random.sample({1, 2, 3}, 2)))") == "2\n"
    tool.close()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_session_that_was_ended_and_begun_again_still_behaves_like_the_recorded_ones(
    ipython_pool: SandboxPool,
) -> None:
    tool = RecordedREPL(PythonREPL(pool=ipython_pool))
    assert "ended during this cell" in tool("import os\nos._exit(1)")
    assert "Cell In[2], line 1" in tool("1 / 0")
    assert "unexpected EOF while parsing" in tool("print((1)")
    tool.close()


@pytest.mark.nightly
def test_runs_of_a_newer_python_differ_in_the_number_of_the_first_cell_alone(
    ipython_pool: SandboxPool,
) -> None:
    tool = RecordedREPL(PythonREPL(pool=ipython_pool), 2, NATIVE)
    assert tool("x: list[int] = [1]\nx") == "Out[2]: [1]\n"
    tool.close()
