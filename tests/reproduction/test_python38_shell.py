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
    with open_sandbox(preload=(), shell="ipython") as pool:
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
