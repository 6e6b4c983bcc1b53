"""Docker behind the same interface; tried for real where its daemon runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from histobench.mint.sandbox import Limits, SandboxPool, backend_works, open_sandbox, run_unit_tests
from histobench.mint.sandbox.bubblewrap import scratch_folder
from histobench.mint.sandbox.docker import run_options
from histobench.mint.sandbox.visible_files import guest_folder, withheld_paths
from histobench.mint.sandbox.zygote_process import SandboxError

pytestmark = pytest.mark.slow

LIMITS = Limits(memory_mb=400, scratch_mb=16, file_mb=16, processes=24, patience=0, grace=5)


@pytest.fixture(scope="module")
def docker_pool() -> Iterator[SandboxPool]:
    """A pool of containers under tight limits."""
    if refusal := backend_works("docker"):
        pytest.skip(refusal)
    with open_sandbox("docker", preload=(), shell="plain", limits=LIMITS) as pool:
        yield pool


def test_cells_keep_their_state_and_call_tools(docker_pool: SandboxPool) -> None:
    with docker_pool.episode({"double": lambda number: 2 * number}) as episode:
        assert episode.run_cell("x = 6").kind == "ok"
        assert episode.run_cell("x * 7").text == "Out[2]: 42\n"
        assert episode.run_cell("print(double(x))").text == "12\n"


@pytest.mark.nightly
def test_soft_and_hard_time_limits_hold(docker_pool: SandboxPool) -> None:
    with docker_pool.episode() as episode:
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


def test_what_it_must_not_have_is_refused(docker_pool: SandboxPool, treasure) -> None:
    facts = {"secret": str(treasure.secret_file), "unix": treasure.unix_path, "pid": os.getpid()}
    with docker_pool.episode() as episode:
        assert episode.run_cell(f"HOST = {facts!r}").kind == "ok"
        for code in REFUSED:
            result = episode.run_cell(code, timeout=10)
            assert (result.kind, "Error" in result.text) == ("error", True), (code, result)
        assert episode.run_cell("print(len(HOST))").text == "3\n"
    assert treasure.untouched()


@pytest.mark.sample(1)
def test_memory_and_processes_of_all_together_are_limited(docker_pool: SandboxPool) -> None:
    grab = (
        "import os, time\npids = []\nfor i in range(6):\n    pid = os.fork()\n    if pid == 0:\n"
        "        x = b'1' * (150 << 20)\n        time.sleep(600)\n    pids.append(pid)\n"
        "end = time.monotonic() + 60\nwhile len(pids) > 3 and time.monotonic() < end:\n"
        "    pids = [p for p in pids if os.waitpid(p, os.WNOHANG)[0] == 0]\n    time.sleep(0.1)\n"
        "print('alive', len(pids))"
    )
    with docker_pool.episode() as episode:
        result = episode.run_cell(grab, timeout=120)
        assert result.kind == "killed" or int(result.text.split()[-1]) < 4, result
    bomb = "import os, time\nfor i in range(300):\n    if os.fork() == 0: time.sleep(60)"
    with docker_pool.episode() as episode:
        assert episode.run_cell(bomb, timeout=60).kind in ("error", "killed")
        episode.close()
        assert episode.run_cell("print(1)").text == "1\n"


def test_verdicts_are_earned_in_a_container_too(docker_pool: SandboxPool) -> None:
    assert run_unit_tests(docker_pool, "def f(n): return n + 1", "assert f(1) == 2").passed
    assert not run_unit_tests(docker_pool, "def f(n): return n", "assert f(1) == 2").passed


def test_long_messages_arrive_whole(docker_pool: SandboxPool) -> None:
    with docker_pool.episode({"size": len, "text": lambda n: "y" * n}) as episode:
        for _ in range(3):
            assert (
                episode.run_cell("print(size('x' * 1_500_000), len(text(1_500_000)))").text
                == "1500000 1500000\n"
            )


def test_no_container_is_left_behind(docker_pool: SandboxPool) -> None:
    with open_sandbox("docker", preload=(), shell="plain", limits=LIMITS) as pool, pool.episode() as episode:
        assert episode.run_cell("import subprocess; subprocess.Popen(['sleep', '600'])").kind == "ok"
        before = _containers()
    assert len(_containers()) < len(before)


def _containers() -> list[str]:
    command = ["docker", "ps", "--all", "--format", "{{.Names}}"]
    seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [name for name in seen.split() if name.startswith(f"histobench-{os.getpid()}-")]


def test_the_command_line_gives_nothing_away() -> None:
    options = run_options(LIMITS, {"HOME": "/tmp"}, withheld=withheld_paths())
    pairs = list(pairwise(options))
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
    assert "--read-only" in options
    assert "--privileged" not in options
    assert all(value.endswith(":ro") for option, value in pairs if option == "--volume")


#: Stands in for the engine: `import` keeps the image's archive, `run` starts the guest in the foreground.
FAKE = """#!{python}
import os, sys
folder = os.path.dirname(os.path.abspath(__file__))
if sys.argv[1] == "import":
    open(folder + "/image.tar", "wb").write(sys.stdin.buffer.read())
    print("sha256:fake")
elif sys.argv[1] == "run":
    guest = sys.argv[sys.argv.index("sha256:fake") + 1 :]
    guest[-1] = guest[-1].replace("/sandbox", {parent!r})
    os.execv(guest[0], guest)
else:
    open(folder + "/log", "a").write(" ".join(sys.argv[1:]) + "\\n")
"""


@pytest.mark.skipif(
    scratch_folder() != "/tmp", reason="with an interpreter under /tmp only a real engine has /scratch"
)
def test_containers_are_made_used_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tmp_path / "docker"
    engine.write_text(FAKE.format(python=sys.executable, parent=str(Path(guest_folder()).parent)))
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with open_sandbox("docker", preload=(), shell="plain") as pool:
        with pool.episode({"double": lambda number: 2 * number}) as episode:
            assert episode.run_cell("print(double(21))").text == "42\n"
        assert run_unit_tests(pool, "def f(n): return n + 1", "assert f(1) == 2").passed
        assert not run_unit_tests(pool, "def f(n): return n", "assert f(1) == 2").passed
    with tarfile.open(tmp_path / "image.tar") as image:
        names = set(image.getnames())
    assert {"./proc", "./usr", "./sandbox/guest"} <= names
    orders = (tmp_path / "log").read_text().split("\n")
    assert sum(order.startswith("rm --force histobench-") for order in orders) >= 4
    assert orders[-2] == "rmi sha256:fake"


def test_what_the_engine_refuses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = "docker: no such device\n\nRun 'docker run --help' for more information"
    (tmp_path / "docker").write_text(
        f'#!/bin/sh\n[ $1 = run ] || exec echo\necho "{refusal}" >&2\nexit 125\n'
    )
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match="no such device"):
        open_sandbox("docker", preload=(), shell="plain")


def test_an_engine_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    backend_works.cache_clear()
    try:
        assert "docker is not installed" in backend_works("docker")
    finally:
        backend_works.cache_clear()
