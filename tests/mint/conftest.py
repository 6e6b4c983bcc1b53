"""Fixtures of the language-model track's tests.

A real HTTP server that misbehaves on demand, small datasets, and a scripted model that answers them.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

QUESTION = "What is {number} + 1? Answer with a number."
#: Which of five ways a question is answered, by its last digit: few run code, which is slow.
WAYS = (0, 2, 3, 4, 2, 0, 3, 4, 0, 1)
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


class LoopbackServer:
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


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    loopback = LoopbackServer()
    yield loopback
    loopback.close()


class Replies:
    """Makes replies in tests."""

    Reply = Reply
    chat = staticmethod(chat)


@pytest.fixture
def replies() -> type[Replies]:
    return Replies


@pytest.fixture
def make_data(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder of datasets in which gsm8k has `n` easy questions."""

    def make(n: int, name: str = "gsm8k") -> Path:
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True, exist_ok=True)
        tasks = [{"id": i, "prompt": QUESTION.format(number=i), "reference": str(i + 1)} for i in range(n)]
        (folder / "test_prompts.json").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        return tmp_path / "data"

    return make


def scripted_turns(number: int) -> list[str]:
    """What the model says: it answers at once, computes first, is wrong, or confused."""
    answer = f"<solution>{number + 1}</solution>"
    wrong = "<solution>-7</solution>"
    code = f"<execute>print({number} + 1)</execute>"
    ways = ([answer], [code, answer], [wrong, wrong], ["Hm.", answer], [wrong, answer])
    return list(ways[WAYS[number % 10]])


def scripted_answer(body: dict[str, Any]) -> str:
    """The scripted model, from the conversation alone."""
    talk = body["messages"]
    number = int(re.findall(r"What is (\d+) \+ 1\?", talk[0]["content"])[-1])
    turn = sum(message["role"] == "assistant" for message in talk)
    turns = scripted_turns(number)
    return turns[min(turn, len(turns) - 1)]


@pytest.fixture
def make_recording(tmp_path: Path) -> Callable[[int], Path]:
    """Writes recordings of `n` episodes of those questions."""

    def make(n: int) -> Path:
        path = tmp_path / "scripted.k5.jsonl.gz"
        with gzip.open(path, "wt") as file:
            for number in range(n):
                record = {
                    "family": "reasoning",
                    "task": "gsm8k",
                    "task_id": number,
                    "model": "scripted",
                    "settings": {"max_steps": 5, "max_propose": 2},
                    "turns": [{"assistant": text, "kind": "?"} for text in scripted_turns(number)],
                    "success": True,
                    "terminate_reason": "task_success",
                    "counts": {"propose_solution": 0, "use_tool": 0, "invalid_action": 0},
                }
                file.write(json.dumps(record) + "\n")
        return path

    return make


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Every line of every results file."""
    files = sorted(folder.rglob("results.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def totals(folder: Path) -> tuple[list[str], dict[str, int]]:
    """Task ids in order, and sums over all episodes."""
    lines = read_lines(folder)
    sums: dict[str, int] = {"success": 0}
    for line in lines:
        sums["success"] += line["state"]["success"]
        for counter in ("agent_action_count", "token_counter"):
            for name, value in line["state"][counter].items():
                sums[name] = sums.get(name, 0) + value
        reason = line["state"]["terminate_reason"]
        sums[reason] = sums.get(reason, 0) + 1
    return sorted(str(line["task"]["task_id"]) for line in lines), sums


class Script:
    """What tests of runs share."""

    answer = staticmethod(scripted_answer)
    turns = staticmethod(scripted_turns)
    lines = staticmethod(read_lines)
    totals = staticmethod(totals)


@pytest.fixture(scope="session")
def small_sandbox(needs_sandbox: None) -> Iterator[Any]:
    """One sandbox for the tests of a process; scripted models need no scientific packages."""
    from histobench.mint.sandbox import open_sandbox

    with open_sandbox(preload=()) as pool:
        yield pool


@pytest.fixture
def one_sandbox(small_sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs inside this process share one sandbox: starting one takes seconds."""
    import histobench.mint.sandbox as sandbox

    monkeypatch.setattr(sandbox, "open_sandbox", lambda backend, **_: contextlib.nullcontext(small_sandbox))


@pytest.fixture
def script(needs_sandbox: None) -> type[Script]:
    return Script
