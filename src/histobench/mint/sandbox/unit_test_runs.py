"""The verdict on a submitted program: it runs in one sandboxed process, its tests in another."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

from histobench.mint.sandbox.code_session import Session
from histobench.mint.sandbox.guest.frames import BrokenFrameError, LongMessageError
from histobench.mint.sandbox.limits import Deadline, next_message
from histobench.mint.sandbox.sandbox_pool import SandboxPool

_ASKED = ("number", "do", "name", "object", "args", "kwargs")


@dataclass(frozen=True)
class Verdict:
    """Whether the tests passed; if not, why."""

    passed: bool
    reason: str = ""


def run_unit_tests(
    pool: SandboxPool, code: str, tests: str, *, timeout: float = 10.0, helpers: str = ""
) -> Verdict:
    """Run `code` in a fresh session and `tests` in another; passed means that the last test was reached.

    Arguments go to the program, results come back as builtin values. The program never sees the tests, and
    nothing that it does to its interpreter reaches them. Program and tests have `timeout` seconds each; a
    program that hangs, ends its process or breaks its connection has failed.

    `helpers` is code of the task that the program starts with. Where the tests call one of its functions,
    they call that one and not the program's of the same name.
    """
    with contextlib.ExitStack() as sessions:

        def side(session: Session) -> _Side:
            sessions.callback(session.close)
            return _Side(session, pool, timeout)

        try:
            # Both processes start before the program does: what breaks afterwards is the program's failure.
            program, tester = side(pool.take()), side(pool.take_for_tests())
            program.send({"op": "program", "sources": [helpers, code]})
            loaded = program.receive()
            if loaded.get("op") != "loaded" or "error" in loaded:
                return _failed(loaded.get("why"))
            tester.send({"op": "tests", "tests": tests, "helpers": helpers})
            while (message := tester.receive()).get("op") == "ask":
                program.send({"op": "ask"} | {key: message[key] for key in _ASKED if key in message})
                tester.send(program.receive() | {"op": "answer", "number": message.get("number")})
        except (LongMessageError, _EndedError) as error:
            return _failed(error)
    if message.get("op") == "verdict" and message.get("passed") is True:
        return Verdict(True)
    return _failed(message.get("why"))


def _failed(reason: object) -> Verdict:
    """Cut the reason to a line, and write out half a surrogate pair, which no file takes."""
    return Verdict(False, str(reason)[:500].encode("utf-8", "backslashreplace").decode())


class _EndedError(Exception):
    """One of the two sessions has ended, or has to."""


class _Side:
    """One of the two sessions. Its clock runs only while it is waited for."""

    def __init__(self, session: Session, pool: SandboxPool, timeout: float) -> None:
        self._session = session
        self._channel = session.open()
        self._deadline = Deadline(timeout, pid=session.pid, patience=timeout * pool.limits.patience)
        self._timeout = timeout
        self._paused_at = time.monotonic()

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(message)
        except TimeoutError as error:
            raise _EndedError("the process stopped reading its messages") from error
        except (OSError, RecursionError) as error:
            raise _EndedError(self._why()) from error

    def receive(self) -> dict[str, Any]:
        self._deadline.extend(time.monotonic() - self._paused_at)
        try:
            message = next_message(self._channel, self._deadline)
            if self._deadline.passed():
                raise TimeoutError
        except TimeoutError:
            raise _EndedError(f"still running after {self._timeout:g} seconds") from None
        except (EOFError, OSError) as error:
            raise _EndedError(self._why()) from error
        except BrokenFrameError as error:
            raise _EndedError("the process broke its connection") from error
        self._paused_at = time.monotonic()
        return message

    def _why(self) -> str:
        return self._session.why_it_ended() or "the process ended before the tests did"
