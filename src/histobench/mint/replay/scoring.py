"""Gate 2: the checkers on every recorded answer."""

from __future__ import annotations

import copy
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import open_unpacked
from histobench.core.plain_data import parse_json
from histobench.mint.sandbox import SandboxPool
from histobench.mint.tasks.base import Rule, Task
from histobench.mint.tasks.codegen import CodeGenTask

REASONING = "reasoning_answers.jsonl.gz"
CODE = "code_solutions.jsonl.gz"


@dataclass(frozen=True)
class ScoredCase:
    """One recorded answer and what is thought of it."""

    task: str
    task_id: Any
    solution: str
    recorded: bool
    now: bool


def score_reasoning(folder: Path, tasks: Mapping[tuple[str, object], Task]) -> list[ScoredCase]:
    """Every recorded answer of the reasoning datasets, under the published and the recording-time rule."""
    cases = []
    for record in _records(folder / REASONING):
        task = tasks.get((record["task"], record["task_id"]))
        if task is None:
            continue
        rules: dict[Rule, str] = {"published": "verdict", "recorded": "verdict_legacy"}
        for rule, verdict in rules.items():
            if record.get(verdict) is not None:
                now = _verdict(task, rule, record["answer"])
                cases.append(_case(record, record["answer"], record[verdict], now))
    return cases


def score_code(
    folder: Path,
    tasks: Mapping[tuple[str, object], Task],
    *,
    pool: SandboxPool,
    workers: int,
    limit: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[ScoredCase]:
    """Every recorded program, tested in the sandbox; `limit` takes an even sample."""
    records = [record for record in _records(folder / CODE) if (record["task"], record["task_id"]) in tasks]
    if limit is not None and limit < len(records):
        records = [records[index * len(records) // limit] for index in range(limit)]

    def scored(record: dict[str, Any]) -> ScoredCase:
        now = _verdict(tasks[record["task"], record["task_id"]], "published", record["solution"], pool)
        done()
        return _case(record, record["solution"], record["passed"], now)

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(scored, records))


def _verdict(task: Task, rule: Rule, solution: str, pool: SandboxPool | None = None) -> bool:
    task = copy.copy(task)
    task.rule = rule
    if isinstance(task, CodeGenTask):
        task.pool = pool
    return task.success(solution)


def _case(record: Mapping[str, Any], solution: str, recorded: bool, now: bool) -> ScoredCase:
    return ScoredCase(record["task"], record["task_id"], solution, bool(recorded), bool(now))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with io.TextIOWrapper(open_unpacked(path), encoding="utf-8") as lines:
            for line in lines:
                yield parse_json(line)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise HistobenchError(f"cannot read the recorded answers {path}: {error}") from error
