"""What a long computation says about itself; the command line turns it into a bar."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told what is going on. `begin` and `end` enclose one stretch of counted work."""

    def begin(self, what: str, total: int) -> None:
        """`total` images are about to be done."""

    def advance(self, count: int) -> None:
        """`count` more images are done."""

    def end(self) -> None:
        """The stretch of work is over."""

    def say(self, text: str) -> None:
        """One line that the user should see."""


class Silent:
    """Says nothing."""

    def begin(self, what: str, total: int) -> None:
        """Nothing."""

    def advance(self, count: int) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""
