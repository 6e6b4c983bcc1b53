"""Writes the table of encoders, generated from the zoo, into the README.

usage: python scripts/write_encoder_table.py
"""

from __future__ import annotations

import re
from pathlib import Path

from histobench.core.files import write_text
from histobench.roi.encoders.catalogue import markdown_table
from histobench.roi.encoders.registry import list_encoders

README = Path(__file__).resolve().parents[1] / "README.md"
START, END = "<!-- encoder-table -->", "<!-- /encoder-table -->"


def main() -> None:
    """Replace what stands between the two marks."""
    text = README.read_text(encoding="utf-8")
    if END not in text:
        text = text.replace(START, f"{START}\n{END}")
    table = markdown_table(list_encoders())
    pattern = re.compile(f"{re.escape(START)}.*?{re.escape(END)}", re.S)
    write_text(README, pattern.sub(lambda _: f"{START}\n{table}\n{END}", text))


if __name__ == "__main__":
    main()
