"""The report at scale: how long the site takes to build, how soon the leaderboard is there.

python benchmarks/speed/report.py                                # 50 encoders x 20 datasets x 7 tasks
python benchmarks/speed/report.py --encoders 10 --datasets 3     # smaller
python benchmarks/speed/report.py --write                        # also into docs/benchmarks.md

Build time is that of `histobench report` in a process of its own. "Opens" is from the start of the navigation
until the first row of the leaderboard is on the page, from file://, in headless Chromium. The named
alternative for predictions is the same numbers as JSON, which is what a page would load without the packing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from page import write_section
from simulated_results import CLASSES, TASKS, SimulatedSet, write_folder

import histobench.core.files
from histobench.roi.results.reader import load_runs

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]


def main() -> int:
    """Simulate, build, open, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoders", type=int, default=50)
    parser.add_argument("--datasets", type=int, default=20)
    parser.add_argument("--images", type=int, default=300, help="test images of each dataset")
    parser.add_argument("--repeats", type=int, default=5, help="how often the leaderboard is opened")
    parser.add_argument("--keep", help="keep results and site in this folder, and use what is there")
    parser.add_argument("--write", action="store_true", help="write the section of docs/benchmarks.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.keep or temporary)
        results, site = folder / "results", folder / "site"
        if not results.exists():
            _simulate(results, args.encoders, args.datasets, args.images)
        n_runs = len(list(results.rglob("*_complete_results.json")))
        seconds, cpu = _build(results, site)
        sizes = [path.stat().st_size for path in site.rglob("*") if path.is_file()]
        opened = _open(site, args.repeats)
        packed, plain = _prediction_sizes(results, site)
    rows = [
        ("runs", f"{n_runs:,} ({args.encoders} encoders x {args.datasets} datasets x {len(TASKS)} tasks)"),
        ("test images and classes of each dataset", f"{args.images}, {len(CLASSES)}"),
        ("build", f"{seconds:.1f} s by the clock, {cpu:.1f} s of processor time, {os.cpu_count()} cores"),
        ("site", f"{len(sizes):,} files, {sum(sizes) / 2**20:.0f} MiB"),
        ("leaderboard opens", opened),
        ("predictions of one run, packed", f"{packed / 1024:.1f} KiB"),
        ("the same as JSON", f"{plain / 1024:.1f} KiB ({plain / packed:.1f} times as much)"),
    ]
    text = "\n".join(["| what | measured |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)])
    print(text)
    if args.write:
        load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
        heading = f"## The report\n\nWritten by `python benchmarks/speed/report.py --write`, {date.today()}; "
        goals = (
            "The goals are 60 s by the clock on two cores that have nothing else to do, and 1 s. Where they "
            f"have, processor time over two cores is what can be compared: {cpu / 2:.0f} s."
        )
        write_section("report", f"{heading}load of the machine meanwhile: {load}.\n\n{text}\n\n{goals}\n")
    return 0


def _simulate(results: Path, encoders: int, datasets: int, images: int) -> None:
    # Simulated results need not survive a power cut.
    histobench.core.files._flush = lambda path: None
    histobench.core.files._flush_folder = lambda folder: None
    skills = {f"encoder-{k:02d}": 1.0 + 3.0 * k / max(encoders - 1, 1) for k in range(encoders)}
    for k in range(datasets):
        data = SimulatedSet.of_size(f"dataset-{k:02d}", images)
        write_folder(results, encoders=skills, sets=[data], keep_votes=True)
        print(f"simulated {k + 1} of {datasets} datasets", file=sys.stderr, flush=True)


def _build(results: Path, site: Path) -> tuple[float, float]:
    shutil.rmtree(site, ignore_errors=True)
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "histobench.cli.main", "report", str(results), "-o", str(site)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, cpu


def _open(site: Path, repeats: int) -> str:
    program = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    if program is None:
        return "not measured: no Chromium here"
    from playwright.sync_api import sync_playwright

    times = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=_FLAGS)
        for _ in range(repeats):
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            # Notes the moment at which the first row has been painted.
            page.add_init_script(
                "new MutationObserver((_, o) => { if (document.querySelector('table.leaderboard tbody tr')) {"
                "o.disconnect(); requestAnimationFrame(() => requestAnimationFrame(() => window.shown = "
                "performance.now())); } }).observe(document, {childList: true, subtree: true})"
            )
            page.goto((site / "index.html").as_uri())
            # Not wait_for_function: the page's policy forbids the evaluation that it needs.
            while (shown := page.evaluate("window.shown")) is None:
                page.wait_for_timeout(20)
            times.append(shown / 1000)
            page.context.close()
        browser.close()
    return f"{statistics.median(times):.2f} s (median of {repeats}; slowest {max(times):.2f} s)"


def _prediction_sizes(results: Path, site: Path) -> tuple[int, int]:
    """Bytes of one run's predictions in its data file, and as JSON."""
    run = load_runs(next(iter(sorted(results.iterdir()))))[0]
    plain = len(json.dumps(run.predictions.probabilities.tolist()))
    text = (site / "data" / "run" / "0.js").read_text(encoding="ascii")
    content = json.loads(f"[{text.removeprefix('histobench.receive(').removesuffix(');' + chr(10))}]")[1]
    return len(content["probabilities"]["data"]) + len(content["predicted"]["data"]), plain


if __name__ == "__main__":
    sys.exit(main())
