"""Programs are judged by their tests, in a sandbox, as the published benchmark judged them."""

from __future__ import annotations

import gzip
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from histobench.mint.tasks.base import Task
from histobench.mint.tasks.codegen import HumanEvalTask, MBPPTask

CLASSES: dict[str, type[Task]] = {"humaneval": HumanEvalTask, "mbpp": MBPPTask}


pytestmark = pytest.mark.usefixtures("needs_sandbox")


@pytest.fixture(scope="module")
def tasks(shared_dir: Path) -> dict[tuple[str, Any], Task]:
    return {
        (name, task.task_id): task
        for name, kind in CLASSES.items()
        for task in kind.load_tasks(str(shared_dir / "mint" / "processed" / name / "test_prompts.json"))[0]
    }


def test_recorded_programs_get_the_recorded_verdict(
    shared_dir: Path, tasks: dict[tuple[str, Any], Task]
) -> None:
    with gzip.open(
        shared_dir / "mint" / "replay" / "code_solutions.jsonl.gz", "rt", encoding="utf-8"
    ) as lines:
        cases = [json.loads(line) for line in lines]
    # Time-outs cost ten seconds each: a seeded sample keeps the suite short; `mint replay` judges them all.
    cases = random.Random(0).sample(cases, 250)

    def agrees(case: dict[str, Any]) -> bool:
        task = tasks[case["task"], case["task_id"]]
        task.rule = "published"
        return task.success(case["solution"]) == case["passed"]

    with ThreadPoolExecutor(2) as threads:
        verdicts = list(threads.map(agrees, cases))
    assert sum(verdicts) >= len(cases) - 1


def test_a_fenced_program_counts_under_the_strict_rule_only() -> None:
    task = HumanEvalTask(id=0, prompt="def one():", reference="assert one() == 1")
    fenced = "```python\ndef one():\n    return 1\n```"
    assert task.success(fenced)
    task.rule = "published"
    assert not task.success(fenced)


def test_leaving_early_is_not_passing() -> None:
    task = MBPPTask(id=0, prompt='"""\nWrite one.\n"""', reference="assert one() == 1")
    assert task.prompt == "Write one."
    assert not task.success("import sys\nsys.exit(0)")
    assert not task.success("import os\nos._exit(0)")
    assert not task.success("print('passed')")
