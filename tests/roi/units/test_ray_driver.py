"""The driver of a Ray cluster: whom it lets go of, and when; a `ray` that only notes what it is asked."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from histobench.roi.units.roi_run import RoiRun
from histobench.work import engines as engine
from histobench.work.engines import Display
from histobench.work.run_folder import HUNG, Unit


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


@pytest.mark.parametrize(("seconds", "killed"), [(HUNG + 1, ["b"]), (HUNG / 2, [])])
def test_a_worker_that_hangs_is_ended_so_that_another_does_its_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, killed: list[str]
) -> None:
    asked: list[Any] = []

    def wait(tasks: list[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        return [], tasks

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(wait=wait, kill=asked.append))
    unit = Unit("network", "d", "e", {})
    driver = engine._Driver(RoiRun.create(tmp_path, {}, [unit]), Display(), {})
    now = time.monotonic()
    driver._slots = [
        engine._Slot((), {}, name, is_open=True, task=f"task {name}", batch=[unit], began=began)
        for name, began in (("a", now), ("b", now - seconds))
    ]
    driver._wait()
    assert asked == killed


def test_a_head_that_is_gone_ends_the_command_in_words(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended, codes = threading.Event(), []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(engine, "HEAD_SECONDS", 1.0)
    otherwise = threading.Timer(60, ended.set)
    otherwise.start()
    engine._watch_head("127.0.0.1:1", ended)
    otherwise.cancel()
    assert codes == [2]
    assert "finished work is kept: start the cluster again" in capfd.readouterr().err
