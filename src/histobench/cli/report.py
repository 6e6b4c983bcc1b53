"""Turn a results folder into a web site: leaderboard, datasets, runs, comparisons, methods.

The site is a folder of plain files. It needs no server and no network: open index.html, or put the folder on
any web space. Only numbers that are in the results folder are shown; intervals come from `histobench
bootstrap` where it has been run, and are computed otherwise.

Examples:
  histobench report results -o site
  histobench report results -o site --images CRC-100K.csv
  histobench report results -o site --images CRC=crc.csv --images BRACS=bracs/
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from histobench.cli.terminal import open_terminal
from histobench.core.errors import HistobenchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which results, where to, and what else to show."""
    parser.add_argument("results", help="results folder (searched with all its subfolders)")
    parser.add_argument("-o", "--output", default="site", help="folder of the site (default: site)")
    add_site_arguments(parser)


def add_site_arguments(parser: argparse.ArgumentParser) -> None:
    """What `report` and `serve` have in common."""
    parser.add_argument(
        "--images",
        action="append",
        metavar="[DATASET=]SOURCE",
        help="dataset that the test images are found in (CSV, folder or TAR shards); may be repeated",
    )
    parser.add_argument("--title", default="", help="title of the site (default: name of the folder)")
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="check the files of every dataset and draw every map, however many there are (may take long)",
    )
    parser.add_argument(
        "--num_workers",
        type=int,
        default=min(os.cpu_count() or 1, 8),
        help="processes (default: one per core)",
    )


def run(args: argparse.Namespace) -> int:
    """Build the site and say where it is."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from histobench.report.site import build_site, check_apart

    check_apart(Path(args.output), Path(args.results))
    console = open_terminal()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, object] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)  # type: ignore[arg-type]

        page = build_site(
            args.results,
            args.output,
            images=image_sources(args.images),
            title=args.title,
            thorough=args.thorough,
            workers=args.num_workers,
            on_progress=show,
        )
    console.print(f"site: {page}", soft_wrap=True)
    return 0


def image_sources(given: list[str] | None) -> dict[str, str]:
    """`--images` as dataset -> source; without a name the source is for every dataset.

    >>> image_sources(["a.csv", "CRC=b/"])
    {'': 'a.csv', 'CRC': 'b/'}
    """
    sources: dict[str, str] = {}
    for text in given or []:
        name, equals, source = text.partition("=")
        key, value = (name, source) if equals and not os.path.exists(text) else ("", text)
        if key in sources:
            raise HistobenchError(f"--images names {key or 'a source for all datasets'} twice")
        sources[key] = value
    return sources
