"""Opening, sharing and closing pools."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from histobench.mint.sandbox import (
    Limits,
    SandboxError,
    SandboxPool,
    active_backend,
    backend_works,
    open_sandbox,
    zygote_process,
)
from histobench.mint.sandbox.interpreter import interpreter_folders
from histobench.mint.sandbox.launch import Launch


def test_many_threads_share_one_pool(bare_pool: SandboxPool) -> None:
    def work(number: int) -> str:
        with bare_pool.episode({"double": lambda x: 2 * x}) as episode:
            episode.run_cell(f"x = double({number})")
            return episode.run_cell("print(x)").text

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(40))) == [f"{2 * n}\n" for n in range(40)]


def test_a_pool_outlives_the_thread_that_opened_it() -> None:
    opened: list[SandboxPool] = []
    thread = threading.Thread(
        target=lambda: opened.append(open_sandbox(preload=(), shell="plain", warm=0)), name="short-lived"
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
    with open_sandbox(bare_pool.backend, preload=(), shell="plain", warm=1) as pool:
        episode = pool.episode()
        zygote = _zygote_of(pool)
        os.kill(zygote, signal.SIGKILL)
        while pool._zygote.alive():  # the outermost process ends last, after every episode
            time.sleep(0.01)
        with episode:
            assert episode.run_cell("print(1)").kind == "killed"
            assert episode.run_cell("print(1)").text == "1\n"


def test_a_closed_pool_says_so(bare_pool: SandboxPool) -> None:
    pool = open_sandbox(bare_pool.backend, preload=(), shell="plain", warm=0)
    pool.close()
    pool.close()
    with pytest.raises(SandboxError, match="closed"):
        pool.episode()


def test_an_unknown_backend_and_an_unknown_module_are_named() -> None:
    with pytest.raises(
        SandboxError, match="known: auto, bubblewrap, landlock, gvisor, podman, docker, unsafe"
    ):
        open_sandbox("chroot")
    name = active_backend()[0]
    with pytest.raises(SandboxError, match="no_such_module"):
        open_sandbox(name, preload=("no_such_module",), shell="plain")


def test_auto_never_takes_the_unsafe_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(self: SandboxPool, backend: str, **_: object) -> None:
        tried.append(backend)
        raise SandboxError("not here")

    monkeypatch.setattr(SandboxPool, "__init__", refuse)
    with pytest.raises(SandboxError, match="no sandbox works on this machine"):
        open_sandbox()
    assert tried == ["bubblewrap", "landlock"]


def test_the_unsafe_backend_runs_when_named() -> None:
    with open_sandbox("unsafe", preload=(), shell="plain", warm=0) as pool, pool.episode() as episode:
        assert episode.run_cell("print(6 * 7)").text == "42\n"


def test_the_active_backend_comes_with_its_reason() -> None:
    name, why = active_backend()
    assert name in ("bubblewrap", "landlock", "none")
    assert why
    assert name == "none" or backend_works(name) == ""


def test_everything_ends_with_the_host(bare_pool: SandboxPool) -> None:
    mark = f"29{os.getpid()}.25"
    script = (
        "import os\nfrom histobench.mint.sandbox import open_sandbox\n"
        f"episode = open_sandbox({bare_pool.backend!r}, preload=(), shell='plain', warm=2).episode()\n"
        f"episode.run_cell(\"import subprocess; subprocess.Popen(['sleep', '{mark}'])\")\n"
        "print('started', flush=True)\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "started\n", done.stderr
    deadline = time.monotonic() + 300
    while any(mark.encode() in _command_line(p) for p in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, "a process outlived the host"
        time.sleep(0.02)


def test_the_interpreter_is_found_wherever_it_lies() -> None:
    folders = interpreter_folders()
    executable = os.path.realpath(sys.executable)
    assert executable.startswith("/usr/") or any(executable.startswith(f"{folder}/") for folder in folders)
    assert not any(folder in ("/", "/root", "/home") for folder in folders)


@pytest.mark.slow
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
    """The process beneath the pool's outermost one that forks the episodes."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    levels = 2 if pool.backend == "bubblewrap" else 1
    for pid in parents:
        ancestor = pid
        while ancestor != pool.pid and ancestor in parents:
            ancestor = parents[ancestor]
        if ancestor == pool.pid and b"guest.zygote" in _command_line(Path(f"/proc/{pid}")):
            numbers = Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].splitlines()[0].split()
            if len(numbers) == levels and numbers[1:] in ([], ["1"]):
                return pid
    raise AssertionError("no zygote found")


def _command_line(folder: Path) -> bytes:
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_sandbox_that_ends_before_it_is_spoken_to_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(self: zygote_process.ZygoteProcess, launch: Launch, descriptor: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sh", "-c", "echo no rights here >&2; exit 1"], stderr=self._errors)
        process.wait()
        return process

    monkeypatch.setattr(zygote_process.ZygoteProcess, "_start", ended)
    with pytest.raises(SandboxError, match="sandbox did not start: no rights here"):
        zygote_process.ZygoteProcess("landlock", preload=(), shell="plain", limits=Limits(), hash_seed=0)
