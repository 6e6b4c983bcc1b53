"""The search tool of the reasoning tasks."""

from __future__ import annotations

from histobench.mint.tools.base import Tool
from histobench.mint.tools.wikipedia.source import Encyclopedia, live_wikipedia


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
        """The summaries of the best pages."""
        return (self._encyclopedia or live_wikipedia()).search(str(query))
