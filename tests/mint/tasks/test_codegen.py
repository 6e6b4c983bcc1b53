"""Programs are judged by their tests, in a sandbox, as the published benchmark judged them."""

from __future__ import annotations

import ast
import builtins
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from histobench.mint.sandbox import shared_pool
from histobench.mint.tasks.base import Task
from histobench.mint.tasks.codegen import HumanEvalTask, MBPPTask
from reproduction.gates import score_code

CLASSES: dict[str, type[Task]] = {"humaneval": HumanEvalTask, "mbpp": MBPPTask}


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_sandbox")]


@pytest.fixture(scope="module")
def tasks(best_reference_dir: Path) -> dict[tuple[str, Any], Task]:
    return {
        (name, task.task_id): task
        for name, kind in CLASSES.items()
        if (path := best_reference_dir / "mint" / "processed" / name / "test_prompts.json").exists()
        for task in kind.load_tasks(str(path))[0]
    }


@pytest.mark.nightly
def test_recorded_programs_get_the_recorded_verdict(
    best_reference_dir: Path, tasks: dict[tuple[str, Any], Task]
) -> None:
    # Time-outs cost ten seconds each: a sample keeps the suite short; `make reproduce` takes all.
    folder = best_reference_dir / "mint" / "replay"
    scored = score_code(folder, tasks, pool=shared_pool(), workers=2, limit=250)
    assert sum(agrees for _, agrees in scored) >= len(scored) - 1


def test_a_fenced_program_counts_under_the_strict_rule_only() -> None:
    task = HumanEvalTask(id=0, prompt="def one():", reference="assert one() == 1")
    fenced = "```python\ndef one():\n    return 1\n```"
    assert task.success(fenced)
    task.rule = "published"
    assert not task.success(fenced)


@pytest.mark.parametrize("rule", ["published", "strict"])
def test_helpers_that_tests_call_come_from_the_prompt_under_the_strict_rule(rule: str) -> None:
    """As HumanEval/13 in the benchmark's data. The published code ran the answer alone: so does its rule."""
    given = "def encode(s: str):\n    return s + 'x'\n\n\n"
    task = HumanEvalTask(
        id=13,
        prompt=given + 'def decode(s: str):\n    """Undoes encode."""\n',
        reference="def check(candidate):\n    assert candidate(encode('a')) == 'a'\n\ncheck(decode)",
    )
    task.rule = rule  # type: ignore[assignment]
    right = "def decode(s): return s[:-1]"
    assert task.success("encode = decode = lambda s: s") == (rule == "published")
    assert task.success(given + right)
    assert task.success(right) == (rule == "strict")


def test_leaving_early_is_not_passing() -> None:
    task = MBPPTask(id=0, prompt='"""\nWrite one.\n"""', reference="assert one() == 1")
    assert task.prompt == "Write one."
    assert not task.success("import sys\nsys.exit(0)")
    assert not task.success("import os\nos._exit(0)")
    assert not task.success("print('passed')")


#: What passed tasks while program and tests shared one interpreter; {name} is the function asked for.
CHEATS = {
    "an object that equals everything": """
class Anything:
    def __eq__(self, other): return True
    def __lt__(self, other): return True
    def __sub__(self, other): return self
    def __abs__(self): return self
def {name}(*args, **kwargs): return Anything()
""",
    "a decorator for the tests": "def {name}(*args, **kwargs): pass\n@lambda function: lambda *args: None",
    "a trace that leaves every frame": """
import sys
def {name}(*args, **kwargs): pass
def leave(frame, event, argument):
    frame.f_trace_lines = True
    try: frame.f_lineno += 1
    except Exception: pass
    return leave
sys.settrace(leave)
frame = sys._getframe()
while frame:
    frame.f_trace = leave
    frame = frame.f_back
""",
    "the token, and a trap for the second look": """
import gc, json, os, struct, sys
def {name}(*args, **kwargs): pass
found = {{}}
frame = sys._getframe()
while frame:
    found.update(frame.f_locals)
    frame = frame.f_back
for thing in gc.get_objects():
    if isinstance(thing, dict) and isinstance(thing.get("token"), str): found["token"] = thing["token"]
body = json.dumps({{"op": "verdict", "passed": True, "token": found.get("token")}}).encode()
for descriptor in range(3, 64):
    try: os.write(descriptor, struct.pack("!I", len(body)) + body)
    except OSError: pass
""",
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", CHEATS)
def test_no_task_of_the_benchmark_is_passed_without_solving_it(
    how: str, tasks: dict[tuple[str, Any], Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who leaves the frames of the server never answers: those two are tried on a few tasks, and not for long.
    slow = "trace" in how or "trap" in how
    monkeypatch.setattr("histobench.mint.tasks.codegen.TIMEOUT_S", 1.0 if slow else 10.0)
    chosen = random.Random(0).sample(list(tasks.values()), 2) if slow else list(tasks.values())

    def passes(task: Task) -> bool:
        task.rule = "strict"
        return task.success(CHEATS[how].format(name=_function_of(task.reference)))

    with ThreadPoolExecutor(2) as threads:
        assert not any(threads.map(passes, chosen))


def _function_of(tests: str) -> str:
    """The function that the tests ask for: the one name of theirs that they do not define."""
    tree = ast.parse(tests)
    called = [
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    if "check" in called:
        last = tree.body[-1]
        assert isinstance(last, ast.Expr)
        assert isinstance(last.value, ast.Call)
        return ast.unparse(last.value.args[0])
    return next((name for name in called if not hasattr(builtins, name)), called[0])
