"""Memory of a long Consult run: recorded episodes played again, many at a time.

    python benchmarks/speed/consult_runs.py [--episodes 1000] [--concurrency 32] [--write]

A study on the demo tiles (efficientnet-lite0, four arms), played once by `policy:reader`; these
episodes are then the recording that `histobench consult run --agent replay:...` plays in the text dialect,
in the sandbox. Memory is that of the run's own process and, apart, of all its processes (PSS, so that shared
pages count once), when a share of the episodes was done.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from page import write_section

from histobench.roi.data.demo import write_demo_dataset

ARMS = ("none", "strong", "sure", "wrong-25")
MARKS = (0.1, 0.25, 0.5, 0.75, 1.0)
CLASSES = 9
MEGABYTE = 1 << 20
PROGRAM = "import sys; from histobench.cli.main import main; sys.exit(main())"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--write", action="store_true", help="put the section into docs/benchmarks.md")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        section = measured(Path(folder), args.episodes, args.concurrency, load)
    print(section)
    if args.write:
        write_section("consult-runs", section)


def measured(folder: Path, episodes: int, concurrency: int, load: float) -> str:
    """Prepare, record, play again; a section of the page."""
    cases = -(-episodes // len(ARMS))
    per_class = -(-cases // CLASSES) + 1
    tiles = write_demo_dataset(folder / "tiles", train_per_class=12, test_per_class=per_class, size=96)
    study = folder / "study"
    arms = ",".join(ARMS)
    where = ["--cases", cases, "--measured", 8, "--device", "cpu", "--num_workers", 0, "--out", study]
    histobench("consult", "prepare", tiles, "--encoders", "efficientnet-lite0", "--arms", arms, *where)
    histobench("consult", "run", study, "--agent", "policy:reader", "--arms", arms, "--cache", "none")
    output = folder / "again"
    command = line("consult", "run", study, "--agent", f"replay:{study / 'runs'}", "--arms", arms)
    command += ["--calls", "text", "--cache", "none", "--concurrency", str(concurrency), "-o", str(output)]
    total = cases * len(ARMS)
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        own, all_of_it = watch(process, output, total)
        assert process.stderr is not None
        told = process.stderr.read()
    if process.returncode or finished(output) != total:
        raise SystemExit(f"{finished(output)} of {total} episodes; exit code {process.returncode}\n{told}")
    seconds = time.perf_counter() - start
    rows = "".join(
        f"| {round(100 * mark)} % | {own[mark] / MEGABYTE:.0f} MB | {all_of_it[mark] / MEGABYTE:.0f} MB |\n"
        for mark in MARKS
        if mark in own
    )
    return (
        f"### Memory of a Consult run\n\n`python benchmarks/speed/consult_runs.py --episodes {episodes} "
        f"--concurrency {concurrency}`, {date.today()}, {os.cpu_count()} processors, load {load:.1f} from "
        f"other work when this began. {total:,} recorded episodes, {concurrency} at a time, text dialect, "
        f"in the sandbox: {seconds:.0f} s ({total / seconds:.1f} episodes/s).\n\n"
        f"| done | the run's own process | with all its processes |\n|---|---|---|\n{rows}"
    )


def watch(
    process: subprocess.Popen[str], output: Path, total: int
) -> tuple[dict[float, int], dict[float, int]]:
    """Memory when each share of the episodes was done: of the process, and of its whole tree."""
    own: dict[float, int] = {}
    everything: dict[float, int] = {}
    while process.poll() is None:
        done = finished(output)
        for mark in MARKS:
            # The last one is taken just before the end: a process that has ended holds nothing.
            if mark not in own and done >= round(total * min(mark, 0.99)):
                tree = descendants(process.pid)
                own[mark] = held(process.pid)
                everything[mark] = own[mark] + sum(held(pid) for pid in tree)
        time.sleep(0.1)
    return own, everything


def finished(output: Path) -> int:
    """Episodes in the result files."""
    return sum(path.read_bytes().count(b"\n") for path in output.rglob("results.jsonl"))


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, read(task).split()):
            found += [child, *descendants(child)]
    return found


def held(pid: int) -> int:
    """Proportional memory of a process; 0 if it has ended."""
    for text in read(Path(f"/proc/{pid}/smaps_rollup")).splitlines():
        if text.startswith("Pss:"):
            return int(text.split()[1]) * 1024
    return 0


def read(path: Path) -> str:
    """A file of /proc, which may be gone."""
    try:
        return path.read_text()
    except OSError:
        return ""


def line(*arguments: object) -> list[str]:
    """The command line of histobench in this interpreter."""
    return [sys.executable, "-c", PROGRAM, *map(str, arguments)]


def histobench(*arguments: object) -> None:
    """Run it, and stop where it fails."""
    subprocess.run(line(*arguments), check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
