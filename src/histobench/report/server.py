"""The site of a results folder, live: built again whenever results change, for this machine only."""

from __future__ import annotations

import contextlib
import html
import ipaddress
import logging
import os
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain
from histobench.report.payload import POLICY, site_folder

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
    ".txt": "text/plain; charset=utf-8",
}
#: What results consist of; other files in the folder do not matter to the site.
_WATCHED = (
    "_complete_results.json",
    "_detailed_results.csv",
    "_bootstrap_ci.json",
    "_per_episode_metrics.json",
)
_WAITING = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="3">
<title>histobench: waiting for results</title>
<body style="font:16px system-ui;max-width:40rem;margin:20vh auto;padding:0 1rem;text-align:center">
<h1>No results yet</h1><p>{text}</p><p>This page looks again every few seconds.</p></body></html>
"""
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

Snapshot = dict[str, tuple[int, int]]


def file_of(root: Path, address: str) -> Path | None:
    """The file below `root` that an address asks for; None for anything outside it, hidden, or not known.

    >>> file_of(Path("/site"), "/../etc/passwd") is None
    True
    """
    try:
        path = unquote(urlsplit(address).path)
    except ValueError:  # half a bracket, as in http://[/
        return None
    if "\\" in path or "\0" in path or not path.startswith("/"):
        return None
    parts = [part for part in path.split("/") if part]
    if any(part.startswith(".") for part in parts):
        return None
    place = root.joinpath(*parts) if parts else root / "index.html"
    try:
        found = place.resolve(strict=True)
    except (OSError, ValueError):
        return None
    inside = found.is_relative_to(root.resolve()) and found.is_file()
    return found if inside and found.suffix in CONTENT_TYPES else None


class SiteServer(ThreadingHTTPServer):
    """Serves the files of one site and nothing else."""

    daemon_threads = True
    #: A browser opens half a dozen.
    max_connections = 64

    def __init__(self, site: Path, *, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.site = site
        self._free = threading.BoundedSemaphore(self.max_connections)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise HistobenchError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; "
                "choose another `port` (0: any free one), or leave `host` out"
            ) from error

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for the connection; one too many is refused and closed."""
        if self._free.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:  # no thread to be had: it made no room
                self._free.release()
                raise
            return
        with contextlib.suppress(OSError):
            request.setblocking(False)  # who does not listen is not waited for
            request.sendall(_TOO_MANY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve the connection, then make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Anyone who hangs up is left alone; the next one is served."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            logging.getLogger(__name__).warning("a request failed: %s: %s", type(error).__name__, error)

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def knows(self, host: str | None) -> bool:
        """Whether a request names this machine: another name that leads here is refused (DNS rebinding)."""
        bound = str(self.server_address[0])
        if not ipaddress.ip_address(bound).is_loopback:
            return True
        name = (host or "").rpartition(":")[0] if (host or "").count(":") == 1 else host
        return name in ("localhost", "127.0.0.1", "[::1]", bound)


class _Handler(BaseHTTPRequestHandler):
    server: SiteServer
    server_version = "histobench"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    #: Seconds of silence after which a connection makes room for another.
    timeout = 30

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if not self.server.knows(self.headers.get("Host")):
            self._send(HTTPStatus.FORBIDDEN, b"unknown host\n", "text/plain", with_body)
            return
        path = file_of(self.server.site, self.path)
        try:
            content = None if path is None else read_plain(path)
        except OSError:  # the site was replaced meanwhile
            content = None
        if path is None or content is None:
            self._send(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain", with_body)
        else:
            self._send(HTTPStatus.OK, content, CONTENT_TYPES[path.suffix], with_body)

    def _send(self, status: HTTPStatus, content: bytes, kind: str, with_body: bool) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-cache",
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no one's business."""


def snapshot(results_dir: Path) -> Snapshot:
    """Size and time of every file that results consist of."""
    found: Snapshot = {}
    # Not rglob: that stops with an error at a folder which is deleted while it looks.
    for folder, _, names in os.walk(results_dir):
        for name in names:
            if name.endswith(_WATCHED) or name == "results.jsonl" or name.endswith(".jsonl.gz"):
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
            except (HistobenchError, OSError) as error:  # files may come and go while they are read
                on_problem(str(error))
            except Exception as error:
                # The old pages stay, and the next change is looked at again.
                on_problem(f"the pages could not be built again: unexpected {type(error).__name__}: {error}")
            built, waited = now, 0
        last = now


def write_waiting_page(out: Path, text: str) -> None:
    """A page for a folder without results: it looks again by itself."""
    with site_folder(out) as site:
        (site / "index.html").write_text(_WAITING.format(text=html.escape(text)), encoding="utf-8")
