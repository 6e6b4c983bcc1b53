"""Where a Ray cluster is looked for, before Ray itself waits for minutes."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from histobench.core.errors import HistobenchError
from histobench.work import clusters


@pytest.fixture
def port() -> Iterator[int]:
    """One at which somebody answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield int(listening.getsockname()[1])


@pytest.fixture
def closed() -> int:
    """One at which nobody does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def remember(folder: Path, address: str) -> None:
    (folder / "ray").mkdir(exist_ok=True)
    (folder / "ray" / "ray_current_cluster").write_text(address)


def test_a_cluster_that_has_died_but_is_remembered_does_not_keep_a_new_one_from_being_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int, closed: int
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert clusters._that_answers(None) is None  # nothing is remembered: Ray begins one
    remember(tmp_path, f"127.0.0.1:{port}")
    assert clusters._that_answers(None) is None  # Ray finds it
    assert clusters._that_answers("auto") == "auto"
    remember(tmp_path, f"127.0.0.1:{closed}")
    assert clusters._that_answers(None) == "local"
    with pytest.raises(HistobenchError, match=rf"no Ray cluster at 127.0.0.1:{closed}: "):
        clusters._that_answers("auto")


def test_a_named_cluster_has_to_answer(port: int, closed: int) -> None:
    assert clusters._that_answers(f"127.0.0.1:{port}") == f"127.0.0.1:{port}"
    assert clusters._that_answers(f"ray://127.0.0.1:{port}") == f"ray://127.0.0.1:{port}"
    for address in (f"127.0.0.1:{closed}", f"ray://127.0.0.1:{closed}", "127.0.0.1:99999999999999999999"):
        with pytest.raises(HistobenchError, match=rf"no Ray cluster at {address}: .* `ray_address` names it"):
            clusters._that_answers(address)


def test_a_request_to_end_is_heard_by_the_command_and_not_by_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, is_initialized=lambda: False))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    trace = "RAY_disable_failure_signal_handler"  # what Ray prints on SIGTERM
    monkeypatch.setenv(trace, "")
    monkeypatch.delenv(trace)
    before = signal.getsignal(signal.SIGTERM)
    try:
        clusters.connect()
        assert signal.getsignal(signal.SIGTERM) == before
        assert os.environ[trace] == "1"
    finally:
        signal.signal(signal.SIGTERM, before)
