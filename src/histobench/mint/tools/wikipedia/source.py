"""Which encyclopedia a run asks: the live site, a tape or a folder."""

from __future__ import annotations

import functools
from typing import Protocol

from histobench.core.errors import HistobenchError
from histobench.core.local_folder import local_dir
from histobench.mint.tools.wikipedia.folder_index import FolderIndex
from histobench.mint.tools.wikipedia.live import LiveWikipedia
from histobench.mint.tools.wikipedia.tape import Tape


class Encyclopedia(Protocol):
    """Anything that answers a search."""

    def search(self, query: str) -> str:
        """The text of the search result."""


@functools.cache
def live_wikipedia() -> LiveWikipedia:
    """The live site; one client for the whole program, so that pauses and the cache on disk are shared."""
    return LiveWikipedia(local_dir() / "wikipedia.sqlite")


@functools.cache
def open_encyclopedia(source: str = "live") -> Encyclopedia:
    """`live`, `tape:FILE` (recorded queries) or `folder:DIR` (text files, one article each)."""
    kind, _, path = source.partition(":")
    if source == "live":
        return live_wikipedia()
    if kind == "tape" and path:
        return Tape(path)
    if kind == "folder" and path:
        return FolderIndex(path)
    raise HistobenchError(f"unknown encyclopedia {source!r}; known: live, tape:FILE, folder:DIR")
