"""The Wikipedia search tool: live, from a tape, or from a folder."""

from __future__ import annotations

import functools
import json
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_bytes, read_plain_text
from histobench.core.folders import local_dir
from histobench.core.http import RetryPolicy, retry_after
from histobench.core.plain_data import read_json
from histobench.core.version import __version__
from histobench.mint.tools.base import Tool, ToolServiceError

MAX_QUERY = 300
MAX_PAGES = 2
MAX_TEXT = 1000
NOTHING_FOUND = "No page was found for this query."
SUFFIXES = (".txt", ".md")
API = "https://en.wikipedia.org/w/api.php"
USER_AGENT = f"histobench/{__version__} (https://github.com/histobench/histobench)"
POLICY = RetryPolicy(attempts=4, answer_timeout=20.0, longest_retry_after=60.0)


def rendered(articles: Sequence[tuple[str, str]]) -> str:
    """The text of a search result, from titles and summaries: up to two pages, at most 1,000 characters.

    >>> rendered([("Cell", "The basic unit.")])
    'Page: Cell\\nSummary: The basic unit.'
    """
    pages = [f"Page: {title}\nSummary: {summary}" for title, summary in articles[:MAX_PAGES]]
    return "\n\n".join(pages)[:MAX_TEXT] or NOTHING_FOUND


class FolderIndex:
    """A full-text index over a folder of text files: titles are file names, summaries first paragraphs."""

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        if not folder.is_dir():
            raise HistobenchError(f"no folder of articles at {folder}")
        self._lock = threading.Lock()
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute(
            "CREATE VIRTUAL TABLE articles USING fts5(title, body, summary UNINDEXED, tokenize=porter)"
        )
        with self._index:
            self._index.executemany("INSERT INTO articles VALUES (?, ?, ?)", _articles(folder))
        if not self._index.execute("SELECT count(*) FROM articles").fetchone()[0]:
            raise HistobenchError(f"{folder} holds no article (files ending with {' or '.join(SUFFIXES)})")

    def search(self, query: str) -> str:
        phrase = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query[:MAX_QUERY]))
        with self._lock:
            rows = self._index.execute(
                "SELECT title, summary FROM articles WHERE articles MATCH ? "
                "ORDER BY bm25(articles, 10.0, 1.0) LIMIT ?",
                (phrase or '""', MAX_PAGES),
            ).fetchall()
        return rendered(rows)


def _articles(folder: Path) -> Iterator[tuple[str, str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            body = read_bytes(path).decode("utf-8", "replace").strip()
            title = path.stem.replace("_", " ")
            yield title, body, re.split(r"\n\s*\n", re.sub(r"^#\s.*\n+", "", body), maxsplit=1)[0].strip()


class WikipediaError(ToolServiceError):
    """The site could not be reached or refused; the agent sees this as an exception in its code."""


class LiveWikipedia:
    """The MediaWiki API with a cache on disk, one request at a time, bounded retries."""

    def __init__(
        self, cache: str | Path = ":memory:", *, api: str = API, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._api = api
        self._sleep = sleep
        self._lock = threading.Lock()
        Path(cache).parent.mkdir(parents=True, exist_ok=True)
        self._cache = sqlite3.connect(str(cache), check_same_thread=False)
        with self._cache:
            self._cache.execute(
                "CREATE TABLE IF NOT EXISTS answers (query TEXT PRIMARY KEY, text TEXT, at REAL)"
            )

    def search(self, query: str) -> str:
        """The summaries of the first hits for `query`, without missing and disambiguation pages."""
        query = query[:MAX_QUERY]
        with self._lock:
            known = self._cache.execute("SELECT text FROM answers WHERE query = ?", (query,)).fetchone()
            if known:
                return str(known[0])
            found = self._ask(list="search", srsearch=query, srlimit=str(MAX_PAGES))
            titles = [hit["title"] for hit in found.get("query", {}).get("search", [])][:MAX_PAGES]
            text = rendered([article for title in titles for article in self._article(title)])
            with self._cache:
                self._cache.execute(
                    "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (query, text, time.time())
                )
            return text

    def _article(self, title: str) -> list[tuple[str, str]]:
        answer = self._ask(
            titles=title,
            prop="extracts|pageprops",
            ppprop="disambiguation",
            exintro="1",
            explaintext="1",
            redirects="1",
        )
        return [
            (page["title"], page.get("extract", "").strip())
            for page in answer.get("query", {}).get("pages", [])
            if not page.get("missing") and "disambiguation" not in page.get("pageprops", {})
        ][:1]

    def _ask(self, **parameters: str) -> dict[str, Any]:
        import httpx

        parameters = {"action": "query", "format": "json", "formatversion": "2", "maxlag": "5", **parameters}
        headers, timeout = {"User-Agent": USER_AGENT}, POLICY.answer_timeout
        trouble = ""
        for attempt in range(1, POLICY.attempts + 1):
            wait = POLICY.pause(attempt, jitter=1.0)
            try:
                reply = httpx.get(self._api, params=parameters, headers=headers, timeout=timeout)
                wait = min(POLICY.longest_retry_after, retry_after(reply.headers) or wait)
                content = reply.raise_for_status().json()
                if "error" not in content:
                    return dict(content)
                trouble = str(content["error"].get("info", content["error"]))
            except (httpx.HTTPError, json.JSONDecodeError) as error:
                trouble = str(error)
            if attempt < POLICY.attempts:
                self._sleep(wait)
        raise WikipediaError(f"Wikipedia did not answer after {POLICY.attempts} tries: {trouble}")


class TapeMissError(Exception):
    """The query is not on the tape; the agent sees this as an exception in its code."""


class Tape:
    """Recorded answers by query, from a JSON file (`.json` or `.json.gz`)."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        answers = read_json(read_plain_text(path), where=str(path))
        if not isinstance(answers, dict) or not all(isinstance(text, str) for text in answers.values()):
            raise HistobenchError(f"{path} is not a tape: expected a JSON object of query -> text")
        self._answers: dict[str, str] = answers

    def search(self, query: str) -> str:
        if (answer := self._answers.get(query[:MAX_QUERY])) is None:
            raise TapeMissError(f"no recorded answer for the query {query!r}")
        return answer


Encyclopedia = LiveWikipedia | Tape | FolderIndex


@functools.cache
def open_encyclopedia(source: str) -> Encyclopedia:
    """`live`, `tape:FILE` (recorded queries) or `folder:DIR` (text files, one article each).

    One object for each in the whole program, so that requests wait for each other and share a cache on disk.
    """
    kind, _, path = source.partition(":")
    if source == "live":
        return LiveWikipedia(local_dir() / "wikipedia.sqlite")
    if kind in ("tape", "folder") and path:
        return Tape(path) if kind == "tape" else FolderIndex(path)
    raise HistobenchError(f"unknown encyclopedia {source!r}; known: live, tape:FILE, folder:DIR")


class WikipediaQueryRun(Tool):
    """Searches Wikipedia: the live site by default, or a tape or a folder for machines without a network."""

    name = "wikipedia_search"
    signature = "wikipedia_search(query: str) -> str"
    description = (
        "Searches Wikipedia and returns the summaries of the pages that fit best. Good for facts on people, "
        "places, companies, events and ideas. The argument is the query."
    )

    def __init__(self, encyclopedia: Encyclopedia | None = None) -> None:
        self._encyclopedia = encyclopedia

    def __call__(self, query: str) -> str:
        return (self._encyclopedia or open_encyclopedia("live")).search(str(query))
