"""The live encyclopedia, asked politely: one request at a time, with pauses, and never twice the same."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from histobench import __version__
from histobench.mint.tools.base import ToolServiceError
from histobench.mint.tools.wikipedia.article import MAX_PAGES, MAX_QUERY, Article, rendered

API = "https://en.wikipedia.org/w/api.php"
USER_AGENT = f"histobench/{__version__} (https://github.com/histobench/histobench)"
PAUSE_S = 0.25
TIMEOUT_S = 20.0
TRIES = 4
#: How many hits are looked at to find pages that are neither missing nor disambiguations.
CANDIDATES = 2


class WikipediaError(ToolServiceError):
    """The site could not be reached or refused; the agent sees this as an exception in its code."""


class LiveWikipedia:
    """The MediaWiki API with a cache on disk, a pause between requests and bounded retries."""

    def __init__(
        self,
        cache: str | Path | None = None,
        *,
        api: str = API,
        pause: float = PAUSE_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api
        self._pause = pause
        self._sleep = sleep
        self._lock = threading.Lock()
        self._last = 0.0
        if cache is not None:
            Path(cache).parent.mkdir(parents=True, exist_ok=True)
        self._cache = sqlite3.connect(str(cache) if cache else ":memory:", check_same_thread=False)
        with self._cache:
            self._cache.execute(
                "CREATE TABLE IF NOT EXISTS answers (query TEXT PRIMARY KEY, text TEXT, at REAL)"
            )

    def search(self, query: str) -> str:
        """The summaries of the first hits for `query`."""
        query = query[:MAX_QUERY]
        with self._lock:
            known = self._cache.execute("SELECT text FROM answers WHERE query = ?", (query,)).fetchone()
            if known:
                return str(known[0])
            titles = self._titles(query)
            articles = [article for title in titles if (article := self._article(title))]
            text = rendered(articles)
            with self._cache:
                self._cache.execute(
                    "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (query, text, time.time())
                )
            return text

    def _titles(self, query: str) -> list[str]:
        answer = self._ask({"list": "search", "srsearch": query, "srlimit": str(CANDIDATES)})
        return [hit["title"] for hit in answer.get("query", {}).get("search", [])][:MAX_PAGES]

    def _article(self, title: str) -> Article | None:
        answer = self._ask(
            {
                "titles": title,
                "prop": "extracts|pageprops",
                "ppprop": "disambiguation",
                "exintro": "1",
                "explaintext": "1",
                "redirects": "1",
            }
        )
        for page in answer.get("query", {}).get("pages", []):
            if not page.get("missing") and "disambiguation" not in page.get("pageprops", {}):
                return Article(page["title"], page.get("extract", "").strip())
        return None

    def _ask(self, parameters: dict[str, str]) -> dict[str, Any]:
        import httpx

        parameters = {"action": "query", "format": "json", "formatversion": "2", "maxlag": "5", **parameters}
        trouble = ""
        for attempt in range(TRIES):
            self._sleep(max(0.0, self._last + self._pause - time.monotonic()))
            wait = 2.0**attempt
            try:
                reply = httpx.get(
                    self._api, params=parameters, headers={"User-Agent": USER_AGENT}, timeout=TIMEOUT_S
                )
                self._last = time.monotonic()
                if reply.status_code in (429, 500, 502, 503, 504):
                    trouble = f"status {reply.status_code}"
                    wait = _seconds(reply.headers.get("Retry-After"), wait)
                else:
                    reply.raise_for_status()
                    content = reply.json()
                    if "error" not in content:
                        return dict(content)
                    trouble = str(content["error"].get("info", content["error"]))
            except (httpx.HTTPError, json.JSONDecodeError) as error:
                self._last = time.monotonic()
                trouble = f"{type(error).__name__}: {error}"
            if attempt + 1 < TRIES:
                self._sleep(wait)
        raise WikipediaError(f"Wikipedia could not be asked after {TRIES} tries: {trouble}")


def _seconds(header: str | None, otherwise: float) -> float:
    try:
        return min(60.0, float(header or otherwise))
    except ValueError:  # the header may be a date
        return otherwise
