"""Limits hold for all that an episode and what it started take together, by whatever way they take it."""

from __future__ import annotations

import os
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from histobench.mint.sandbox import SandboxPool, open_sandbox
from histobench.mint.sandbox.guest import scratch, watch
from histobench.mint.sandbox.guest.processes import process_table

pytestmark = pytest.mark.slow

_LIST = Path(__file__).with_name("hostile_limits.toml").read_text(encoding="utf-8")
GRABS = {entry["does"]: entry for entry in tomllib.loads(_LIST)["grab"]}
PRELUDE = "import ctypes, os, socket, sys, time\nlibc = ctypes.CDLL(None)\n"


@pytest.mark.parametrize("what", GRABS)
def test_more_than_allowed_is_not_had(bare_pool: SandboxPool, what: str) -> None:
    with bare_pool.episode() as bystander, bare_pool.episode() as episode:
        bystander.run_cell("kept = 1")
        result = episode.run_cell(PRELUDE + GRABS[what]["code"], timeout=120)
        assert result.kind in ("killed", "error"), result
        assert GRABS[what]["words"] in result.text
        assert bystander.run_cell("print(kept)").text == "1\n"
        assert episode.run_cell("print(1)").text == "1\n"


def test_files_in_folders_count_and_what_links_name_does_not(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x").write_bytes(os.urandom(1 << 20))
    (tmp_path / "link").symlink_to(os.__file__)
    assert scratch.disk_exceeds(str(tmp_path), 1 << 20)
    assert not scratch.disk_exceeds(str(tmp_path), (1 << 20) + (1 << 15))


@pytest.mark.isolation("bubblewrap")  # without namespaces an episode's files lie on the host's disk
def test_files_in_memory_count_as_memory(bare_pool: SandboxPool) -> None:
    code = (
        "import os, time\nfor i in range(3):\n    if os.fork() == 0:\n        x = b'1' * (125 << 20)\n"
        "        time.sleep(600)\ntime.sleep(2)\n"
        "for name in ('/dev/shm/x', 'x'):\n    open(name, 'wb').write(b'x' * (15 << 20))\ntime.sleep(600)"
    )
    with bare_pool.episode() as episode:
        result = episode.run_cell(code, timeout=120)
        assert result.text.startswith("MemoryError: the session held more than 400 MB"), result


def test_processor_time_of_all_processes_counts_together(bare_pool: SandboxPool) -> None:
    code = (
        "import os, time\nfor i in range(4):\n    if os.fork() == 0:\n        while True: pass\n"
        "while True: time.sleep(0.01)"
    )
    limits = replace(bare_pool.limits, cpu_seconds=1)
    with (
        open_sandbox(bare_pool.backend, preload=(), shell="plain", limits=limits) as pool,
        pool.episode() as episode,
    ):
        result = episode.run_cell(code, timeout=120)
    assert result.text.startswith("TimeoutError: the session used more than 1 seconds of processor time"), (
        result
    )


def test_processor_time_of_processes_that_nobody_waited_for_is_not_forgotten() -> None:
    spent = watch.Spent()
    for seen in (10, 250, 40, 90):  # 210 ticks went with a process between the second and the third look
        spent.add(seen)
    assert spent.seen + spent.lost == 300


@pytest.mark.isolation("bubblewrap")  # without namespaces there is no shared memory folder
def test_what_processes_share_by_files_works_where_it_has_a_limit(bare_pool: SandboxPool) -> None:
    code = (
        "import multiprocessing as m\nfrom multiprocessing import shared_memory\n"
        "value, lock = m.Value('i', 0), m.Lock()\n"
        "block = shared_memory.SharedMemory(create=True, size=1 << 20)\n"
        "def work():\n    with lock: value.value += 1\n    block.buf[0] += 1\n"
        "ps = [m.get_context('fork').Process(target=work) for i in range(4)]\n"
        "for p in ps: p.start(); p.join()\n"
        "print(value.value, block.buf[0], m.get_context('fork').Pool(2).map(abs, [-1, -2]))"
    )
    with bare_pool.episode() as episode:
        assert episode.run_cell(code, timeout=120).text == "4 4 [1, 2]\n"


@pytest.mark.isolation("landlock")  # in a namespace it sees its own empty network and its own mounts
def test_an_episode_without_namespaces_learns_nothing_of_network_and_mounts(bare_pool: SandboxPool) -> None:
    code = (
        "def seen(path):\n    try:\n        return bool(open(path).read(1))\n"
        "    except OSError:\n        return False\n"
        "names = 'net/unix net/tcp net/dev mountinfo mounts mountstats cgroup environ'.split()\n"
        "print([n for n in names for p in ('self', 'thread-self', '1') if seen(f'/proc/{p}/{n}')])"
    )
    with bare_pool.episode() as episode:
        assert episode.run_cell(code).text == "[]\n"


@pytest.mark.parametrize("depth", [0, 3, 1500])
def test_a_tree_is_removed_however_deep_and_however_closed(tmp_path: Path, depth: int) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for level in range(depth):
        os.mkdir("d" * 90, dir_fd=here)
        os.close(os.open(f"file{level}", os.O_CREAT, dir_fd=here))
        below = os.open("d" * 90, os.O_RDONLY, dir_fd=here)
        os.fchmod(below, 0o300)
        os.close(here)
        here = below
    os.symlink(tmp_path, "link", dir_fd=here)
    os.close(here)
    (tmp_path / "kept").write_text("kept")
    scratch.remove_tree(str(top))
    assert not top.exists()
    assert (tmp_path / "kept").read_text() == "kept"


def test_disk_use_counts_every_level_and_stops_at_too_many(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(50):
        folder = folder / "d"
        folder.mkdir()
        (folder / "f").write_bytes(b"x" * (64 << 10))
    taken = sum(path.lstat().st_blocks * 512 for path in tmp_path.rglob("*"))
    assert not scratch.disk_exceeds(str(tmp_path), taken)
    assert scratch.disk_exceeds(str(tmp_path), taken - 1)
    assert scratch.disk_exceeds(str(tmp_path), taken, besides=1)
    for _ in range(scratch.MOST_LEVELS):
        folder = folder / "d"
        folder.mkdir()
    assert scratch.disk_exceeds(str(tmp_path), 1 << 40)


def test_the_process_table_is_the_kernels() -> None:
    own = process_table()[os.getpid()]
    assert own.parent == os.getppid()
    before = time.process_time()
    assert own.ticks / os.sysconf("SC_CLK_TCK") == pytest.approx(before + sum(os.times()[2:4]), abs=0.5)
    assert own.folder() == f"/proc/{os.getpid()}"
