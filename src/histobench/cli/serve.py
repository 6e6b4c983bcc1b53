"""Show a results folder in the browser, live: the pages follow while runs are going on.

Only this machine can see it (127.0.0.1), and only files of the built site are served. On a remote machine
forward the port: ssh -L 8000:localhost:8000 MACHINE.

Examples:
  histobench serve results
  histobench serve results --images CRC-100K.csv --port 8080
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path

from histobench.cli.report import add_site_arguments, image_sources
from histobench.cli.terminal import open_terminal
from histobench.core.errors import HistobenchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which results, and where they are shown."""
    parser.add_argument("results", help="results folder (searched with all its subfolders)")
    parser.add_argument("--port", type=int, default=8000, help="port (default: 8000; 0: any free one)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("-o", "--output", help="keep the site in this folder (default: a temporary one)")
    add_site_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Build, serve and follow until interrupted."""

    from histobench.report.site import check_apart, check_results_folder

    results = Path(args.results)
    check_results_folder(results)
    if args.output:
        check_apart(Path(args.output), results)
    if not 0 <= args.port <= 65535:
        raise HistobenchError(f"--port {args.port}: a port is a number from 0 (any free one) to 65535")
    console = open_terminal()
    with tempfile.TemporaryDirectory(prefix="histobench-serve-") as temporary:
        site = Path(args.output) if args.output else Path(temporary) / "site"
        _serve(args, results.resolve(), site.resolve(), console)
    return 0


def _serve(args: argparse.Namespace, results: Path, site: Path, console: object) -> None:
    from rich.console import Console

    from histobench.report.server import SiteServer, follow, snapshot, write_waiting_page
    from histobench.report.site import build_site
    from histobench.report.thumbnails import Cache

    assert isinstance(console, Console)
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
    say(f"serving {results} at {server.address} (Ctrl+C ends)")
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
