"""The site of a results folder, live: built again whenever results change, for this machine only."""

from __future__ import annotations

import html
import ipaddress
import os
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.report.payload import POLICY, site_folder

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
#: What results consist of; other files in the folder do not matter to the site.
_WATCHED = (
    *("_complete_results.json", "_detailed_results.csv", "_bootstrap_ci.json", "_per_episode_metrics.json"),
    *("results.jsonl", ".jsonl.gz"),
)
_WAITING = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="3">
<title>histobench: waiting for results</title>
<body style="font:16px system-ui;max-width:40rem;margin:20vh auto;padding:0 1rem;text-align:center">
<h1>No results yet</h1><p>{text}</p><p>This page looks again every few seconds.</p></body></html>
"""

Snapshot = dict[str, tuple[int, int]]


class SiteServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, site: Path, *, host: str = "127.0.0.1", port: int = 8000) -> None:
        try:
            super().__init__((host, port), partial(_Handler, directory=str(site)))
        except OSError as error:
            raise HistobenchError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; "
                "choose another `port` (0: any free one), or leave `host` out"
            ) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is not an error."""

    @property
    def address(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def knows(self, host: str | None) -> bool:
        """Whether a request names this machine: another name that leads here is refused (DNS rebinding)."""
        bound = str(self.server_address[0])
        if not ipaddress.ip_address(bound).is_loopback:
            return True
        name = (host or "").rpartition(":")[0] if (host or "").count(":") == 1 else host
        return name in ("localhost", "127.0.0.1", "[::1]", bound)


class _Handler(SimpleHTTPRequestHandler):
    server: SiteServer
    # Not from the system's own table, which may call JavaScript plain text.
    extensions_map = {  # noqa: RUF012
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
        ".webp": "image/webp",
    }

    def send_head(self) -> Any:
        if not self.server.knows(self.headers.get("Host")):
            self.send_error(HTTPStatus.FORBIDDEN, "unknown host")
            return None
        return super().send_head()

    def list_directory(self, path: Any) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def snapshot(results_dir: Path) -> Snapshot:
    """Size and time of every file that results consist of."""
    found: Snapshot = {}
    # Not rglob: that stops with an error at a folder which is deleted while it looks.
    for folder, _, names in os.walk(results_dir):
        for name in names:
            if name.endswith(_WATCHED):
                path = os.path.join(folder, name)
                try:
                    status = os.stat(path)
                except OSError:  # gone again
                    continue
                found[path] = (status.st_mtime_ns, status.st_size)
    return found


def follow(
    results_dir: Path,
    build: Callable[[], object],
    stop: threading.Event,
    *,
    seen: Snapshot,
    interval: float = 2.0,
    patience: int = 5,
    on_problem: Callable[[str], None] = lambda text: None,
) -> None:
    """Build again whenever results have changed and then kept still for one interval; until `stop`.

    A run that writes all the time is not waited for longer than `patience` intervals.
    """
    built = last = seen
    waited = 0
    while not stop.wait(interval):
        now = snapshot(results_dir)
        waited = 0 if now == built else waited + 1
        if now != built and (now == last or waited >= patience):
            try:
                build()
            except Exception as error:  # the old pages stay, and the next change is looked at again
                on_problem(f"the pages could not be built again: {error}")
            built, waited = now, 0
        last = now


def write_waiting_page(out: Path, text: str) -> None:
    with site_folder(out) as site:
        (site / "index.html").write_text(_WAITING.format(text=html.escape(text)), encoding="utf-8")
