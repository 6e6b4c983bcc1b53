"""How long to wait for a provider, and how often to ask again."""

from __future__ import annotations

import email.utils
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

#: Worth asking again: time-outs, conflicts, rate limits, overload and everything that broke in the server.
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
#: Every other episode would end the same way: no money, a wrong key, a wrong address or model.
HOPELESS = frozenset({401, 402, 403, 404, 405})


@dataclass(frozen=True)
class RetryPolicy:
    """Limits of one request. Back-off doubles from `first_pause` to `longest_pause`, with jitter."""

    attempts: int = 10
    first_pause: float = 1.0
    longest_pause: float = 60.0
    #: A whole answer has to be here after so many seconds, however slowly it drips.
    answer_timeout: float = 300.0
    connect_timeout: float = 15.0
    #: How long a provider may ask to be left alone.
    longest_retry_after: float = 600.0
    #: How often an empty text is asked for again before it counts as what the model says.
    empty_attempts: int = 2

    @property
    def tries_after_empty(self) -> int:
        """`empty_attempts`, or fewer where fewer attempts are allowed at all."""
        return min(self.empty_attempts, self.attempts - 1)

    def pause(self, failures: int, *, jitter: float | None = None) -> float:
        """Seconds to wait after so many failures.

        >>> [RetryPolicy().pause(n, jitter=1.0) for n in (1, 2, 3, 20)]
        [1.0, 2.0, 4.0, 60.0]
        """
        share = (
            random.uniform(0.5, 1.0) if jitter is None else jitter
        )  # so that requests do not march in step
        longest = min(self.first_pause * 2.0 ** min(failures - 1, 30), self.longest_pause)
        return longest * share


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds that the provider asks for: a number, milliseconds or a date.

    >>> retry_after({"retry-after": "3"})
    3.0
    """
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after")
        if value is None:
            return None
        try:
            return max(0.0, float(value))
        except ValueError:
            moment = email.utils.parsedate_to_datetime(value).timestamp()
            return max(0.0, moment - (server_time(headers) if now is None else now))
    except (ValueError, TypeError):
        return None


def server_time(headers: Mapping[str, str]) -> float:
    """What time it is for the server, whose dates are to be read by its own clock; else this machine's time.

    >>> server_time({"date": "Sun, 15 Nov 2026 12:00:00 GMT"})
    1794744000.0
    """
    try:
        return email.utils.parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError, OverflowError):
        return time.time()
