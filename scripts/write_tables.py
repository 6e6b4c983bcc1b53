"""Write the tables of the documentation that come from the code.

usage: python scripts/write_tables.py

A table stands between `<!-- table: NAME -->` and `<!-- /table -->`. A test checks that all are current.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import histobench
from histobench.cli.main import COMMANDS
from histobench.core.files import write_text
from histobench.core.records import Declared, default_text, options_of
from histobench.core.renamed import Renamed
from histobench.roi.data.sites import SITE_COLUMNS
from histobench.roi.data.tables import COLUMNS
from histobench.roi.encoders.encoder_catalogue import markdown_table
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.registry import list_encoders
from histobench.roi.metrics.metric_catalogue import CATALOGUE as METRICS
from histobench.roi.options import DatasetEntry, plan_options
from histobench.roi.task_catalogue import CATALOGUE as TASKS

DOCS = Path(__file__).resolve().parents[1] / "docs"
_TABLE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def license_table(specs: Iterable[EncoderSpec]) -> str:
    """Every license with what it says of commercial use, its source, and when that was read."""
    lines = ["| license | commercial use | encoders | read in | date |", "|---|---|---|---|---|"]
    rows: dict[tuple[str, ...], list[str]] = {}
    for spec in specs:
        if spec.facts:
            use = f"{spec.facts.commercial}: {spec.facts.why}" if spec.facts.why else spec.facts.commercial
            rows.setdefault((spec.license, use, spec.facts.license, spec.facts.date), []).append(spec.name)
    for (terms, use, source, date), names in sorted(rows.items()):
        lines.append(f"| {terms} | {use} | {', '.join(f'`{name}`' for name in names)} | {source} | {date} |")
    return "\n".join(lines)


def markdown_rows(options: Iterable[Declared]) -> str:
    """The rows of a documentation table: key, meaning, default."""
    return "".join(
        f"| `{each.name}` | {each.said.help} | {f'`{default_text(each)}`' if default_text(each) else ''} |\n"
        for each in options
    )


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


#: Commands that 0.2 did not have, and Python names that it had.
NEW_COMMANDS = ("features export", "choose", "similarity", "mint grade", "consult register", "consult power")
FIRST_NAMES = {
    *("Benchmark", "Dataset", "Encoder", "HistobenchError", "create_encoder", "evaluate", "extract", "run"),
    *("list_encoders", "load_dataset", "open_results", "mint.AgentRuns", "mint.open_runs", "mint.run"),
    *("estimators.KNN", "estimators.LinearProbe", "estimators.Prototype", "estimators.SimpleShot"),
}


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command with its parser, without the groups of commands."""
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=name)
        command.add_flags(parser)
        below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        if not below:
            yield name, parser
        for action in below:
            jobs = {action.choices[each.dest]: each.dest for each in action._choices_actions}
            yield from ((f"{name} {job}", each) for each, job in jobs.items())


def commands() -> str:
    """Every command with its arguments and flags."""
    rows = ""
    for name, parser in parsers():
        actions = [each for each in parser._actions if each.dest != "help" and each.help != argparse.SUPPRESS]
        flags = [
            max(each.option_strings, key=len) if each.option_strings else str(each.metavar)
            for each in actions
        ]
        since = "0.3" if name in NEW_COMMANDS else "0.2"
        rows += f"| `{name}` | {' '.join(f'`{flag}`' for flag in flags)} | {since} |\n"
    return table("command", "arguments and flags", "since", rows=rows)


def earlier_flags() -> str:
    """Spellings that still work."""
    found: dict[str, dict[str, None]] = {}
    for _, parser in parsers():
        for flag, action in parser._option_string_actions.items():
            if action.option_strings and flag not in action.option_strings:
                found.setdefault(max(action.option_strings, key=len), {})[flag] = None
    rows = "".join(
        f"| `{flag}` | {', '.join(f'`{old}`' for old in olds)} |\n" for flag, olds in sorted(found.items())
    )
    return table("flag", "earlier spelling", rows=rows)


def python_names() -> str:
    """Every public Python name with the public methods of classes."""
    rows = ""
    for space in (histobench, histobench.mint, histobench.consult, histobench.estimators):
        for name in sorted(space.__all__):
            value = getattr(space, name)
            if inspect.ismodule(value) or name.startswith("_"):
                continue
            methods = [
                f"`.{each}`"
                for each in sorted(vars(value) if inspect.isclass(value) else ())
                if not each.startswith("_") and not isinstance(vars(value)[each], Renamed)
            ]
            whole = f"{space.__name__}.{name}".removeprefix("histobench.")
            since = "0.2" if whole in FIRST_NAMES else "0.3"
            rows += f"| `hb.{whole}` | {' '.join(methods)} | {since} |\n"
    return table("name", "methods and attributes", "since", rows=rows)


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "earlier-flags": earlier_flags,
    "python-names": python_names,
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
