"""Waiting for a server no longer than a person would: is it there at all?"""

from __future__ import annotations

import os
import queue
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

#: Seconds within which a server has to say anything; `HF_HUB_ETAG_TIMEOUT` changes it.
SECONDS = 2.0


class UnreachableError(Exception):
    """The server did not answer in time, or there is no way to it."""


def call_while_reachable(function: Callable[[], Any], url: str) -> Any:
    """The result of `function`, which talks to `url`; it is given up when nothing answers there.

    Download libraries try again for half a minute before they say that there is no network. Here one short
    question to the same server goes out at the same time.
    """
    seconds = _seconds()
    news: queue.Queue[tuple[str, Any]] = queue.Queue()

    def work() -> None:
        try:
            news.put(("result", function()))
        except BaseException as error:
            news.put(("error", error))

    threading.Thread(target=work, name="histobench-download", daemon=True).start()
    threading.Thread(target=lambda: news.put(("answers", answers(url, seconds))), daemon=True).start()
    # A name server can be silent for longer than any timeout of a connection.
    deadline: float | None = time.monotonic() + 1.25 * seconds
    while True:
        try:
            what, value = news.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0))
        except queue.Empty:
            raise UnreachableError(url) from None
        if what == "result":
            return value
        if what == "error":
            raise value
        if value:
            deadline = None
        elif news.empty():
            raise UnreachableError(url)


def answers(url: str, seconds: float) -> bool:
    """Whether a server says anything at all, be it an error."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError) as error:
        # A certificate that only Python's own client does not know: someone is there.
        return isinstance(getattr(error, "reason", error), ssl.SSLError)


def _seconds() -> float:
    try:
        return max(float(os.environ.get("HF_HUB_ETAG_TIMEOUT", SECONDS)), 0.1)
    except ValueError:
        return SECONDS
