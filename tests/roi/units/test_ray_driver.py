"""The driver of a Ray cluster: whom it lets go of, and when; a `ray` that only notes what it is asked."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from histobench.roi.units.roi_run import RoiRun
from histobench.work import engines as engine
from histobench.work.engines import Display
from histobench.work.run_folder import Unit


def test_idle_workers_tidy_up_at_the_same_time_and_have_one_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def actor(name: str) -> Any:
        closing = SimpleNamespace(remote=lambda: asked.append(f"close {name}") or name)
        return SimpleNamespace(name=name, close=closing)

    def wait(tasks: list[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        asked.append((tuple(tasks), num_returns, timeout))
        return tasks[:1], tasks[1:]  # the others do not come to an end

    ray = SimpleNamespace(wait=wait, kill=lambda actor: asked.append(f"kill {actor.name}"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    driver = engine._Driver(RoiRun.create(tmp_path, {}, []), Display(), {})
    slots = [engine._Slot((), {}, actor(name), process=("host", 1)) for name in "abcd"]
    slots[2].task = object()  # is at work
    slots[3].process = None  # has not answered yet
    slots.append(engine._Slot((), {}))  # has no actor
    driver._end(slots)
    assert asked == [
        "close a", "close b", (("a", "b"), 2, engine.CLOSING_SECONDS),
        "kill a", "kill b", "kill c", "kill d",
    ]  # fmt: skip
    assert [slot.actor for slot in slots] == [None] * 5


@pytest.mark.parametrize("hangs", [True, False])
def test_a_worker_that_hangs_is_ended_so_that_another_does_its_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    killed: list[Any] = []
    ray = SimpleNamespace(wait=lambda tasks, **_: ([], tasks), kill=killed.append)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(engine, "PAUSE", 0.0)
    folder = RoiRun.create(tmp_path, {}, [unit := Unit("network", "d", "e", {})])
    claim = folder.claim(unit)
    assert claim is not None
    if hangs:  # it is not renewed any more
        os.utime(folder.path / "claims" / f"{unit.id}.json", (1.0, 1.0))
    driver = engine._Driver(folder, Display(), {})
    here = (socket.gethostname(), os.getpid())
    driver._slots = [
        engine._Slot((), {}, name, task=f"task {name}", process=process)
        for name, process in (("a", ("elsewhere", os.getpid())), ("b", here))
    ]
    driver._wait({unit.id: unit})
    claim.release()
    assert killed == (["b"] if hangs else [])


def test_a_worker_that_dies_at_work_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = SimpleNamespace(RayActorError=KeyError, OutOfMemoryError=MemoryError, RayTaskError=ValueError)
    done: dict[str, Any] = {"wait": lambda tasks, **_: (tasks, []), "get": {}.__getitem__, "kill": print}
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(**done, exceptions=errors))
    monkeypatch.setattr(engine, "PAUSE", 0.0)
    driver = engine._Driver(RoiRun.create(tmp_path, {}, []), Display(), {})
    driver._slots = [slot := engine._Slot((), {}, "actor", "task", ("host", 1))]
    driver._wait({})
    assert slot.actor is None


def test_gpus_do_what_needs_one_and_the_other_cores_do_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = SimpleNamespace(cluster_resources=lambda: {"GPU": 2.0, "CPU": 6.0})
    monkeypatch.setitem(sys.modules, "ray", ray)
    driver = engine._Driver(RoiRun.create(tmp_path, {}, []), Display(), {})
    driver._reconcile(9)
    slots = [("prepare" in slot.kinds, slot.resources["num_gpus"]) for slot in driver._slots]
    assert slots == [(True, 1)] * 2 + [(False, 0)] * 4


@pytest.mark.slow
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
