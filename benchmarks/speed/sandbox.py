"""Episodes per second, time to the first result and memory of the sandbox, beside a new process each time.

    python benchmarks/speed/sandbox.py [--episodes 400] [--backend auto] [--write]

An episode is a fresh session that runs one short cell. The last two rows are the alternatives: a new Python
process per episode, which isolates nothing, and exec in the host, which must never be done.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from page import write_section

from histobench.mint.sandbox import SCIENCE, SandboxPool, open_sandbox

CELL = "x = 6\nprint(x * 7)"
MEGABYTE = 1 << 20
HEADING = "## The agents' sandbox"


@dataclass(frozen=True)
class Figures:
    """What was measured for one way of running an episode."""

    name: str
    per_second: float
    cpu_ms: float
    first_ms: float | None = None
    memory_mb: float | None = None
    open_s: float | None = None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=400, help="per row; a new process runs a tenth")
    parser.add_argument("--backend", default="auto", help="auto, bubblewrap or landlock")
    parser.add_argument("--write", action="store_true", help="put the section into docs/benchmarks.md")
    args = parser.parse_args()
    section = measured_section(args.backend, args.episodes)
    print(section)
    if args.write:
        write_section("sandbox", section)


def measured_section(backend: str = "auto", episodes: int = 400) -> str:
    """All rows, with the goals and with how busy the machine was."""
    load = os.getloadavg()[0]
    rows = [
        measure_pool("bare", backend, episodes, preload=(), shell="plain"),
        measure_pool("IPython", backend, episodes // 2, preload=(), shell="ipython"),
        measure_pool("IPython + science", backend, episodes // 2, preload=SCIENCE, shell="ipython"),
        measure_alternative("new process, no isolation", episodes // 10, new_process),
        measure_alternative("exec in the host, no isolation", episodes, in_process),
    ]
    return (
        f"{HEADING}\n\n{date.today()}, {os.cpu_count()} processors, other work on them when this began: load "
        f"{load:.1f}. Goals on two quiet processors: 100 episodes/s bare, 25 with IPython and the scientific "
        f"packages, 8 MB per episode, first result after 50 ms.\n\n{as_table(rows)}\n"
    )


def measure_pool(name: str, backend: str, episodes: int, *, preload: tuple[str, ...], shell: str) -> Figures:
    """One row for a pool: throughput with a thread per core, then latency and memory at rest."""
    threads = os.cpu_count() or 1
    start = time.perf_counter()
    with open_sandbox(backend, preload=preload, shell=shell) as pool:
        opened = time.perf_counter() - start
        name = f"{pool.backend}, {name}"
        short_episode(pool)
        with ThreadPoolExecutor(threads) as workers:
            start = time.perf_counter()
            list(workers.map(lambda _: short_episode(pool), range(episodes)))
            per_second = episodes / (time.perf_counter() - start)
        first = statistics.median(first_result_ms(pool) for _ in range(20))
        memory = extra_memory_mb(pool, count=20)
    cpu = cpu_of_pool(backend, episodes, preload, shell) - cpu_of_pool(backend, 0, preload, shell)
    return Figures(name, per_second, 1e3 * cpu / episodes, first, memory, opened)


def measure_alternative(name: str, episodes: int, job: Callable[[], None]) -> Figures:
    """One row for something that is not a sandbox."""
    before = cpu_seconds()
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        start = time.perf_counter()
        list(workers.map(lambda _: job(), range(episodes)))
        per_second = episodes / (time.perf_counter() - start)
    return Figures(name, per_second, 1e3 * (cpu_seconds() - before) / episodes)


def short_episode(pool: SandboxPool) -> None:
    with pool.episode() as episode:
        assert episode.run_cell(CELL).text == "42\n"


def first_result_ms(pool: SandboxPool) -> float:
    """From the wish for an episode to its first output, with the pool rested."""
    time.sleep(0.1)
    start = time.perf_counter()
    episode = pool.episode()
    assert episode.run_cell(CELL).text == "42\n"
    elapsed = time.perf_counter() - start
    episode.close()
    return 1e3 * elapsed


def extra_memory_mb(pool: SandboxPool, *, count: int) -> float:
    """Memory that each of `count` open episodes holds for itself after one cell, page tables included."""
    before = set(descendants(pool.pid))
    episodes = [pool.episode() for _ in range(count)]
    for episode in episodes:
        episode.run_cell(CELL)
    time.sleep(0.5)
    mine = [own_bytes(pid) for pid in descendants(pool.pid) if pid not in before]
    for episode in episodes:
        episode.close()
    return statistics.mean(mine) / MEGABYTE


def cpu_of_pool(backend: str, episodes: int, preload: tuple[str, ...], shell: str) -> float:
    """CPU seconds of host and sandbox together, from opening to closing."""
    before = cpu_seconds()
    with open_sandbox(backend, preload=preload, shell=shell) as pool:
        for _ in range(episodes):
            short_episode(pool)
    return cpu_seconds() - before


def cpu_seconds() -> float:
    """CPU time of this process and of its ended children."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def descendants(root: int) -> list[int]:
    """All processes below `root`."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(folder.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def own_bytes(pid: int) -> int:
    """Memory of a process that it shares with nobody."""
    kilobytes = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            kilobytes += int(line.split()[1])
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmPTE:"):
            kilobytes += int(line.split()[1])
    return 1024 * kilobytes


def new_process() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", CELL], check=True, stdout=subprocess.DEVNULL)


def in_process() -> None:
    exec(compile(CELL.replace("print", "str"), "cell", "exec"), {})


def as_table(rows: list[Figures]) -> str:
    """The rows as a Markdown table."""
    head = (
        "| way | episodes/s | CPU ms/episode | first result, warm pool | own memory/episode | pool opens in |"
    )
    lines = [head, "|---|---|---|---|---|---|"]
    for row in rows:
        rest = [
            f"{row.first_ms:.1f} ms" if row.first_ms is not None else "",
            f"{row.memory_mb:.1f} MB" if row.memory_mb is not None else "",
            f"{row.open_s:.2f} s" if row.open_s is not None else "",
        ]
        lines.append(f"| {row.name} | {row.per_second:,.0f} | {row.cpu_ms:.2f} | {' | '.join(rest)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
