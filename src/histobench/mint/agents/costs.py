"""What a run may spend, and what it has spent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json
from histobench.mint.agents.completion import Usage

#: Seconds to wait for what other processes hold back; a killed process never releases it.
PATIENCE = 120.0


class CostLimitError(Exception):
    """The limit is reached: nothing more is asked."""


class CostTracker:
    """Tokens and dollars of all requests that were sent; safe between threads.

    Before a request is sent, the most that it can cost is held back (`hold`); afterwards its cost is entered
    and the rest released (`settle`). So requests at the same time cannot pass the limit together. `spent` is
    what was spent before; `others` gives what other processes of the run have spent and hold back; `keep`
    stores both numbers of this process.
    """

    def __init__(
        self,
        *,
        max_cost: float | None = None,
        spent: float = 0.0,
        others: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
        keep: Callable[[float, float], None] = lambda dollars, held: None,
    ) -> None:
        self._lock = threading.Lock()
        self._held = 0.0
        self._max_cost = max_cost
        self._before = spent
        self._others = others
        self._keep = keep
        self.spent = spent  # dollars, as far as prices are known
        self.unpriced_calls = 0
        self.calls = 0  # answers that were not read from the cache
        self.usage = Usage()

    def hold(self, worst: float, *, waited: float) -> bool:
        """Hold back what a request can cost at most; false where others under way have to end first.

        Raises `CostLimitError` if the limit would be passed even if those cost nothing, or if there is no one
        left to wait for after `waited` seconds.
        """
        if self._max_cost is None:
            return True
        with self._lock:
            self._change(worst)  # first announce, then look: of two processes at once, one sees the other
            paid, held = self._others()
            paid += self.spent
            if paid + self._held + held <= self._max_cost:
                return True
            self._change(-worst)
            if paid + worst > self._max_cost or (waited >= PATIENCE and not self._held):
                raise CostLimitError(
                    f"${paid:.4f} of at most ${self._max_cost:.4f} spent, and the next answer may cost "
                    f"${worst:.4f}; run the same command with a higher `max_cost` to go on"
                )
            return False

    def settle(self, worst: float, cost: float | None = 0.0, usage: Usage | None = None) -> None:
        """Release what was held back for a request and enter its cost; None is an unknown price.

        `usage` are the tokens of an answer; without it the request brought none.
        """
        with self._lock:
            if usage is not None:
                self.calls += 1
                self.usage += usage
                self.unpriced_calls += cost is None
            self.spent += cost or 0.0
            self._change(0.0 if self._max_cost is None else -worst, changed=bool(cost))

    def _change(self, dollars: float, *, changed: bool = False) -> None:
        if dollars or changed:
            held = self._held + dollars
            self._held = held if held > 1e-12 else 0.0  # rounding errors
            self._keep(self.spent - self._before, self._held)


class Ledger:
    """A file of the results folder with one line per change: dollars spent and dollars held back.

    What a killed process held back counts as spent: its requests may have been billed. `before` gives what
    an older version spent in a folder without this file.
    """

    def __init__(self, path: Path, *, before: Callable[[], float] = lambda: 0.0) -> None:
        self._path = path
        self._last = (0.0, 0.0)
        self._first = 0.0
        if path.exists():
            self.spent = self._read()
        else:
            self.spent = self._first = before()

    def keep(self, dollars: float, held: float) -> None:
        """Add what this process has spent and holds back by now."""
        spent, before = dollars - self._last[0] + self._first, self._last[1]
        self._last, self._first = (dollars, held), 0.0
        line = f'{{"dollars": {spent:.9g}, "held": {held - before:.9g}}}\n'.encode()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def _read(self) -> float:
        total = 0.0
        for line in read_plain_text(self._path).split("\n"):
            with suppress(ValueError, KeyError, TypeError):  # the last line of a killed process
                entry = parse_json(line)
                total += float(entry["dollars"]) + float(entry["held"])
        return max(total, 0.0)
