"""Pages link to files of the repository; on the site these links go to the repository's address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_OUTSIDE = re.compile(r"\]\(\.\./((?:src|tests|benchmarks|[A-Z]+\.md)[^)#\s]*)")
_REPOSITORY = "https://github.com/histobench/histobench/blob/main/"
_TOP = Path(__file__).resolve().parent.parent


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page; a file that is not there fails the build."""

    def outside(match: re.Match[str]) -> str:
        if not (_TOP / match[1]).exists():
            raise FileNotFoundError(f"a page links to {match[1]}, which is not in the repository")
        return f"]({_REPOSITORY}{match[1]}"

    return _OUTSIDE.sub(outside, markdown)
