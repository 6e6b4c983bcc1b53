"""What others wrote stays text: in spreadsheets, in Markdown, in YAML and JSON."""

from __future__ import annotations

import re
from typing import Any

import pytest

from histobench.core.errors import HistobenchError
from histobench.core.plain_data import read_json, read_yaml
from histobench.core.text import markdown_text, spreadsheet_cell

FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "=HYPERLINK('http://x')"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_text_begins_like_a_formula(text: str) -> None:
    assert str(spreadsheet_cell(text))[0] == "'"


@pytest.mark.parametrize("value", ["uni_v1", "", "a=b", 1, -0.5, None])
def test_other_cells_stay_as_they_are(value: object) -> None:
    assert spreadsheet_cell(value) == value


@pytest.mark.parametrize(
    "text",
    ["<script>x</script>", "[a](javascript:x)", "![a](http://x/y.png)", "a | b", "**b**", "_b_", "`c`",
     "a\n# b", "&lt;b&gt;", "[a][b]", "a\\", "<!-- x", "~~s~~"],
)  # fmt: skip
def test_markdown_shows_names_and_obeys_none(text: str) -> None:
    from markdown_it import MarkdownIt

    page = MarkdownIt("gfm-like", {"linkify": False}).render(f"| {markdown_text(text)} |\n|---|\n")
    assert set(re.findall(r"<(\w+)", page)) == {"table", "thead", "tr", "th"}


@pytest.mark.slow
@pytest.mark.parametrize("read", [read_yaml, read_json])
@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 100_000, "a: 2026-99-99", "{", "[1,\n2"])
def test_a_file_that_cannot_be_read_is_refused_in_one_line(read: Any, text: str) -> None:
    with pytest.raises(HistobenchError, match=r"^plan\.file(:\d+: not valid| holds a value that)") as error:
        read(text, where="plan.file")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_anchors_that_save_writing_are_fine() -> None:
    text = "common: &c {split: 0.8/0.2}\ndatasets: [{source: a, <<: *c}, {source: b, <<: *c}]"
    assert read_yaml(text, where="plan.yaml")["datasets"][1] == {"source": "b", "split": "0.8/0.2"}
