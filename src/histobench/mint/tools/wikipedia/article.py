"""An article and how search results are worded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_QUERY = 300
MAX_PAGES = 2
MAX_TEXT = 1000
NOTHING_FOUND = "No page was found for this query."


@dataclass(frozen=True)
class Article:
    """A title and the summary that stands first on the page."""

    title: str
    summary: str


def rendered(articles: Sequence[Article]) -> str:
    """The text of a search result: up to two pages, at most 1,000 characters.

    >>> rendered([Article("Cell", "The basic unit.")])
    'Page: Cell\\nSummary: The basic unit.'
    """
    if not articles:
        return NOTHING_FOUND
    pages = [f"Page: {article.title}\nSummary: {article.summary}" for article in articles[:MAX_PAGES]]
    return "\n\n".join(pages)[:MAX_TEXT]
