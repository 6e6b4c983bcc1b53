"""The driver of a Ray cluster lets go of all workers at once; a `ray` that only notes what it is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from histobench.roi.units.roi_run import RoiRun
from histobench.work import engines as engine
from histobench.work.engines import Display


def test_idle_workers_tidy_up_at_the_same_time_and_have_one_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def actor(name: str) -> Any:
        return SimpleNamespace(
            name=name, close=SimpleNamespace(remote=lambda: asked.append(f"close {name}") or name)
        )

    def wait(tasks: list[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        asked.append((tuple(tasks), num_returns, timeout))
        return tasks[:1], tasks[1:]  # the others do not come to an end

    monkeypatch.setitem(
        sys.modules, "ray", SimpleNamespace(wait=wait, kill=lambda actor: asked.append(f"kill {actor.name}"))
    )
    driver = engine._Driver(RoiRun.create(tmp_path, {}, []), Display(), {})
    slots = [engine._Slot((), {}, actor(name), is_open=True) for name in "abcd"]
    slots[2].task = object()  # is at work
    slots[3].is_open = False  # has not answered yet
    slots.append(engine._Slot((), {}))  # has no actor
    driver._end(slots)
    assert asked == [
        "close a", "close b", (("a", "b"), 2, engine.CLOSING_SECONDS),
        "kill a", "kill b", "kill c", "kill d",
    ]  # fmt: skip
    assert [slot.actor for slot in slots] == [None] * 5
    asked.clear()
    driver._end(slots)
    assert asked == []
