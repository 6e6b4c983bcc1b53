"""The verdict on a submitted program: its tests run in a sandbox made for this one question."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass

from histobench.mint.sandbox.deadline import Deadline, next_message
from histobench.mint.sandbox.guest.frames import BrokenFrameError
from histobench.mint.sandbox.pool import SandboxPool

_HARD_MARGIN = 1.0


@dataclass(frozen=True)
class Verdict:
    """Whether the tests passed; if not, why."""

    passed: bool
    reason: str = ""


def run_unit_tests(
    pool: SandboxPool, code: str, tests: str, *, timeout: float = 10.0, wording: str = "native"
) -> Verdict:
    """Run `code` followed by `tests` in a fresh session; passed means that the last test was reached.

    `wording="python3.8"` refuses what the Python of the published recordings did not have.
    The session earns the verdict by returning a token drawn for this run, which it hands back only after the
    program's end: printing, exiting or closing the connection earns nothing. A pass is checked once more with
    a test that must fail; whoever passes that too was not running the tests.
    """
    verdict = _run(pool, f"{code}\n{tests}", timeout, wording)
    if not verdict.passed:
        return verdict
    trap = f"assert {secrets.randbelow(10**9)} == {-1 - secrets.randbelow(10**9)}"
    if _run(pool, f"{code}\n{tests}\n{trap}", timeout, wording).passed:
        return Verdict(False, "the program reported success for a test that cannot succeed")
    return verdict


def _run(pool: SandboxPool, program: str, timeout: float, wording: str) -> Verdict:
    token = secrets.token_hex(16)
    session = pool.take()
    try:
        channel = session.open()
        patience = timeout * pool.limits.patience
        deadline = Deadline(timeout + _HARD_MARGIN, pid=session.pid, patience=patience)
        order = {"op": "unit", "program": program, "token": token, "wording": wording}
        channel.send({**order, "timeout": timeout, "patience": patience})
        answer = next_message(channel, deadline)
        while answer.get("op") != "verdict":
            if deadline.passed():
                raise TimeoutError
            answer = next_message(channel, deadline)
    except TimeoutError:
        return Verdict(False, f"still running after {timeout:g} seconds")
    except (EOFError, OSError):
        return Verdict(False, session.why_it_ended() or "the process ended before the tests did")
    except BrokenFrameError:
        return Verdict(False, "the process broke its connection")
    finally:
        session.close()
    returned = answer.get("token")
    if isinstance(returned, str) and hmac.compare_digest(returned.encode(), token.encode()):
        return Verdict(True)
    return Verdict(False, str(answer.get("why"))[:500])
