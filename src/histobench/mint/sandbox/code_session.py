"""One episode's Python session as the host sees it: cells in, text out, state kept in between."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from histobench.mint.sandbox.docker import DockerFleet
from histobench.mint.sandbox.guest.frames import MAX_FRAME, BrokenFrameError, Channel, LongMessageError
from histobench.mint.sandbox.limits import Deadline, Limits, next_message
from histobench.mint.sandbox.zygote_process import SandboxError, ZygoteProcess, sender_pid

_RESTARTED = "The session was restarted: variables, functions and imports are gone."
_ERROR_CHARS = 2000
_CONFINE_SECONDS = 60.0


class Session:
    """One forked, confined process and the host's end of its socket."""

    def __init__(self, zygote: ZygoteProcess | DockerFleet) -> None:
        self._zygote = zygote
        self.number, self.channel = zygote.spawn()
        self.pid = 0  # as this process sees it; known once the session is open

    def open(self) -> Channel:
        try:
            deadline = time.monotonic() + _CONFINE_SECONDS
            self.channel.wait(deadline)
            self.pid = sender_pid(self.channel.socket)
            greeting = self.channel.receive(deadline)
        except (EOFError, OSError, BrokenFrameError) as error:
            why = self.why_it_ended() or error
            raise SandboxError(f"a sandboxed process did not start: {why}") from error
        if greeting.get("op") != "ready":
            raise SandboxError(f"a process could not be confined: {greeting.get('why')}")
        return self.channel

    def why_it_ended(self) -> str:
        """Return memory, disk or cpu when it was ended for using too much of it, else what is known."""
        return self._zygote.end_of(self.number)

    def close(self) -> None:
        self._zygote.kill(self.number)
        self.channel.close()


@dataclass(frozen=True)
class CellResult:
    """What a cell printed and how it ended.

    `kind`: ok, error (an exception, shown in the text), timeout (the soft one: state kept) or killed (the
    session was ended and a fresh one takes its place).
    """

    text: str
    kind: str


class CodeSession:
    """A stateful session. Tools named at the start run in the host, one call after the other."""

    def __init__(
        self, take: Callable[[], Session], tools: dict[str, Callable[..., Any]], *, limits: Limits
    ) -> None:
        self._take = take
        self._tools = tools
        self._limits = limits
        self._cell = 1
        self._session: Session | None = self._begin()

    def run_cell(self, code: str, timeout: float = 30.0) -> CellResult:
        """Run one cell under a soft limit of `timeout` seconds and a hard one a little later."""
        self._session = session = self._session or self._begin()
        number, channel = self._cell, session.channel
        self._cell += 1
        try:
            patience = timeout * self._limits.patience
            deadline = Deadline(timeout + self._limits.grace, pid=session.pid, patience=patience)
            order = {"op": "cell", "cell": number, "code": code, "timeout": timeout, "patience": patience}
            channel.send(order)
            return self._attend(channel, number, deadline)
        except LongMessageError as error:
            return CellResult(f"The code is too long to be run: {error}.\n", "error")
        except TimeoutError:
            return self._replace(
                f"TimeoutError: the cell was still running after {timeout:g} seconds and was ended."
            )
        except (EOFError, OSError):
            return self._replace(self._obituary(session.why_it_ended()))
        except BrokenFrameError:
            return self._replace("The Python process broke its connection and was ended.")

    def close(self) -> None:
        if self._session:
            self._session.close()
            self._session = None

    def __enter__(self) -> CodeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> Session:
        order = {"op": "start", "tools": sorted(self._tools), "first_cell_number": self._cell}
        session = self._take()
        try:
            session.open().send(order)
        except BaseException:
            session.close()
            raise
        return session

    def _replace(self, message: str) -> CellResult:
        self.close()
        return CellResult(f"{message}\n{_RESTARTED}\n", "killed")

    def _obituary(self, reason: str) -> str:
        limits = self._limits
        words = {
            "memory": f"MemoryError: the session held more than {limits.memory_mb} MB and was ended.",
            "disk": f"OSError: the session's files took more than {limits.scratch_mb} MB, were too many "
            "or lay too deep; it was ended.",
            "cpu": f"TimeoutError: the session used more than {limits.cpu_seconds} seconds of processor "
            "time; it was ended.",
        }
        return words.get(reason, "The Python process ended during this cell.")

    def _attend(self, channel: Channel, number: int, deadline: Deadline) -> CellResult:
        """Serve tool calls until the cell is done. Every message comes from model code as far as we know."""
        spare = self._limits.tool_seconds
        while True:
            message = next_message(channel, deadline)
            if message.get("op") == "done" and message.get("cell") == number:
                return _cell_result(message, self._limits.output_chars)
            if deadline.passed():
                raise TimeoutError
            if message.get("op") == "tool":
                called = time.monotonic()
                answer = self._call_tool(message)
                # A slow tool is not the cell's fault; calling slow tools without end is.
                excused = min(spare, time.monotonic() - called)
                spare -= excused
                deadline.extend(excused)
                channel.send({**answer, "excused": excused})

    def _call_tool(self, message: dict[str, Any]) -> dict[str, Any]:
        call, name = str(message.get("call"))[:100], message.get("name")
        args, kwargs = message.get("args"), message.get("kwargs")
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None or not isinstance(args, list) or not isinstance(kwargs, dict):
            return {"call": call, "error": "RuntimeError", "message": "no such tool call"}
        try:
            value = _as_json(tool(*args, **kwargs))
        except (Exception, SystemExit) as error:  # a tool that exits would end the whole run
            return {"call": call, "error": type(error).__name__, "message": str(error)[:_ERROR_CHARS]}
        return {"call": call, "value": value}


def _cell_result(message: dict[str, Any], output_chars: int) -> CellResult:
    text, kind = message.get("text"), message.get("kind")
    if not isinstance(text, str) or kind not in ("ok", "error", "timeout"):
        raise BrokenFrameError("no result")
    # Half a surrogate pair cannot be written to any file later. The session keeps to the limit by itself, but
    # a forged result does not.
    return CellResult(text.encode("utf-8", "backslashreplace").decode()[:output_chars], kind)


def _as_json(value: Any) -> Any:
    try:
        if len(json.dumps(value)) < MAX_FRAME // 2:
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    return str(value)[: MAX_FRAME // 16]  # a character takes up to twelve bytes
