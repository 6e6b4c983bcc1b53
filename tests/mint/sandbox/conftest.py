"""Pools on every backend that works here, and a host with things worth stealing."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pytest

from histobench.mint.sandbox import Limits, SandboxPool, backend_works, open_sandbox

#: A cell that heeds its soft time-out has all the time that a busy machine may take to let it.
HOSTILE_LIMITS = Limits(memory_mb=400, scratch_mb=16, file_mb=16, processes=24, patience=0, grace=60)
ISOLATIONS = ("bubblewrap", "landlock")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Isolations take turns: `make test` runs each case with one of them, `make test-rest` with the others.

    A hash of the case decides. A test with the mark `isolation(name)` is about that one alone.
    """
    cases: dict[str, list[pytest.Item]] = {}
    elsewhere = set()
    for item in items:
        if item.path.parent != Path(__file__).parent or item.get_closest_marker("nightly"):
            continue
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        isolation = next(
            (value for value in parameters if isinstance(value, str) and value in ISOLATIONS), None
        )
        if isolation is None:
            continue
        if only := item.get_closest_marker("isolation"):
            if only.args[0] != isolation:
                elsewhere.add(item)
            continue
        case = f"{item.path.name} {item.name}".replace(isolation, "", 1)
        cases.setdefault(case, []).append(item)
    for case, group in cases.items():
        place = crc32(case.encode()) % len(group)
        for item in group[:place] + group[place + 1 :]:
            item.add_marker("slow")
            item.add_marker("nightly")
    items[:] = [item for item in items if item not in elsewhere]


@pytest.fixture(scope="session", params=ISOLATIONS)
def bare_pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    """Sessions without IPython, under tight limits."""
    if refusal := backend_works(request.param):
        pytest.skip(refusal)
    with open_sandbox(request.param, preload=(), shell="plain", limits=HOSTILE_LIMITS) as pool:
        yield pool


@pytest.fixture(scope="session", params=ISOLATIONS)
def ipython_pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    """Sessions with IPython, nothing preloaded."""
    pytest.importorskip("IPython")
    if refusal := backend_works(request.param):
        pytest.skip(refusal)
    with open_sandbox(request.param, preload=(), shell="ipython") as pool:
        yield pool


@dataclass
class Treasure:
    """What the host has that model code must not reach; each is open to any ordinary user of the machine."""

    secret_file: Path
    writable_file: Path
    open_folder: Path
    tcp_port: int
    unix_path: str
    abstract_name: str
    callers: list[str]

    def untouched(self) -> bool:
        """Nothing was changed, nobody called."""
        same = (
            self.writable_file.read_text() == "original"
            and self.writable_file.stat().st_mode & 0o777 == 0o666
        )
        return same and not self.callers and [p.name for p in self.open_folder.iterdir()] == ["kept"]


@pytest.fixture(scope="session")
def treasure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Treasure]:
    """A secret, a world-writable file and folder, and three listening sockets."""
    root = Path("/var/tmp") / f"histobench-treasure-{os.getpid()}"
    root.mkdir(mode=0o755)
    os.chmod(root, 0o755)
    secret, writable, folder = root / "secret.txt", root / "writable.txt", root / "open"
    secret.write_text("the-secret")
    secret.chmod(0o644)
    writable.write_text("original")
    writable.chmod(0o666)
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "kept").write_text("kept")
    os.environ["HISTOBENCH_TEST_SECRET"] = "the-secret"
    tcp = socket.create_server(("127.0.0.1", 0))
    by_path, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    unix_path, abstract_name = str(root / "socket"), f"histobench-treasure-{os.getpid()}"
    by_path.bind(unix_path)
    os.chmod(unix_path, 0o777)
    abstract.bind("\0" + abstract_name)
    callers: list[str] = []
    for listener in (tcp, by_path, abstract):
        listener.listen()
        threading.Thread(target=_record_callers, args=(listener, callers), daemon=True).start()
    yield Treasure(secret, writable, folder, tcp.getsockname()[1], unix_path, abstract_name, callers)
    for listener in (tcp, by_path, abstract):
        listener.close()
    for path in (secret, writable, folder / "kept", Path(unix_path)):
        path.unlink(missing_ok=True)
    folder.rmdir()
    root.rmdir()
    del os.environ["HISTOBENCH_TEST_SECRET"]


def _record_callers(listener: socket.socket, callers: list[str]) -> None:
    while True:
        try:
            connection, address = listener.accept()
        except OSError:
            return
        callers.append(str(address))
        connection.close()
