"""The verdict on a submitted program: its tests run in a process that never ran a line of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from histobench.mint.sandbox.deadline import Deadline, next_message
from histobench.mint.sandbox.guest.frames import BrokenFrameError, LongMessageError
from histobench.mint.sandbox.pool import SandboxPool, Session

_ASKED = ("number", "do", "name", "object", "args", "kwargs")
_ANSWERED = ("found", "module", "value", "changed", "error", "message")


@dataclass(frozen=True)
class Verdict:
    """Whether the tests passed; if not, why.

    `unearned`: the tests failed on an object of the program in the place of a value. Where program and tests
    shared one interpreter, such an object could claim to equal everything.
    """

    passed: bool
    reason: str = ""
    unearned: bool = False


def run_unit_tests(
    pool: SandboxPool, code: str, tests: str, *, timeout: float = 10.0, wording: str = "native"
) -> Verdict:
    """Run `code` in one fresh session and `tests` in another; passed means that the last test was reached.

    The tests call the program's functions over this process: arguments go there, results come back as plain
    data. The program never sees the tests, and nothing that it does to its interpreter reaches them. Program
    and tests have `timeout` seconds each. `wording="python3.8"` refuses what the Python of the published
    recordings did not have.
    """
    program, tester = pool.take(), pool.take()
    try:
        return _judged(_Side(program, pool, timeout), _Side(tester, pool, timeout), code, tests, wording)
    except LongMessageError as error:
        return Verdict(False, str(error))
    finally:
        program.close()
        tester.close()


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
        except (ConnectionError, RecursionError) as error:
            raise _EndedError(self._why()) from error

    def receive(self) -> dict[str, Any]:
        """The next message, or `_EndedError` with the reason why there is none."""
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


class _EndedError(Exception):
    """One of the sessions has ended, or has to."""


def _judged(program: _Side, tester: _Side, code: str, tests: str, wording: str) -> Verdict:
    try:
        program.send({"op": "program", "program": code, "wording": wording})
        loaded = program.receive()
        if loaded.get("op") != "loaded" or "error" in loaded:
            return Verdict(False, str(loaded.get("why"))[:500])
        tester.send({"op": "tests", "tests": tests, "wording": wording})
        while (message := tester.receive()).get("op") == "ask":
            program.send({key: message[key] for key in _ASKED if key in message} | {"op": "ask"})
            answer = program.receive()
            tester.send(
                {key: answer[key] for key in _ANSWERED if key in answer}
                | {"op": "answer", "number": message.get("number")}
            )
    except _EndedError as error:
        return Verdict(False, str(error))
    if message.get("op") == "verdict" and message.get("passed") is True:
        return Verdict(True)
    return Verdict(False, str(message.get("why"))[:500], unearned=message.get("objects") is True)
