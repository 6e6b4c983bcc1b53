"""Every speed goal, measured against its named alternative in one run; `make bench` runs this.

    python benchmarks/speed/run_all.py                # a small grid: less than 30 minutes on two cores
    python benchmarks/speed/run_all.py --full  # every size and kind, busy cores too; hours; writes the docs
    python benchmarks/speed/run_all.py --only knn --workloads hard --sizes 2000 20000 --busy 0 2

Without `--only`, extraction, loading, growth and a whole benchmark follow, each in a process of its own. The
last thing printed is the worst of every part, then a table of each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import all_tasks
import bootstrap
import few_shot
import knn
import linear_probe
import torch
from measure import PARTS, Machine, Row, Setup, by_part, part, table
from page import write_section
from workload import KINDS, SIZES, Workload, busy, workload

REGISTERED = (few_shot, knn, linear_probe, bootstrap, all_tasks)
#: Training images of the small grid; all tasks together are measured on the largest size.
SMALL = [2_000, 20_000]
#: What is measured by commands of its own: script -> arguments in the small grid, and in all of it.
OTHERS: dict[str, tuple[list[str], list[str]]] = {
    "extract.py": (["--cpu", "--cases", "efficientnet-lite0", "--scale", "0.25", "--threads", "2"], []),
    "loader.py": (["--images", "512", "--workers", "2"], []),
    "growth.py": (["--images", "2000", "20000", "--only", "hashing", "planning", "report"], []),
    "whole_benchmark.py": (["--datasets", "1", "--encoders", "8", "--episodes", "20"], []),
}
FAILED = "FAILED: measured nothing,"
ONCE = ("bootstrap", "all tasks", "growth")  # on the largest workload of the first kind, nothing beside it
HEADER = """## After the features: protocols, metrics, statistics

Written by `make bench`. Both sides of every ratio ran in the same process, one after the other; "ratio" is by
the wall clock, "by CPU time" counts the processor time of all threads and minds other work less. A workload
is a kind of features (`benchmarks/speed/workload.py`), training x test images x dimensions, and what computed
beside it.

"""


@part("growth")
def growth(setup: Setup) -> list[Row]:
    """Four times the work in less than five times the time."""
    return [*few_shot.growth(setup), *knn.growth(setup), *linear_probe.growth(setup)]


def workloads(kinds: list[str], sizes: list[int], dims: list[int]) -> Iterator[Workload]:
    """Every kind in every size and dimension it comes in, once."""
    seen = set()
    for kind in kinds:
        for size in sorted(sizes, reverse=True):
            for dim in dims:
                made = workload(kind, n_train=size, dim=dim)
                if made.label not in seen:
                    seen.add(made.label)
                    yield made


def run_others(*, full: bool) -> list[str]:
    """The benchmarks that are commands of their own, and the worst of each as lines of a table.

    One that fails does not stop the next.
    """
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for script, (few, every) in OTHERS.items():
            numbers = Path(folder) / f"{script}.json"
            arguments = every if full else few
            command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
            print(f"\n### {' '.join([script, *arguments])}\n", flush=True)
            done = subprocess.run([*command, "--json", str(numbers)], check=False)
            found = [] if done.returncode else worst_of(script, json.loads(numbers.read_text()))
            lines += found or [f"| {script} | {FAILED} with exit code {done.returncode} | | | |"]
    return lines


def worst_of(script: str, found: Any) -> list[str]:
    """The worst number of a benchmark that is a command of its own, as lines of a table."""
    if script == "extract.py":
        cases = [(case["speed_up"], case["case"]) for case in found["cases"] if "speed_up" in case]
        return [_line("extraction, against the plain loop", *min(cases), at_least=1.8)] if cases else []
    if script == "loader.py":
        rows = [(row["ratio"], f"{row['files']}, {row['workers']} workers") for row in found]
        return [_line("loading, against torch's DataLoader", *min(rows), at_least=1.0)] if rows else []
    if script == "growth.py":
        grown = [
            (by_size[b]["us"] / max(by_size[a]["us"], 1e-9), f"{part}, {int(a):,} to {int(b):,} images")
            for part, by_size in found.items()
            for a, b in pairwise(sorted(by_size, key=int))
        ]
        return [_line("growth of time per image", *max(grown), less_than=1.3)] if grown else []
    size, many = found["size"], found["most"]
    goal = min(8.0, 0.9 * many)
    return [
        _line(f"whole benchmark, {many} processes", found["ratio"], size, at_least=goal),
        _line("hb.evaluate, 2,000 x 500 x 384", found["evaluate"], "four tasks", less_than=1.0, unit=" s"),
        _line("whole benchmark, nothing to do (s)", found["nothing_to_do"], size, less_than=3.0, unit=" s"),
    ]


def _line(
    part: str,
    value: float,
    workload: str,
    *,
    at_least: float | None = None,
    less_than: float | None = None,
    unit: str = "x",
) -> str:
    met = value >= at_least if at_least is not None else less_than is not None and value < less_than
    goal = f">= {at_least:g}{unit}" if at_least is not None else f"< {less_than:g}{unit}"
    return f"| {part} | {workload} | {value:.2f}{unit} | {goal} | {'yes' if met else 'no'} |"


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--full", action="store_true", help="every size and kind, idle and busy")
    parser.add_argument(
        "--workloads", nargs="+", choices=KINDS, help="default: hard and easy; with --full real as well"
    )
    parser.add_argument("--sizes", nargs="+", type=int, help="training images")
    parser.add_argument("--dims", nargs="+", type=int, default=[1024])
    parser.add_argument("--busy", nargs="+", type=int, help="busy processes beside this one (default: none)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--devices", nargs="+", default=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    )
    parser.add_argument("--quick", action="store_true", help="a small workload, to see that everything runs")
    parser.add_argument("--no-write", action="store_true", help="print only, with --full as well")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = [2_000] if args.quick else args.sizes or (list(SIZES) if args.full else SMALL)
    # The features of `real` take a quarter of an hour where they have not been made yet.
    kinds = args.workloads or ["hard", "easy"] + (["real"] if args.full else [])
    loads = args.busy or ([0, 2] if args.full else [0])
    sections = []
    for device in args.devices:
        rows: list[Row] = []
        for number, made in enumerate(workloads(kinds, sizes, args.dims)):
            for beside in loads:
                setup = Setup(made, device, args.threads, args.quick, beside)
                for name in args.only:
                    if name in ONCE and (number or beside):
                        continue
                    print(f"{device}, {setup.where}: {name} ...", file=sys.stderr, flush=True)
                    with busy(beside):
                        new = PARTS[name](setup)
                    # Growth is measured on data of its own.
                    rows += [row if name == "growth" else replace(row, where=setup.where) for row in new]
                    print(table(new), file=sys.stderr, flush=True)
        machine = Machine(args.threads, device).describe()
        sections.append(f"### {machine}, {date.today()}\n\n{by_part(rows)}\n")
    text = HEADER + "\n".join(sections)
    lines: list[str] = []
    if not args.quick and len(args.only) == len(PARTS):
        lines = run_others(full=args.full)
        head = "| part | workload | measured | goal | met |\n|---|---|---:|---|---|\n"
        print(f"\nThe worst of what has a command of its own:\n\n{head}" + "\n".join(lines) + "\n")
    print(text, flush=True)
    if args.full and not (args.no_write or args.quick):
        import mint_runs
        import sandbox

        write_section("protocols", text)
        write_section("sandbox", sandbox.measured_section())
        write_section("mint-runs", mint_runs.measured_section())
    return 1 if any(FAILED in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
