"""Where a Ray cluster is looked for, before Ray itself waits for minutes."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

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
    with pytest.raises(HistobenchError, match=rf"at auto: 127.0.0.1:{closed}, which Ray remembers, does not"):
        clusters._that_answers("auto")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Ray does not look at TMPDIR")
def test_a_dead_cluster_is_looked_for_where_ray_remembers_it_without_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: int
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    remember(tmp_path, f"127.0.0.1:{closed}")
    assert clusters._that_answers(None) == "local"


def test_an_address_of_ipv6_is_knocked_at_too() -> None:
    with socket.socket(socket.AF_INET6) as listening:
        try:
            listening.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"this machine has no IPv6: {error}")
        listening.listen()
        address = f"[::1]:{listening.getsockname()[1]}"
        assert clusters._that_answers(address) == address


def test_a_named_cluster_has_to_answer(port: int, closed: int) -> None:
    assert clusters._that_answers(f"127.0.0.1:{port}") == f"127.0.0.1:{port}"
    assert clusters._that_answers(f"ray://127.0.0.1:{port}") == f"ray://127.0.0.1:{port}"
    for address in (f"127.0.0.1:{closed}", f"ray://127.0.0.1:{closed}", "127.0.0.1:99999999999999999999"):
        with pytest.raises(HistobenchError, match=rf"no Ray cluster at {address}: .* `ray_address` names it"):
            clusters._that_answers(address)


def test_a_cluster_that_asks_for_a_token_is_told_from_one_that_is_not_there(port: int) -> None:
    refused = RuntimeError("RPC error: InvalidAuthToken: Authentication token is missing or incorrect")
    renamed = type("AuthenticationError", (Exception,), {})("no token")  # the class of newer versions
    causes = [refused, renamed, None]

    class Ray:
        """In place of `ray`, which takes 20 s to give up."""

        class exceptions:  # noqa: N801
            RayError = KeyError

        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**options: object) -> None:
            raise ConnectionError("Failed to connect to Ray cluster") from causes.pop(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", Ray)  # type: ignore[arg-type]
        for line in (
            *[f"the Ray cluster at 127.0.0.1:{port} asks for a token; set RAY_AUTH_MODE=token"] * 2,
            f"no Ray cluster at 127.0.0.1:{port}: Failed to connect to Ray cluster; `ray start",
        ):
            with pytest.raises(HistobenchError) as caught:
                clusters.connect(f"127.0.0.1:{port}")
            assert str(caught.value).startswith(line)
