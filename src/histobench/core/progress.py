"""What a long computation says about itself; the command line turns it into a bar."""

from __future__ import annotations


class Progress:
    """Told what is going on, and does nothing. `begin` and `end` enclose one stretch of counted work."""

    def begin(self, what: str, total: int) -> None:
        """`total` images are about to be done."""

    def advance(self, count: int) -> None:
        """`count` more images are done."""

    def end(self) -> None:
        """The stretch of work is over."""

    def say(self, text: str) -> None:
        """One line that the user should see."""


class Silent(Progress):
    """Says nothing."""
