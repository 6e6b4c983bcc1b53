"""A local web server with the habits of real ones, and miniature archives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Habits:
    """How the server treats a path: its bytes, and what goes wrong."""

    files: dict[str, bytes] = field(default_factory=dict)
    break_after: dict[str, list[int]] = field(default_factory=dict)  # bytes sent before each hang-up
    no_range: set[str] = field(default_factory=set)
    slow: float = 0.0  # seconds before an answer
    #: What is done with the next requests of a path, one after the other, before it is served as ever.
    script: dict[str, list[Callable[[Any], None]]] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    address: str = ""


def answer(
    code: int, body: bytes = b"", *, sent: int | None = None, **headers: str
) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer by hand; of the body only the first `sent` bytes arrive. Headers are named with underscores.

    Without a length (`content_length=""`) the end of the connection is the end of the file.
    """

    def give(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in {"content_length": str(len(body)), **headers}.items():
            if value:
                handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body if sent is None else body[:sent])
        handler.wfile.flush()
        if sent is not None or headers.get("content_length") == "":
            handler.close_connection = True
            handler.connection.shutdown(2)

    return give


@pytest.fixture
def server() -> Iterator[Habits]:
    habits = Habits()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            habits.seen.append((self.path, dict(self.headers)))
            time.sleep(habits.slow)
            if habits.script.get(path):
                habits.script[path].pop(0)(self)
            elif path in habits.files:
                self._file(path, habits.files[path])
            else:
                answer(404, b"no")(self)

        def _file(self, path: str, data: bytes) -> None:
            code, start, part, asked = 200, 0, "", self.headers.get("Range")
            same = self.headers.get("If-Range") in (None, '"one"')
            if asked is not None and path not in habits.no_range and same:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                code, part = 206, f"bytes {start}-{len(data) - 1}/{len(data)}"
            if start >= len(data):
                code, part = 416, f"bytes */{len(data)}"
            breaks = habits.break_after.get(path)
            sent = breaks.pop(0) if breaks else None
            answer(code, data[start:], sent=sent, ETag='"one"', Content_Range=part)(self)

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that hangs up in the middle is what many of these tests are about."""

    web = Server(("127.0.0.1", 0), Handler)
    habits.address = f"http://127.0.0.1:{web.server_port}"
    thread = threading.Thread(target=web.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield habits
    web.shutdown()
    web.server_close()


@pytest.fixture
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HISTOBENCH_DATA", str(home))
    return home
