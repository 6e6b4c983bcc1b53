"""Opening, sharing and closing pools."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from histobench.mint.sandbox import Limits, SandboxError, SandboxPool, active_backend, open_sandbox
from histobench.mint.sandbox.guest.processes import process_table, trees
from histobench.mint.sandbox.launch import SessionSetup


def test_many_threads_share_one_pool(bare_pool: SandboxPool) -> None:
    def work(number: int) -> str:
        with bare_pool.episode({"double": lambda x: 2 * x}) as episode:
            episode.run_cell(f"x = double({number})")
            return episode.run_cell("print(x)").text

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(40))) == [f"{2 * n}\n" for n in range(40)]


@pytest.mark.slow
def test_a_pool_outlives_the_thread_that_opened_it() -> None:
    opened: list[SandboxPool] = []
    thread = threading.Thread(
        target=lambda: opened.append(open_sandbox(preload=(), shell="plain")), name="short-lived"
    )
    thread.start()
    thread.join()
    time.sleep(0.2)
    with opened[0] as pool, pool.episode() as episode:
        assert episode.run_cell("print(1)").text == "1\n"


def test_code_that_is_too_long_is_refused_and_the_session_goes_on(bare_pool: SandboxPool) -> None:
    with bare_pool.episode() as episode:
        episode.run_cell("x = 1")
        refused = episode.run_cell(f"y = '{'z' * 5_000_000}'")
        assert (refused.kind, refused.text[:24]) == ("error", "The code is too long to ")
        assert episode.run_cell("print(x)").text == "1\n"


def test_results_of_tools_that_no_message_can_hold_are_cut_or_refused(bare_pool: SandboxPool) -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    tools = {"deep": lambda: nested, "long": lambda: "\U0001f600" * 1_000_000, "leave": sys.exit}
    with bare_pool.episode(tools) as episode:
        assert "RuntimeError: 3" in episode.run_cell("leave(3)").text
        assert "RecursionError" in episode.run_cell("deep()").text
        assert episode.run_cell("print(len(long()))").text == "262144\n"


@pytest.mark.slow
def test_a_lost_zygote_is_replaced(bare_pool: SandboxPool) -> None:
    with open_sandbox(bare_pool.backend, preload=(), shell="plain") as pool:
        episode = pool.episode()
        zygote = _zygote_of(pool)
        os.kill(zygote, signal.SIGKILL)
        while pool._zygote.alive():  # the outermost process ends last, after every episode
            time.sleep(0.01)
        with episode:
            assert episode.run_cell("print(1)").kind == "killed"
            assert episode.run_cell("print(1)").text == "1\n"


def test_an_unknown_backend_and_an_unknown_module_are_named() -> None:
    with pytest.raises(SandboxError, match="known: auto, bubblewrap, docker, landlock, unsafe"):
        open_sandbox("chroot")
    name = active_backend()[0]
    with pytest.raises(SandboxError, match="no_such_module"):
        open_sandbox(name, preload=("no_such_module",), shell="plain")


def test_auto_never_takes_the_unsafe_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(self: SandboxPool, backend: str, setup: SessionSetup) -> None:
        tried.append(backend)
        raise SandboxError("not here")

    monkeypatch.setattr(SandboxPool, "__init__", refuse)
    with pytest.raises(SandboxError, match="no sandbox works on this machine"):
        open_sandbox()
    assert tried == ["bubblewrap", "landlock"]


def test_the_unsafe_backend_runs_when_named() -> None:
    with open_sandbox("unsafe", preload=(), shell="plain") as pool, pool.episode() as episode:
        assert episode.run_cell("print(6 * 7)").text == "42\n"


@pytest.mark.slow
def test_everything_ends_with_the_host(bare_pool: SandboxPool) -> None:
    mark = f"29{os.getpid()}.25"
    script = (
        "import os\nfrom histobench.mint.sandbox import open_sandbox\n"
        f"episode = open_sandbox({bare_pool.backend!r}, preload=(), shell='plain').episode()\n"
        f"episode.run_cell(\"import subprocess; subprocess.Popen(['sleep', '{mark}'])\")\n"
        "print('started', flush=True)\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "started\n", done.stderr
    deadline = time.monotonic() + 300
    while any(mark.encode() in _command_line(p) for p in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, "a process outlived the host"
        time.sleep(0.02)


@pytest.mark.slow
def test_no_key_is_in_the_process_list(bare_pool: SandboxPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the arguments nor the environment of any process that the sandbox starts, or its episodes."""
    monkeypatch.setenv("SOME_API_KEY", "sk-of-the-process-list")
    with open_sandbox(bare_pool.backend, preload=(), shell="plain") as pool, pool.episode() as episode:
        session = pool.take_for_tests()
        session.open()
        seen = episode.run_cell(
            "import os, subprocess\nprint(os.environ, subprocess.getoutput('ps axeww'))"
        ).text
        children = _tree(os.getpid()) - {os.getpid()}
        assert {pool.pid, session.pid} <= children
        for pid in children:
            shown = _command_line(Path(f"/proc/{pid}"))
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                shown += Path(f"/proc/{pid}/environ").read_bytes()
            assert b"sk-of-the-process-list" not in shown
        session.close()
    assert "PATH" in seen
    assert "sk-of-the-process-list" not in seen


@pytest.mark.parametrize(
    ("take", "look"),
    [
        ("fcntl.flock(f, fcntl.LOCK_EX)", "fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"),
        (
            "fcntl.lockf(f, fcntl.LOCK_SH)",
            "fcntl.fcntl(f, fcntl.F_GETLK, struct.pack('hhqqi', 1, 0, 0, 0, 0))",
        ),
        ("fcntl.lockf(null, fcntl.LOCK_EX)", "fcntl.lockf(null, fcntl.LOCK_EX | fcntl.LOCK_NB)"),
    ],
)
def test_no_lock_of_one_episode_is_seen_in_another(bare_pool: SandboxPool, take: str, look: str) -> None:
    files = "import fcntl, os, struct\nf = open(os.__file__)\nnull = open('/dev/null', 'w')\n"
    look = f"try:\n    x = {look}\nexcept OSError as error:\n    x = error.errno\nprint(x)"
    with bare_pool.episode() as one, bare_pool.episode() as other:
        other.run_cell(files)
        before = other.run_cell(look).text
        assert one.run_cell(f"{files}{take}\nprint('taken')").text == "taken\n"
        assert other.run_cell(look).text == before


def test_a_database_on_disk_works_without_locks(bare_pool: SandboxPool) -> None:
    code = (
        "import sqlite3\nfor n in range(3):\n    with sqlite3.connect('a.db') as db:\n"
        "        db.execute('create table if not exists t (n)')\n"
        "        db.execute('insert into t values (?)', [n])\n"
        "print(sqlite3.connect('a.db').execute('select sum(n) from t').fetchone())"
    )
    with bare_pool.episode() as episode:
        assert episode.run_cell(code).text == "(3,)\n"


@pytest.mark.nightly
def test_scientific_packages_work_under_the_default_limits(bare_pool: SandboxPool) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("sympy")
    code = (
        "import numpy, scipy.special, pandas, sympy\n"
        "print(numpy.linalg.inv(numpy.eye(200)).trace(), scipy.special.ndtr(0), "
        "pandas.DataFrame({'a': [1, 2]}).a.sum(), sympy.integrate(sympy.Symbol('x')))"
    )
    with (
        open_sandbox(bare_pool.backend, preload=(), shell="plain", limits=Limits()) as pool,
        pool.episode() as episode,
    ):
        text = episode.run_cell(code, timeout=120).text
    assert text == "200.0 0.5 3 x**2/2\n"


def test_threads_subprocesses_and_asyncio_work(bare_pool: SandboxPool) -> None:
    code = (
        "import asyncio, subprocess, sys, threading\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "async def f(): return await asyncio.sleep(0, 'a')\n"
        "print(asyncio.run(f()), list(ThreadPoolExecutor(2).map(abs, [-1, -2])), "
        "subprocess.run([sys.executable, '-c', 'print(3)'], capture_output=True, text=True).stdout)"
    )
    with bare_pool.episode() as episode:
        assert episode.run_cell(code, timeout=30).text == "a [1, 2] 3\n\n"


def _zygote_of(pool: SandboxPool) -> int:
    """The process that forks the episodes: the pool's own, or with bubblewrap the first one inside."""
    if pool.backend != "bubblewrap":
        return pool.pid  # its episodes have the same command line
    for pid in _tree(pool.pid):
        if b"guest.zygote" in _command_line(Path(f"/proc/{pid}")):
            numbers = Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].splitlines()[0].split()
            if numbers[1:] == ["1"]:
                return pid
    raise AssertionError("no zygote found")


def _tree(pid: int) -> set[int]:
    return {process.pid for process in trees([pid], process_table())[pid]}


def _command_line(folder: Path) -> bytes:
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:
        return b""
