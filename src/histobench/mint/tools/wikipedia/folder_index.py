"""A full-text index over a folder of articles: an encyclopedia for machines without a network."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.plain_file import read_plain
from histobench.mint.tools.wikipedia.article import MAX_PAGES, MAX_QUERY, Article, rendered

SUFFIXES = (".txt", ".md")


class FolderIndex:
    """Articles are text files: the title is the file's name, the summary its first paragraph."""

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
        """The summaries of the best matches; words in the title weigh more."""
        words = re.findall(r"\w+", query[:MAX_QUERY])
        if not words:
            return rendered([])
        phrase = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            rows = self._index.execute(
                "SELECT title, summary FROM articles WHERE articles MATCH ? "
                "ORDER BY bm25(articles, 10.0, 1.0) LIMIT ?",
                (phrase, MAX_PAGES),
            ).fetchall()
        return rendered([Article(*row) for row in rows])


def _articles(folder: Path) -> Iterator[tuple[str, str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            body = read_plain(path).decode("utf-8", "replace").strip()
            title = path.stem.replace("_", " ")
            yield title, body, re.split(r"\n\s*\n", re.sub(r"^#\s.*\n+", "", body), maxsplit=1)[0].strip()
