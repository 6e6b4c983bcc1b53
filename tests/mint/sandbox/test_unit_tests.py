"""A submission passes by passing its tests, and in no other way."""

from __future__ import annotations

import pytest

from histobench.mint.sandbox import SandboxPool, run_unit_tests

RAISING = "raise ValueError('\\ud800')"
GOOD = "def add(a, b):\n    return a + b"
WRONG = "def add(a, b):\n    return a - b"
TESTS = "assert add(1, 2) == 3\nassert add(2, 2) == 4"


def test_a_right_program_passes(bare_pool: SandboxPool) -> None:
    assert run_unit_tests(bare_pool, GOOD, TESTS).passed


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (WRONG, "AssertionError: "),
        ("def add(a, b): raise ValueError('no')", "ValueError: no"),
        ("def add(a): return a", "TypeError: "),
        ("", "NameError: name 'add' is not defined"),
        ("add = 5", "TypeError: "),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("(", "SyntaxError: "),
    ],
)
def test_a_wrong_program_fails_with_the_reason(bare_pool: SandboxPool, program: str, reason: str) -> None:
    verdict = run_unit_tests(bare_pool, program, TESTS)
    assert not verdict.passed
    assert verdict.reason.startswith(reason)


@pytest.mark.parametrize(
    "program", ["raise ValueError('\\ud800')", "def add(*a): raise ValueError('\\ud800')"]
)
def test_a_reason_can_be_written_to_a_file(bare_pool: SandboxPool, program: str) -> None:
    assert run_unit_tests(bare_pool, program, TESTS).reason.encode() == b"ValueError: \\ud800"


def test_the_program_runs_with_empty_globals(bare_pool: SandboxPool) -> None:
    assert run_unit_tests(bare_pool, "if __name__ == '__main__':\n    1 / 0", "pass").passed


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "```python\ndef add(a, b): return a + b\n```",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "exit()",
        "raise KeyboardInterrupt",
        "input()",
        "while True:\n    pass",
        "while True:\n    try:\n        while True: x = 1\n    except BaseException:\n        y = 1",
    ],
)
def test_leaving_or_hanging_is_failing(bare_pool: SandboxPool, program: str) -> None:
    assert not run_unit_tests(bare_pool, program, TESTS, timeout=0.5).passed


ALWAYS_EQUAL = """
class Anything:
    __hash__ = None
    def _yes(self, *_): return True
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = _yes
    def _self(self, *_): return self
    __abs__ = __sub__ = __rsub__ = __add__ = __radd__ = __neg__ = __round__ = __getitem__ = _self
"""
LIST_OF_CHEATS = """
class Anything(list):
    def __eq__(self, other): return True
"""
SEND = """
import json, os, struct
def tell(**message):
    body = json.dumps(message).encode()
    os.write(3, struct.pack("!I", len(body)) + body)
"""
# Each tries to be counted as passed while `add` is wrong.
CHEATS = {
    "prints what a runner might look for": "print('OK', 'passed', '{\"passed\": true}')",
    "writes a verdict to every descriptor": (
        "import os, json, struct\nb = json.dumps({'op': 'verdict', 'token': 'x', 'passed': True}).encode()\n"
        "for fd in range(256):\n    try:\n        os.write(fd, struct.pack('!I', len(b)) + b)\n"
        "    except OSError:\n        pass"
    ),
    "exits while the tests run": "def add(a, b):\n    import os\n    os._exit(0)",
    "raises SystemExit while the tests run": "def add(a, b):\n    raise SystemExit(0)",
    "makes assertions quiet": "import builtins\nbuiltins.AssertionError = type('Q', (Exception,), {})",
    "patches exec and compile": "import builtins\nbuiltins.exec = builtins.compile = lambda *a, **k: None",
    "hooks exceptions": "import sys\nsys.excepthook = lambda *a: None\nsys.settrace(lambda *a: None)",
    "plants an exit handler": "import atexit, os\natexit.register(os._exit, 0)",
    "comments the tests out": 'x = """',
    "ends the file early": "\x00",
    "decorates the first test away": "@lambda function: lambda *a: None",
    "hides the tests under a condition": "if False:",
    "ends with half a statement": "x = \\",
    "searches the frames for a token and hands it back": (
        f"{SEND}\nimport sys\nf = sys._getframe()\nwhile f:\n    t = f.f_locals.get('token')\n"
        "    if isinstance(t, str): tell(op='verdict', token=t, passed=True)\n    f = f.f_back"
    ),
    "claims to have been loaded and tested": f"{SEND}\ntell(op='loaded')\ntell(op='verdict', passed=True)",
    "answers before it is asked": (
        f"{SEND}\nfor n in range(9): tell(op='verdict', number=n, passed=True, value=True, found=True)"
    ),
    "answers from a thread": (
        f"{SEND}\nimport threading, time\ndef flood():\n    while True:\n"
        "        tell(op='verdict', passed=True, number=1, found=True, value=3); time.sleep(0.001)\n"
        "threading.Thread(target=flood, daemon=True).start()"
    ),
    "equals everything": f"{ALWAYS_EQUAL}\ndef add(a, b): return Anything()",
    "equals everything, as a subclass of int": (
        "class Anything(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Anything(7)"
    ),
    "tells its interpreter that all is equal": (
        "import operator, builtins\noperator.eq = lambda *a: True\nbuiltins.bool = lambda *a: True"
    ),
    "skips the lines of the tests": (
        "import sys\ndef jump(frame, event, arg):\n    frame.f_trace_opcodes = True\n    try:\n"
        "        frame.f_lineno = frame.f_lineno + 1\n    except Exception:\n        pass\n    return jump\n"
        "sys.settrace(jump)\nsys.setprofile(jump)\nf = sys._getframe()\n"
        "while f:\n    f.f_trace = jump\n    f = f.f_back"
    ),
    "rewrites whatever runs it": (
        "import gc, types\nfor thing in gc.get_objects():\n"
        "    if isinstance(thing, types.FunctionType) and "
        "thing.__name__ in ('_answer', 'written', 'made'):\n"
        "        thing.__code__ = (lambda *a, **k: {'passed': True, 'op': 'verdict', 'value': True}).__code__"
    ),
    "kills whoever it can": "import os, signal\ndef add(a, b):\n    os.kill(-1, signal.SIGKILL)",
    "forks and lets the copy answer": "import os\ndef add(a, b):\n    return 3 if os.fork() == 0 else 0",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", CHEATS)
def test_a_cheat_does_not_pass(bare_pool: SandboxPool, how: str) -> None:
    assert not run_unit_tests(bare_pool, f"{WRONG}\n{CHEATS[how]}", TESTS, timeout=2).passed


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        # The answer fills the socket's buffer and more: the host's next question cannot be written.
        "import time\ndef add(a, b): return 3\ndef f(x): time.sleep(99)",
        f"{GOOD}\nimport os\nos.close(3)",
        f"{GOOD}\nimport os, socket\nsocket.socket(fileno=os.dup(3)).shutdown(socket.SHUT_RDWR)",
        f"{GOOD}\nimport os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["sleeps", "closes its socket", "shuts its socket down", "stops itself"],
)
def test_a_program_that_stops_talking_has_failed(
    bare_pool: SandboxPool, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large arguments, so that a question does not fit into the buffer of a socket that is not read."""
    monkeypatch.setattr("histobench.mint.sandbox.zygote_process.SEND_SECONDS", 1.0)
    tests = "assert add(1, 2) == 3\nf('x' * 3_000_000)\nassert add(2, 2) == 4"
    verdict = run_unit_tests(bare_pool, program, tests, timeout=1)
    assert not verdict.passed
    assert verdict.reason


# Each has the wrong answer and something of its own that the test would use if it could.
@pytest.mark.parametrize(
    ("program", "tests"),
    [
        (f"{ALWAYS_EQUAL}\ndef f(x): return Anything()", "assert abs(f(1) - 2.0) < 1e-6"),
        (f"{ALWAYS_EQUAL}\ndef f(x): return Anything()", "assert f(1) > 2"),
        (f"{ALWAYS_EQUAL}\ndef f(x): return Anything()", "assert not f(1) != 2"),
        (f"{ALWAYS_EQUAL}\ndef f(x): return Anything()", "assert f(1) in (2, 3)"),
        (f"{ALWAYS_EQUAL}\ndef f(x): return [Anything()]", "assert f(1) == [2]"),
        (f"{ALWAYS_EQUAL}\ndef f(x): return {{1: Anything()}}", "assert f(1) == {1: 2}"),
        (f"{LIST_OF_CHEATS}\ndef f(x): return Anything()", "assert f(1) == [2]"),
        (f"{LIST_OF_CHEATS}\ndef f(x): return Anything()", "assert sorted(f(1)) == [2]"),
        ("def f(x): return 0\ndef abs(x): return 0", "assert abs(f(1) - 2.0) < 1e-6"),
        ("def sum(*x): return 0\ndef abs(x): return 0", "assert abs(sum(1, 2) - 9) < 1e-6"),
        ("def sum(*x): return 0\ndef isinstance(*x): return True", "assert isinstance(sum(1, 2), str)"),
        ("def f(x): return 0\nset = sorted = str = lambda *a: 0", "assert set([f(1)]) == set([2])"),
        ("def f(x): return 0\nimport math\nmath.isclose = lambda *a: True", "assert math.isclose(f(1), 2)"),
        ("def f(x): x.clear(); return x", "assert f([3, 1]) == sorted([3, 1])"),
        ("def check(f): pass\ndef f(x): return 0", "def check(f):\n    assert f(1) == 2\ncheck(f)"),
        ("def f(x): raise StopIteration", "assert all(map(f, [1, 2]))"),
        ("def f(x): raise StopIteration", "assert [y for y in map(f, [1, 2]) if y != 2] == []"),
        ("import random as math\ndef f(x): return 0", "assert math.isclose(f(1), 2)"),
        ("import numpy.ma as np\ndef f(x): return 0", "assert np.allclose(f(1), 2)"),
    ],
)
def test_what_a_program_brings_along_decides_nothing(
    bare_pool: SandboxPool, program: str, tests: str
) -> None:
    assert not run_unit_tests(bare_pool, program, tests, timeout=2).passed


HONEST = {
    "a namedtuple": (
        "import collections\nP = collections.namedtuple('P', 'a b')\ndef f(): return P(1, 2)",
        "(1, 2)",
    ),
    "a counter": ("import collections\ndef f(): return collections.Counter('aab')", "{'a': 2, 'b': 1}"),
    "keys of a dictionary": ("def f(): return {1: 2}.keys()", "{1}"),
    "a default dictionary": (
        "import collections\ndef f(): return collections.defaultdict(list, a=[1])",
        "{'a': [1]}",
    ),
    "a fraction": ("import fractions\ndef f(): return fractions.Fraction(1, 2)", "0.5"),
    "a huge number": ("def f(): return 7 ** 5000", "7 ** 5000"),
    "infinity": ("def f(): return [float('inf')]", "[float('inf')]"),
    "an enumeration": ("import enum\nclass E(enum.IntEnum):\n    A = 3\ndef f(): return E.A", "3"),
    "bytes": ("def f(): return b'\\x00\\xff'", "b'\\x00\\xff'"),
    "half a character": ("def f(): return '\\ud800'", "'\\ud800'"),
}


@pytest.mark.parametrize("what", HONEST)
def test_an_honest_answer_keeps_its_value_and_its_type(bare_pool: SandboxPool, what: str) -> None:
    program, value = HONEST[what]
    for tests in ("assert f() == {}", "right = {}\nassert f() == right"):
        assert run_unit_tests(bare_pool, program, tests.format(value)).passed
        assert not run_unit_tests(bare_pool, program, tests.format(f"[{value}, 1]")).passed


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(x): x.append(4)", "x = [1]\nf(x)\nassert x == [1, 4]"),
        ("def f(*, x): x.append(4)", "x = [1]\nf(x=x)\nassert x == [1, 4]"),
        ("def f(x): x['a'] = 4", "x = {}\nf(x)\nassert x == {'a': 4}"),
        ("def f(x): return x + x", "import numpy\nassert (f(numpy.ones(2)) == numpy.array([2, 2])).all()"),
        (
            "import numpy\ndef f(x): return numpy.array(x)",
            "import numpy\nassert numpy.allclose(f([[1, 2]]), [[1, 2]])\nassert f([1, 2]).tolist() == [1, 2]",
        ),
        ("import numpy\ndef f(x): return numpy.int8(x)", "assert f(3) == 3 and f(3) in {3}"),
        ("import numpy\ndef f(x): return numpy.bool_(x)", "assert f(1) is True"),
        (
            "from fractions import Fraction\ndef f(x): return x / 3",
            "from fractions import Fraction\nassert f(Fraction(1)) == Fraction(1, 3) == f(Fraction(1))",
        ),
        (
            "import datetime\ndef f(y): return [datetime.date(y, 1, 2)]",
            "import datetime\nassert f(2000) == [datetime.date(2000, 1, 2)] != f(2001)",
        ),
        ("def f(n): return range(n)", "assert f(3) == range(3) != f(4)"),
        (
            "from decimal import Decimal\ndef f(x): return Decimal(x)",
            "assert f('6') == 6 and f('0.1') != 0.1",
        ),
        ("from enum import Enum\nclass C(str, Enum): a = 'r'\ndef f(): return C.a", "assert f() == 'r'"),
        ("def sum(a, b): return a - b", "assert sum(sum(5, 3), 1) == 1\nassert len([sum(3, 1)]) == 1"),
        ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(n): return lambda x: x + n", "assert f(2)(3) == 5"),
        (
            "class P:\n    def __init__(s, a): s.a = a\ndef f(ps): return [p.a for p in ps]",
            "assert f([P(1), P(2)]) == [1, 2]",
        ),
        (
            "class P:\n    a = 1\n    def __eq__(s, o): return s.a == o.a",
            "assert P() == P()\nassert P().a == 1",
        ),
        ("def f(x): raise KeyError(x)", "try:\n    f(1)\n    assert False\nexcept KeyError:\n    pass"),
        (
            "class E(ValueError): pass\ndef f(): raise E('no')",
            "try:\n    f()\nexcept ValueError as e:\n    assert str(e) == 'no'",
        ),
        ("import math\ndef f(x): return x / 3", "assert math.isclose(f(1), 1 / 3)"),
        ("f = 5\ndef g(*, a): return a", "assert f == 5 and g(a={1, 2}) == {2, 1}"),
        ("def f(n): return 1 if n < 2 else n * f(n - 1)", "assert f(5) == 120\nassert f(2000) % 1999 == 0"),
        ("def f(x): return x.decode()", "try:\n    f(b'\\xff')\nexcept UnicodeDecodeError:\n    f(b'')"),
        ("def f(self, action, subject): return action", "assert f(self=1, action=2, subject=3) == 2"),
        ("class P:\n    __repr__ = lambda s: 'P!'", "assert repr(P()) == 'P!' and str([P()]) == '[P!]'"),
        ("def f(x): return x is True", "assert f(True) is True and f(1) is False"),
    ],
)
def test_tests_may_do_what_they_always_could(bare_pool: SandboxPool, program: str, tests: str) -> None:
    verdict = run_unit_tests(bare_pool, program, tests)
    assert verdict.passed, verdict.reason


def test_a_test_that_cannot_be_asked_elsewhere_says_so(bare_pool: SandboxPool) -> None:
    verdict = run_unit_tests(bare_pool, "def f(g): return g(1)", "assert f(lambda x: x) == 1")
    assert "cannot pass a function to the program" in verdict.reason


def test_functions_of_the_task_are_not_the_programs(bare_pool: SandboxPool) -> None:
    helpers, tests = "def encode(s): return s + 'x'", "assert decode(encode('a')) == 'a'"
    right = "def decode(s): return s[:-1]"
    assert not run_unit_tests(bare_pool, "encode = decode = lambda s: s", tests, helpers=helpers).passed
    assert run_unit_tests(bare_pool, f"encode = None\n{right}", tests, helpers=helpers).passed
    assert run_unit_tests(bare_pool, right, tests, helpers=helpers).passed
    assert not run_unit_tests(bare_pool, right, tests).passed


def test_a_program_never_sees_its_tests(bare_pool: SandboxPool) -> None:
    """Whatever lies in the program's process, the expected value is not there; its own arguments are."""
    program = """
import gc, sys
def seen(wanted):
    texts = [repr(thing) for thing in gc.get_objects() if type(thing) in (dict, list, tuple)]
    frame = sys._getframe().f_back
    while frame:
        texts.append(repr(frame.f_locals)); frame = frame.f_back
    return any(str(wanted * 2 + 1) in text for text in texts)
def look(wanted, beside): return seen(wanted)
"""
    assert run_unit_tests(bare_pool, program, "assert look(13591, 27183) is True").passed
    assert run_unit_tests(bare_pool, program, "assert look(13591, 0) is False\nassert 27183").passed


def test_a_program_too_long_to_be_sent_fails(bare_pool: SandboxPool) -> None:
    verdict = run_unit_tests(bare_pool, f"{GOOD}\n#{'x' * (5 << 20)}", TESTS)
    assert (verdict.passed, "too long" in verdict.reason) == (False, True)


def test_one_run_leaves_nothing_for_the_next(bare_pool: SandboxPool) -> None:
    run_unit_tests(bare_pool, "import builtins\nbuiltins.add = lambda a, b: a + b", "pass")
    assert not run_unit_tests(bare_pool, "", TESTS).passed
