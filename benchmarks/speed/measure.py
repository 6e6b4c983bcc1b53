"""What the benchmarks share: a clock, a table, and the list of parts that `run_all.py` runs."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from workload import Workload

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Seconds:
    """Time of one job by the wall clock and by the processor (all threads)."""

    wall: float
    cpu: float

    def __mul__(self, factor: float) -> Seconds:
        return Seconds(self.wall * factor, self.cpu * factor)

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)


@dataclass(frozen=True)
class Row:
    """One line of the table: this project against one alternative, or against a number."""

    part: str
    alternative: str
    ours: Seconds
    theirs: Seconds | None
    goal: str
    met: bool | None = None
    note: str = ""
    where: str = ""  # the workload and what else the machine did

    @property
    def ratio(self) -> float | None:
        """How many times faster, by the wall clock."""
        return None if self.theirs is None else self.theirs.wall / self.ours.wall

    @property
    def cpu_ratio(self) -> float | None:
        """How many times less processor time."""
        return None if self.theirs is None else self.theirs.cpu / self.ours.cpu

    @classmethod
    def against(
        cls, part: str, alternative: str, ours: Seconds, theirs: Seconds, *, at_least: float, note: str = ""
    ) -> Row:
        """A row whose goal is a ratio."""
        return cls(
            part, alternative, ours, theirs, f">= {at_least:g}x", theirs.wall / ours.wall >= at_least, note
        )

    @classmethod
    def growth(cls, part: str, times: Sequence[Seconds]) -> Row:
        """Four times the work, by the times of one and of four: less than five times the time."""
        factor = times[1].cpu / times[0].cpu
        return cls(part, "N and 4N, CPU time", times[1], None, "< 5x", factor < 5, f"{factor:.1f}x")


@dataclass(frozen=True)
class Setup:
    """What a part is given."""

    workload: Workload
    device: str = "cpu"
    threads: int = 2
    quick: bool = False
    busy: int = 0  # processes that compute beside this one

    @property
    def where(self) -> str:
        """The workload and the load, as tables show them."""
        return f"{self.workload.label}, {f'{self.busy} busy processes' if self.busy else 'idle'}"


Part = Callable[[Setup], list[Row]]
PARTS: dict[str, Part] = {}


def part(name: str) -> Callable[[Part], Part]:
    """Register a part under a name."""

    def add(function: Part) -> Part:
        PARTS[name] = function
        return function

    return add


def clock(job: Callable[[], T], *, repeat: int = 1, device: str = "cpu") -> tuple[Seconds, T]:
    """The least time of some repeats, and the last result."""
    best = Seconds(float("inf"), float("inf"))
    for _ in range(repeat):
        _wait(device)
        wall, cpu = time.perf_counter(), time.process_time()
        result = job()
        _wait(device)
        spent = Seconds(time.perf_counter() - wall, time.process_time() - cpu)
        best = min(best, spent, key=lambda s: s.wall)
    return best, result


def race(
    ours: Callable[[], T], theirs: Callable[[], R], *, rounds: int = 2, device: str = "cpu"
) -> tuple[Seconds, Seconds, T, R]:
    """Both in turn, some rounds; the times are those of the round with the least processor time of each."""
    best: list[Seconds | None] = [None, None]
    for _ in range(rounds):
        first, mine = clock(ours, device=device)
        second, other = clock(theirs, device=device)
        best = [
            new if old is None or new.cpu < old.cpu else old
            for old, new in zip(best, (first, second), strict=True)
        ]
    assert best[0] is not None
    assert best[1] is not None
    return best[0], best[1], mine, other


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


@dataclass
class Machine:
    """Where the numbers come from."""

    threads: int
    device: str = "cpu"

    def describe(self) -> str:
        """One line."""
        from importlib.metadata import PackageNotFoundError, version

        def known(package: str) -> str:
            try:
                return f"{package} {version(package)}"
            except PackageNotFoundError:
                return f"no {package}"

        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        parts = [
            f"{processor()}, {self.threads} threads of {os.cpu_count()} cores, {memory:.0f} GiB",
            f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            ", ".join(known(package) for package in ("torch", "numpy", "scikit-learn", "faiss-cpu")),
            f"load {os.getloadavg()[0]:.1f}, {noise():.0%} between three runs of one product",
        ]
        if self.device != "cpu":
            parts.append(torch.cuda.get_device_name(self.device))
        return "; ".join(parts)


def noise() -> float:
    """Return how much longer the longest of three equal jobs took than the shortest."""
    one = torch.ones(1024, 1024)
    times = [clock(lambda: [one @ one for _ in range(20)])[0].wall for _ in range(4)][1:]
    return max(times) / min(times) - 1


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| part | workload | against | ours (s) | theirs (s) | ratio | by CPU time | goal | met | note |",
        "|---|---|---|---:|---:|---:|---:|---|---|---|",
    ]
    for row in rows:
        theirs = "" if row.theirs is None else f"{row.theirs.wall:.2f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
        cpu = "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}x"
        met = {True: "yes", False: "no", None: ""}[row.met]
        lines.append(
            f"| {row.part} | {row.where} | {row.alternative} | {row.ours.wall:.2f} | {theirs} | {ratio} "
            f"| {cpu} | {row.goal} | {met} | {row.note} |"
        )
    return "\n".join(lines)


def by_part(rows: Sequence[Row]) -> str:
    """The worst row of each part and alternative, then a table of each part, its worst row first."""
    judged = sorted((row for row in rows if row.goal), key=_how_good)
    worst = list({(row.part, row.alternative): row for row in reversed(judged)}.values())
    sections = ["The worst of each part and alternative:", table(sorted(worst, key=lambda row: row.part))]
    for name in dict.fromkeys(row.part for row in rows):
        mine = [row for row in rows if row.part == name]
        mine.sort(key=lambda row: (row.alternative, _how_good(row)))
        sections += [f"{name}, the worst first:", table(mine)]
    return "\n\n".join(sections)


def _how_good(row: Row) -> float:
    """The smaller of both ratios; where there is none, the less time the better."""
    if row.ratio is None or row.cpu_ratio is None:
        return -row.ours.wall
    return min(row.ratio, row.cpu_ratio)
