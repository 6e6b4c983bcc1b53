"""A busy machine gives a cell more time; a busy cell gives itself none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from histobench.mint.sandbox import SandboxPool, limits
from histobench.mint.sandbox.limits import Deadline


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    times: dict[int, float] = {}
    monkeypatch.setattr(limits, "starved_seconds", lambda pid: times.get(pid, 0.0))
    return times


def test_a_deadline_passes_when_nothing_was_starved(starved: dict[int, float]) -> None:
    limit = Deadline(0.0, pid=7, patience=10)
    time.sleep(0.001)
    assert limit.passed()


@pytest.mark.parametrize(("patience", "starved_for", "granted"), [(10, 4.0, 4.0), (2, 50.0, 2.0)])
def test_starved_time_is_given_back_once_and_up_to_the_patience(
    starved: dict[int, float], patience: float, starved_for: float, granted: float
) -> None:
    starved[7] = 100.0
    limit = Deadline(0.0, pid=7, patience=patience)
    begun = limit.moment
    time.sleep(0.001)
    starved[7] += starved_for
    assert not limit.passed()
    assert limit.moment - begun == pytest.approx(granted)
    limit.moment = begun
    assert limit.passed()


def test_the_host_knows_the_process_it_waits_for(bare_pool: SandboxPool) -> None:
    session = bare_pool.take()
    session.open()
    try:
        assert b"guest.zygote" in Path(f"/proc/{session.pid}/cmdline").read_bytes()
        assert session.pid != bare_pool.pid
    finally:
        session.close()
