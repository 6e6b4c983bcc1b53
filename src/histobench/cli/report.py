"""`histobench report` and `serve`: a results folder as a web site."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from histobench.cli.flags import out_option
from histobench.cli.terminal import bars, open_terminal
from histobench.core.errors import HistobenchError
from histobench.core.records import option, options_of, record
from histobench.roi.result_options import ReadsResults

SPEED = "speed"


@record
class SiteFlags(ReadsResults):
    images: tuple[str, ...] = option(
        "where the test images are (CSV, folder or TAR shards); repeatable",
        default=(),
        default_text="as in the run",
        separator=r",(?=[^,/]+=)",  # a path may have a comma
        metavar="[DATASET=]SOURCE",
    )
    title: str = option("title of the site", default="", default_text="the name of the folder")
    thorough: bool = option(
        "check the files of every dataset and draw every map, even if there are many (slow)",
        default=False,
        group=SPEED,
    )
    num_workers: int | None = option(
        "processes", default=None, least=0, default_text="one per core, at most 8", group=SPEED
    )

    @property
    def settings(self) -> dict[str, Any]:
        """What `build_site` takes."""
        given = {each.name: getattr(self, each.name) for each in options_of(SiteFlags)}
        del given["results"]
        workers = given.pop("num_workers")
        given["workers"] = min(os.cpu_count() or 1, 8) if workers is None else workers
        return {**given, "images": image_sources(self.images)}


@record
class ReportFlags(SiteFlags):
    out: str = out_option("folder of the site", default="site")


def report_command(args: ReportFlags) -> int:
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

    check_apart(Path(args.out), Path(args.results))
    console = open_terminal()
    with bars(console, MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        page = build_site(args.results, args.out, **args.settings, on_progress=progress)
    console.print(f"Open in a browser: {page}")
    return told_of_damage(Path(args.results))


def image_sources(given: Sequence[str]) -> dict[str, str]:
    """`--images` as dataset -> source; without a name the source is for every dataset.

    >>> image_sources(["a.csv", "CRC=b/"])
    {'': 'a.csv', 'CRC': 'b/'}
    """
    sources: dict[str, str] = {}
    for text in given:
        name, equals, source = text.partition("=")
        key, value = (name, source) if equals and not os.path.exists(text) else ("", text)
        if key in sources:
            raise HistobenchError(f"--images names {key or 'a source for all datasets'} twice")
        sources[key] = value
    return sources


@record
class ServeFlags(SiteFlags):
    port: int = option("port; 0: any free one", default=8000, least=0, most=65535)
    host: str = option("address to listen on", default="127.0.0.1", group="advanced")
    out: str | None = out_option(
        "keep the site in this folder", default_text="a temporary one", group="advanced"
    )


def serve_command(args: ServeFlags) -> int:
    """Serve the web site of a results folder and update it while runs continue.

    By default only this machine can open it (127.0.0.1). On a remote machine forward
    the port: ssh -L 8000:localhost:8000 MACHINE

    Examples:
      histobench serve results
      histobench serve results --images CRC-100K.csv --port 8080
    """
    from histobench.report.site import check_apart
    from histobench.roi.results.reader import existing_folder

    results = existing_folder(args.results)
    if args.out:
        check_apart(Path(args.out), results)
    with tempfile.TemporaryDirectory(prefix="histobench-serve-") as temporary:
        _serve(args, results.resolve(), Path(args.out or f"{temporary}/site").resolve())
    return 0


def _serve(args: ServeFlags, results: Path, site: Path) -> None:
    from histobench.report.server import SiteServer, follow, snapshot, write_waiting_page
    from histobench.report.site import build_site
    from histobench.report.thumbnails import Cache

    console = open_terminal()
    cache: Cache = {}
    say = console.print

    def build() -> None:
        build_site(results, site, **args.settings, live=True, cache=cache)

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
