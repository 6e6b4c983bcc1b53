"""What a run may spend, and what it has spent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json

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

    def hold(self, worst: float, *, waited: float) -> bool:
        """Hold back what a request can cost at most; false where others under way have to end first."""
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

    def settle(self, worst: float, cost: float | None, *, answered: bool = True) -> None:
        """Release what was held back for a request and enter its cost; None is an unknown price."""
        with self._lock:
            self.unpriced_calls += answered and cost is None
            self.spent += cost or 0.0
            self._change(0.0 if self._max_cost is None else -worst, changed=bool(cost))

    def _change(self, dollars: float, *, changed: bool = False) -> None:
        if dollars or changed:
            held = self._held + dollars
            self._held = held if held > 1e-12 else 0.0  # rounding errors
            self._keep(self.spent - self._before, self._held)


class Ledger:
    """A file of the results folder with one line per change: dollars spent and dollars held back.

    What a killed process held back counts as spent: its requests may have been billed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = (0.0, 0.0)
        self.spent = 0.0
        for line in read_plain_text(path).split("\n") if path.exists() else ():
            with suppress(ValueError):  # a line that a kill has torn
                entry = parse_json(line)
                self.spent += entry["dollars"] + entry["held"]

    def keep(self, dollars: float, held: float) -> None:
        spent, more_held = dollars - self._last[0], held - self._last[1]
        self._last = (dollars, held)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            file.write(f'{{"dollars": {spent:.9g}, "held": {more_held:.9g}}}\n'.encode())
