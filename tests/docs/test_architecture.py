"""The page on the architecture names files that exist, and answers what a newcomer asks."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "architecture.md"


def test_every_file_and_folder_of_the_page_exists() -> None:
    named = re.findall(r"`([\w./-]+(?:/|\.(?:py|yaml|json|tsx|md)))`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 50
    places = (TOP / "src" / "histobench", TOP)
    names = {path.name for path in places[0].rglob("*")}
    missing = [
        path
        for path in named
        if not any((place / path).exists() for place in places)
        and path.strip("/") not in names  # `presets.py`, beside a folder that was named before
    ]
    assert missing == []
