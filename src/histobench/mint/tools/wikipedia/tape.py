"""A tape of recorded queries: the same question always gets the same answer, offline."""

from __future__ import annotations

import zlib
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.plain_data import parse_json
from histobench.core.plain_file import open_unpacked
from histobench.mint.tools.wikipedia.article import MAX_QUERY


class TapeMissError(Exception):
    """The query is not on the tape; the agent sees this as an exception in its code."""


class Tape:
    """Query -> answer, read from a JSON file (`.json` or `.json.gz`)."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            with open_unpacked(path) as content:
                answers = parse_json(content.read())
        except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
            raise HistobenchError(f"cannot read the Wikipedia tape {path}: {error}") from error
        if not isinstance(answers, dict) or not all(isinstance(text, str) for text in answers.values()):
            raise HistobenchError(f"{path} is not a tape: expected a JSON object of query -> text")
        self._answers: dict[str, str] = answers

    def __len__(self) -> int:
        return len(self._answers)

    def search(self, query: str) -> str:
        """The recorded answer."""
        try:
            return self._answers[query[:MAX_QUERY]]
        except KeyError:
            raise TapeMissError(f"no recorded answer for the query {query!r}") from None
