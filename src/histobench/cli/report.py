"""`histobench report` and `serve`: a results folder as a web site."""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
from pathlib import Path

from histobench.cli.flags import add_results
from histobench.cli.terminal import bars, open_terminal
from histobench.core.errors import HistobenchError


def report_flags(parser: argparse.ArgumentParser) -> None:
    """The results, the output folder and what to show."""
    add_results(parser)
    parser.add_argument("-o", "--output", default="site", help="folder of the site (default: site)")
    add_site_arguments(parser)


def add_site_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that `report` and `serve` share."""
    parser.add_argument(
        "--images",
        action="append",
        metavar="[DATASET=]SOURCE",
        help="where the test images are (CSV, folder or TAR shards); repeatable (default: as in the run)",
    )
    parser.add_argument("--title", default="", help="title of the site (default: the name of the folder)")
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="check the files of every dataset and draw every map, even if there are many (slow)",
    )
    parser.add_argument(
        "--num_workers",
        type=int,
        default=min(os.cpu_count() or 1, 8),
        help="processes (default: one per core)",
    )


def report_command(args: argparse.Namespace) -> int:
    """Write a web site of a results folder: leaderboard, datasets, runs,
    comparisons, methods.

    The site is a folder of plain files and needs neither a server nor a network:
    open index.html, or copy the folder to any web server. It shows only numbers of
    the results folder.

    Examples:
      histobench report results -o site
      histobench report results -o site --images CRC-100K.csv
      histobench report results -o site --images CRC=crc.csv --images BRACS=bracs/
    """
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn

    from histobench.cli.compare import told_of_damage
    from histobench.report.site import build_site, check_apart

    check_apart(Path(args.output), Path(args.results))
    console = open_terminal()
    with bars(console, MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        page = build_site(
            args.results,
            args.output,
            images=image_sources(args.images),
            title=args.title,
            thorough=args.thorough,
            workers=args.num_workers,
            on_progress=progress,
        )
    console.print(f"Open in a browser: {page}", soft_wrap=True)
    return told_of_damage(Path(args.results))


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


# `histobench serve`.


def serve_flags(parser: argparse.ArgumentParser) -> None:
    """The results and the address."""
    add_results(parser)
    parser.add_argument("--port", type=int, default=8000, help="port (default: 8000; 0: any free one)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("-o", "--output", help="keep the site in this folder (default: a temporary one)")
    add_site_arguments(parser)


def serve_command(args: argparse.Namespace) -> int:
    """Serve the web site of a results folder and update it while runs continue.

    By default only this machine can open it (127.0.0.1), and only files of the site
    are served. On a remote machine forward the port:
    ssh -L 8000:localhost:8000 MACHINE

    Examples:
      histobench serve results
      histobench serve results --images CRC-100K.csv --port 8080
    """
    from histobench.report.site import check_apart, check_results_folder

    results = Path(args.results)
    check_results_folder(results)
    if args.output:
        check_apart(Path(args.output), results)
    if not 0 <= args.port <= 65535:
        raise HistobenchError(f"--port {args.port}: a port is a number from 0 (any free one) to 65535")
    with tempfile.TemporaryDirectory(prefix="histobench-serve-") as temporary:
        site = Path(args.output) if args.output else Path(temporary) / "site"
        _serve(args, results.resolve(), site.resolve())
    return 0


def _serve(args: argparse.Namespace, results: Path, site: Path) -> None:
    from histobench.report.server import SiteServer, follow, snapshot, write_waiting_page
    from histobench.report.site import build_site
    from histobench.report.thumbnails import Cache

    console = open_terminal()
    cache: Cache = {}

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    def build() -> None:
        build_site(
            results,
            site,
            images=image_sources(args.images),
            title=args.title,
            thorough=args.thorough,
            workers=args.num_workers,
            live=True,
            cache=cache,
        )

    seen = snapshot(results)
    server = SiteServer(site, host=args.host, port=args.port)
    try:
        build()
    except HistobenchError as error:
        if seen:
            server.server_close()
            raise
        write_waiting_page(site, str(error))
    say(f"serving {results} at {server.address} (stop with Ctrl+C)")
    if args.host not in ("127.0.0.1", "localhost", "::1"):
        say("anyone who can reach this address can read these results")
    stop = threading.Event()
    watcher = threading.Thread(
        target=follow, args=(results, build, stop), kwargs={"seen": seen, "on_problem": say}, daemon=True
    )
    watcher.start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("stopped")
    finally:
        stop.set()
        server.server_close()
