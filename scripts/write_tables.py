"""Write the tables of the documentation that come from the code.

usage: python scripts/write_tables.py

A table stands between `<!-- table: NAME -->` and `<!-- /table -->`. A test checks that all are current.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from histobench.core.files import write_text
from histobench.core.records import markdown_rows, options_of
from histobench.roi.data.sites import SITE_COLUMNS
from histobench.roi.data.tables import COLUMNS
from histobench.roi.encoders.encoder_catalogue import license_table, markdown_table
from histobench.roi.encoders.registry import list_encoders
from histobench.roi.metrics.metric_catalogue import CATALOGUE as METRICS
from histobench.roi.options import DatasetEntry, plan_options
from histobench.roi.task_catalogue import CATALOGUE as TASKS

DOCS = Path(__file__).resolve().parents[1] / "docs"
_TABLE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def table(*columns: str, rows: str) -> str:
    """A Markdown table from its columns and its rows."""
    shown = rows.replace("<", "&lt;")  # not a tag of HTML
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n{shown}"


def metrics() -> str:
    """Every metric."""
    return table(
        "name",
        "meaning",
        "better",
        rows="".join(
            f"| `{each.name}` | {each.description} | {'lower' if each.lower_is_better else 'higher'} |\n"
            for each in METRICS
        ),
    )


def tasks() -> str:
    """Every task of the ROI track."""
    return table(
        "task",
        "an encoder is evaluated by",
        "in the default list",
        rows="".join(
            f"| `{each.name}` | {each.words} | {'yes' if each.by_default else 'no'} |\n" for each in TASKS
        ),
    )


def columns() -> str:
    """The names by which columns of a CSV or a DataFrame are found."""

    def names(values: tuple[str, ...]) -> str:
        return ", ".join(f"`{name}`" for name in values)

    rows = "".join(f"| `{column}` | {names(found)} |\n" for column, found in COLUMNS.items())
    return table("column", "names", rows=f"{rows}| sites | {names(SITE_COLUMNS)} |\n")


TABLES: dict[str, Callable[[], str]] = {
    "encoders": lambda: markdown_table(list_encoders()),
    "licenses": lambda: license_table(list_encoders()),
    "metrics": metrics,
    "tasks": tasks,
    "columns": columns,
    "plan-keys": lambda: table("key", "meaning", "default", rows=markdown_rows(plan_options())),
    "dataset-keys": lambda: table("key", "meaning", "default", rows=markdown_rows(options_of(DatasetEntry))),
}


def current(text: str) -> str:
    """The text of a page with its tables made again."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]]().rstrip()}\n{found[3]}", text)


def main() -> None:
    """Write every page that has such a table."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if "<!-- table: " in text:
            write_text(page, current(text))


if __name__ == "__main__":
    main()
