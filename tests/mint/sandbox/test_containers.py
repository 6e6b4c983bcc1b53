"""Container engines behind the same interface; each is tried for real where it can run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from histobench.mint.sandbox import Limits, SandboxPool, backend_works, open_sandbox, run_unit_tests
from histobench.mint.sandbox.container_engines import DockerLike, Gvisor, Surroundings, container_view
from histobench.mint.sandbox.withheld import withheld_paths

pytestmark = pytest.mark.slow

LIMITS = Limits(memory_mb=400, scratch_mb=16, file_mb=16, processes=24, patience=0, grace=5)
ENGINES = ("gvisor", "podman", "docker")


@pytest.fixture(scope="module", params=ENGINES)
def container_pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SandboxPool]:
    """A pool of containers under tight limits; Podman with the runtime that works here."""
    engine = request.param
    with pytest.MonkeyPatch.context() as patch:
        if engine == "podman" and shutil.which("podman") and shutil.which("runc"):
            settings = tmp_path_factory.mktemp("podman") / "containers.conf"
            settings.write_text('[engine]\nruntime = "runc"\n')
            patch.setenv("CONTAINERS_CONF", str(settings))
        if refusal := backend_works(engine):
            pytest.skip(refusal)
        with open_sandbox(engine, preload=(), shell="plain", limits=LIMITS, warm=1) as pool:
            yield pool


def test_cells_keep_their_state_and_call_tools_from_threads(container_pool: SandboxPool) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "print(list(ThreadPoolExecutor(4).map(double, range(20))) == [2 * n for n in range(20)])"
    )
    with container_pool.episode({"double": lambda number: 2 * number}) as episode:
        assert episode.run_cell("x = 6").kind == "ok"
        assert episode.run_cell("x * 7").text == "Out[2]: 42\n"
        assert episode.run_cell(code, timeout=20).text == "True\n"


@pytest.mark.nightly
def test_soft_and_hard_time_limits_hold(container_pool: SandboxPool) -> None:
    with container_pool.episode() as episode:
        episode.run_cell("kept = 41")
        assert episode.run_cell("while True: pass", timeout=0.5).kind == "timeout"
        assert episode.run_cell("print(kept + 1)").text == "42\n"
        stubborn = "while True:\n  try:\n    while True:\n      x = 1\n  except BaseException:\n    y = 2"
        assert episode.run_cell(stubborn, timeout=0.5).kind == "killed"
        assert episode.run_cell("print(1)").text == "1\n"


REFUSED = [
    "import socket; socket.create_connection(('8.8.8.8', 53), 2)",
    "import socket; socket.socket(socket.AF_UNIX).connect(HOST['unix'])",
    "open(HOST['secret']).read()",
    "open('/usr/new', 'w')",
    "open('/new', 'w')",
    "open('/sandbox/guest/new.py', 'w')",
    "import os; os.setuid(0)",
    "import os; os.kill(HOST['pid'], 0)",
    "import ctypes\nif ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None): raise OSError('refused')",
    "for i in range(40): open(f'part{i}', 'wb').write(b'x' * (2 << 20))",
    "for i in range(40): open(f'/dev/shm/part{i}', 'wb').write(b'x' * (2 << 20))",
    "x = bytearray(1 << 30)",
]


def test_what_it_must_not_have_is_refused(container_pool: SandboxPool, treasure) -> None:
    facts = {"secret": str(treasure.secret_file), "unix": treasure.unix_path, "pid": os.getpid()}
    with container_pool.episode() as episode:
        assert episode.run_cell(f"HOST = {facts!r}").kind == "ok"
        for code in REFUSED:
            result = episode.run_cell(code, timeout=10)
            assert (result.kind, "Error" in result.text) == ("error", True), (code, result)
        assert episode.run_cell("print(len(HOST))").text == "3\n"
    assert treasure.untouched()


@pytest.mark.sample(1)
def test_memory_and_processes_of_all_together_are_limited(container_pool: SandboxPool) -> None:
    if container_pool.backend == "gvisor" and os.getuid() != 0:
        pytest.skip("without root runsc makes no control group: only each process has a limit")
    grab = (
        "import os, time\npids = []\nfor i in range(6):\n    pid = os.fork()\n    if pid == 0:\n"
        "        x = b'1' * (150 << 20)\n        time.sleep(600)\n    pids.append(pid)\n"
        "end = time.monotonic() + 60\nwhile len(pids) > 3 and time.monotonic() < end:\n"
        "    pids = [p for p in pids if os.waitpid(p, os.WNOHANG)[0] == 0]\n    time.sleep(0.1)\n"
        "print('alive', len(pids))"
    )
    with container_pool.episode() as episode:
        result = episode.run_cell(grab, timeout=120)
        assert result.kind == "killed" or int(result.text.split()[-1]) < 4, result
    bomb = "import os, time\nfor i in range(300):\n    if os.fork() == 0: time.sleep(60)"
    with container_pool.episode() as episode:
        assert episode.run_cell(bomb, timeout=60).kind in ("error", "killed")
        episode.close()
        assert episode.run_cell("print(1)").text == "1\n"


def test_verdicts_are_earned_in_a_container_too(container_pool: SandboxPool) -> None:
    assert run_unit_tests(container_pool, "def f(n): return n + 1", "assert f(1) == 2").passed
    assert not run_unit_tests(container_pool, "def f(n): return n", "assert f(1) == 2").passed


def test_long_messages_arrive_whole(container_pool: SandboxPool) -> None:
    with container_pool.episode({"size": len, "text": lambda n: "y" * n}) as episode:
        for _ in range(3):
            assert (
                episode.run_cell("print(size('x' * 1_500_000), len(text(1_500_000)))").text
                == "1500000 1500000\n"
            )


def test_no_container_is_left_behind(container_pool: SandboxPool) -> None:
    with (
        open_sandbox(container_pool.backend, preload=(), shell="plain", limits=LIMITS, warm=1) as pool,
        pool.episode() as episode,
    ):
        assert episode.run_cell("import subprocess; subprocess.Popen(['sleep', '600'])").kind == "ok"
        names = [container for container, _, _ in pool._zygote._running.values()]
        assert _running(names, container_pool.backend)
    assert not _running(names, container_pool.backend)


def _running(names: list[str], backend: str) -> list[str]:
    listing = (
        ["ps", "-ewwo", "args"] if backend == "gvisor" else [backend, "ps", "--all", "--format", "{{.Names}}"]
    )
    seen = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    return [name for name in names if name in seen]


def surroundings(folder: Path) -> Surroundings:
    return Surroundings(str(folder), container_view(withheld_paths()), {"HOME": "/tmp"}, LIMITS)


@pytest.mark.parametrize("program", ["docker", "podman"])
def test_the_command_line_gives_nothing_away(tmp_path: Path, program: str) -> None:
    around = surroundings(tmp_path)
    command = DockerLike(program, around).run("name", ["python"])
    pairs = list(pairwise(command))
    for wanted in (
        ("--network", "none"),
        ("--cap-drop", "all"),
        ("--security-opt", "no-new-privileges"),
        ("--user", "65534:65534"),
        ("--memory", "432m"),
        ("--memory-swap", "432m"),
        ("--pids-limit", "24"),
    ):
        assert wanted in pairs
    assert "--read-only" in command
    assert "--privileged" not in command
    assert all(value.endswith(":ro") for option, value in pairs if option == "--volume")


def test_the_bundle_gives_nothing_away(tmp_path: Path) -> None:
    command = Gvisor(surroundings(tmp_path)).run("name", ["python"])
    assert ("--network", "none") in list(pairwise(command))
    settings = json.loads((Path(command[command.index("--bundle") + 1]) / "config.json").read_text())
    assert settings["process"]["user"] == {"uid": 65534, "gid": 65534}
    assert settings["process"]["capabilities"] == {}
    assert settings["root"]["readonly"] is True
    assert all("ro" in mount["options"] for mount in settings["mounts"] if mount["type"] == "bind")


def test_an_engine_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    backend_works.cache_clear()
    try:
        for engine, program in (("gvisor", "runsc"), ("podman", "podman"), ("docker", "docker")):
            assert f"{program} is not installed" in backend_works(engine)
    finally:
        backend_works.cache_clear()
