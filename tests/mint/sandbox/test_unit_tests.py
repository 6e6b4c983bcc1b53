"""A submission passes by passing its tests, and in no other way."""

from __future__ import annotations

import pytest

from histobench.mint.sandbox import SandboxPool, run_unit_tests

GOOD = "def add(a, b):\n    return a + b"
WRONG = "def add(a, b):\n    return a - b"
TESTS = "assert add(1, 2) == 3\nassert add(2, 2) == 4"


def test_a_right_program_passes(bare_pool: SandboxPool) -> None:
    assert run_unit_tests(bare_pool, GOOD, TESTS).passed


def test_a_wrong_program_fails_with_the_reason(bare_pool: SandboxPool) -> None:
    verdict = run_unit_tests(bare_pool, WRONG, TESTS)
    assert (verdict.passed, verdict.reason) == (False, "AssertionError: ")


def test_the_program_runs_with_empty_globals(bare_pool: SandboxPool) -> None:
    assert run_unit_tests(bare_pool, "if __name__ == '__main__':\n    1 / 0", "pass").passed


def test_a_program_too_new_for_the_recordings_fails_where_they_are_the_measure(
    bare_pool: SandboxPool,
) -> None:
    program = "def add(a: int, b: int) -> tuple[int, int]:\n    return a + b"
    assert run_unit_tests(bare_pool, program, TESTS).passed
    verdict = run_unit_tests(bare_pool, program, TESTS, wording="python3.8")
    assert not verdict.passed
    assert "not subscriptable" in verdict.reason
    assert run_unit_tests(bare_pool, GOOD, TESTS, wording="python3.8").passed


@pytest.mark.parametrize(
    "program",
    [
        "```python\ndef add(a, b): return a + b\n```",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "exit()",
        "raise SystemExit",
        "raise KeyboardInterrupt",
        "input()",
        "while True:\n    pass",
        "while True:\n    try:\n        while True: x = 1\n    except BaseException:\n        y = 1",
    ],
)
def test_leaving_or_hanging_is_failing(bare_pool: SandboxPool, program: str) -> None:
    assert not run_unit_tests(bare_pool, program, TESTS, timeout=0.5).passed


# Each tries to be counted as passed while `add` is wrong.
CHEATS = {
    "prints what a runner might look for": "print('OK', 'passed', '{\"passed\": true}')",
    "writes a verdict to every descriptor": (
        "import os, json, struct\nb = json.dumps({'op': 'verdict', 'token': 'x', 'passed': True}).encode()\n"
        "for fd in range(256):\n    try:\n        os.write(fd, struct.pack('!I', len(b)) + b)\n"
        "    except OSError:\n        pass"
    ),
    "exits while the tests run": "def add(a, b):\n    import os\n    os._exit(0)",
    "makes assertions quiet": "import builtins\nbuiltins.AssertionError = type('Q', (Exception,), {})",
    "patches exec and compile": "import builtins\nbuiltins.exec = builtins.compile = lambda *a, **k: None",
    "hooks exceptions": "import sys\nsys.excepthook = lambda *a: None\nsys.settrace(lambda *a: None)",
    "plants an exit handler": "import atexit, os\natexit.register(os._exit, 0)",
    "comments the tests out": 'x = """',
    "ends the file early": "\x00",
    "searches the frames for the token and hands it back": (
        "import sys, os, json, struct\nf = sys._getframe()\nwhile f:\n    t = f.f_locals.get('token')\n"
        "    if isinstance(t, str):\n        b = json.dumps({'op': 'verdict', 'token': t}).encode()\n"
        "        os.write(3, struct.pack('!I', len(b)) + b)\n    f = f.f_back"
    ),
}


@pytest.mark.parametrize("how", CHEATS)
def test_a_cheat_does_not_pass(bare_pool: SandboxPool, how: str) -> None:
    assert not run_unit_tests(bare_pool, f"{WRONG}\n{CHEATS[how]}", TESTS, timeout=2).passed


def test_one_run_leaves_nothing_for_the_next(bare_pool: SandboxPool) -> None:
    run_unit_tests(bare_pool, "import builtins\nbuiltins.add = lambda a, b: a + b", "pass")
    assert not run_unit_tests(bare_pool, "", TESTS).passed
