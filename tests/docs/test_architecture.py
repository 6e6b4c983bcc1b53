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


def test_names_in_the_answers_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    answers = re.findall(r"^\| .*\? \| (.*) \|$", text, re.MULTILINE)
    assert len(answers) >= 4
    code = "\n".join(path.read_text(encoding="utf-8") for path in (TOP / "src").rglob("*.py"))
    for name in ("simultaneous_pairs", "RunOptions", "open_terms", "CostTracker"):
        assert name in "".join(answers)
        assert f"def {name}(" in code or f"class {name}" in code
