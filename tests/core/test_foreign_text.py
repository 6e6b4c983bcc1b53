"""What others wrote stays text: in spreadsheets, in Markdown, in YAML and JSON."""

from __future__ import annotations

import re
import time

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


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "when its aliases are followed"),
        ("a: &a [*a]", "nested more than 40 levels deep, or in itself"),
        ("[" * 100_000, "nested more than"),
        ("seed: " + "9" * 100_000, "cannot be read"),
        ("a: 2026-99-99", "cannot be read"),
        ("a: [", "plan.yaml:1: not valid YAML"),
    ],
    ids=["bomb", "itself", "deep", "digits", "date", "open"],
)
def test_yaml_that_asks_too_much_is_refused_in_one_line_at_once(text: str, told: str) -> None:
    began = time.process_time()
    with pytest.raises(HistobenchError, match=re.escape(told)) as error:
        read_yaml(text, where="plan.yaml")
    assert time.process_time() - began < 60  # not for ever
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 100_000, '{"a": ' * 60 + "1" + "}" * 60, "{", "[1,]"])
def test_json_that_asks_too_much_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(HistobenchError) as error:
        read_json(text, where="prompts.json")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_anchors_that_save_writing_are_fine() -> None:
    text = "common: &c {split: 0.8/0.2}\ndatasets: [{source: a, <<: *c}, {source: b, <<: *c}]"
    assert read_yaml(text, where="plan.yaml")["datasets"][1] == {"source": "b", "split": "0.8/0.2"}
