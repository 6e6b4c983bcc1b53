"""A server on this machine that answers conversations, and misbehaves on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Answers a request, given its body and its number (from 0).
Answer = Callable[[dict[str, Any], int], "Reply"]


class Reply:
    """What the server sends."""

    def __init__(
        self,
        body: Any = None,
        *,
        status: int = 200,
        headers: dict[str, str] | None = None,
        delay: float = 0.0,
        cut: int | None = None,
        drip: float = 0.0,
        content_type: str = "application/json",
    ) -> None:
        self.raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status = status
        self.headers = headers or {}
        self.delay = delay
        self.cut = cut
        self.drip = drip
        self.content_type = content_type


def chat(text: str | None, *, read: int = 10, written: int = 5, finish: str = "stop") -> Reply:
    """A well-formed chat completion."""
    return Reply(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1700000000,
            "model": "some-model",
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
            ],
            "usage": {
                "prompt_tokens": read,
                "completion_tokens": written,
                "total_tokens": read + written,
                "prompt_tokens_details": {"cached_tokens": read // 2},
            },
        }
    )


class ChatServer:
    """Counts and keeps the requests; `answer` decides what comes back."""

    def __init__(self) -> None:
        self.answer: Answer = lambda body, number: chat("hello")
        self.requests: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(raw)
                with outer._lock:
                    number = len(outer.requests)
                    outer.bodies.append(raw)
                    outer.requests.append(body)
                    outer.paths.append(self.path)
                    outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                    outer.at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer.at_once)
                try:
                    self._send(outer.answer(body, number))
                finally:
                    with outer._lock:
                        outer.at_once -= 1

            def _send(self, reply: Reply) -> None:
                if reply.delay:
                    outer.released.wait(reply.delay)
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.content_type)
                self.send_header("Content-Length", str(len(reply.raw)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if not reply.drip:
                    self.wfile.write(reply.raw[: reply.cut])
                for byte in reply.raw if reply.drip else b"":
                    self.wfile.write(bytes([byte]))
                    if outer.released.wait(reply.drip):
                        break
                if reply.cut is not None:
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients that hang up are part of the tests

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
