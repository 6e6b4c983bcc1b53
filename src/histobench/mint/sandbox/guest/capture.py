"""Standard output of a cell, kept up to a limit; standard error is dropped."""

from __future__ import annotations

import io
import sys


class CappedText(io.StringIO):
    """A text stream that keeps the first `limit` characters and swallows the rest.

    >>> stream = CappedText(3)
    >>> stream.write("ab") + stream.write("cde")
    5
    >>> stream.kept()
    'abc'
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._left = limit

    def write(self, text: str) -> int:
        """Keep what still fits; claim to have written everything."""
        if not isinstance(text, str):
            raise TypeError(f"string argument expected, got {type(text).__name__!r}")
        if self._left > 0:
            super().write(text[: self._left])
            self._left -= min(self._left, len(text))
        return len(text)

    def writelines(self, lines: object) -> None:
        """Every line through `write`."""
        for line in lines:  # type: ignore[attr-defined]
            self.write(line)

    def kept(self) -> str:
        """The text kept, also after model code closed the stream."""
        try:
            return self.getvalue()
        except ValueError:
            return ""


class Capture:
    """Collects what is printed inside the block."""

    def __init__(self, limit: int) -> None:
        self._out = CappedText(limit)
        self._saved = (sys.stdin, sys.stdout, sys.stderr)

    def __enter__(self) -> Capture:
        # A new reader each time: model code may have closed or replaced the last one.
        sys.stdin = open("/dev/null", encoding="utf-8")
        sys.stdout, sys.stderr = self._out, CappedText(0)
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdin, sys.stdout, sys.stderr = self._saved

    def text(self) -> str:
        """What was printed, up to the limit."""
        return self._out.kept()
