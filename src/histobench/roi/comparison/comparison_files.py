"""Writes a comparison as CSV, Markdown, LaTeX and JSON."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from histobench.core.atomic import write_json, write_text
from histobench.core.foreign_text import markdown_text, spreadsheet_cell
from histobench.roi.comparison.as_json import as_json
from histobench.roi.comparison.comparison import Comparison
from histobench.roi.comparison.grids import Grid, grids

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `comparison_<task>[_<setting>]_<metric>.{csv,md,tex,json}` and the pairs as a second CSV."""
    parts = ["comparison", comparison.task, comparison.setting, comparison.metric]
    stem = "_".join(part for part in parts if part)
    texts = {
        f"{stem}.csv": encoders_csv(comparison),
        f"{stem}_pairs.csv": pairs_csv(comparison),
        f"{stem}.md": markdown(comparison),
        f"{stem}.tex": latex(comparison),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    write_json(folder / f"{stem}.json", as_json(comparison))
    return [folder / name for name in (*texts, f"{stem}.json")]


def encoders_csv(comparison: Comparison) -> str:
    """One row per dataset and encoder, best first, in full precision."""
    header = ["dataset", "task", "setting", "metric", "rank", "encoder", "value", "ci_lower", "ci_upper"]
    header += [
        "difference_to_best",
        "difference_ci_lower",
        "difference_ci_upper",
        "p_value",
        "p_holm",
        "differs_from_best",
        "simultaneous_ci_lower",
        "simultaneous_ci_upper",
        "p_simultaneous",
        "rank_lower",
        "rank_upper",
        "may_be_best",
    ]
    rows: list[list[object]] = []
    for table in comparison.tables:
        best = table.entries[0].name
        for entry in table.entries:
            pair = None if entry.name == best else table.pair(entry.name, best)
            row: list[object] = [
                table.dataset,
                comparison.task,
                comparison.setting,
                comparison.metric,
                entry.rank,
            ]
            row += [entry.name, entry.value, entry.interval.low, entry.interval.high]
            if pair is not None:
                row += [
                    pair.difference,
                    pair.interval.low,
                    pair.interval.high,
                    pair.p_value,
                    pair.p_adjusted,
                    pair.holds,
                    pair.simultaneous.low,
                    pair.simultaneous.high,
                    pair.p_simultaneous,
                ]
            row += [None] * (len(header) - 3 - len(row))
            standings = table.standings
            if standings is not None and entry.name in standings.ranks:
                row += [*standings.ranks[entry.name], entry.name in standings.best.listed()]
            rows.append(row + [None] * (len(header) - len(row)))
    return _csv(header, rows)


def pairs_csv(comparison: Comparison) -> str:
    """One row per dataset and pair of encoders."""
    header = [
        "dataset",
        "first",
        "second",
        "difference",
        "ci_lower",
        "ci_upper",
        "p_value",
        "p_holm",
        "holds",
    ]
    tests = ("jackknife", "bootstrap", "permutation", "mcnemar", "delong")
    header += [f"p_{test}" for test in tests]
    header += ["simultaneous_ci_lower", "simultaneous_ci_upper", "p_simultaneous"]
    rows: list[list[object]] = [
        [
            table.dataset, pair.first, pair.second, pair.difference, pair.interval.low, pair.interval.high,
            pair.p_value, pair.p_adjusted, pair.holds,
            *(pair.tests.p_value(test) for test in tests),
            pair.simultaneous.low, pair.simultaneous.high, pair.p_simultaneous,
        ]
        for table in comparison.tables
        for pair in table.pairs
    ]  # fmt: skip
    return _csv(header, rows)


def markdown(comparison: Comparison) -> str:
    """All tables for a README or a lab book."""
    blocks = [f"# {comparison.task} {comparison.setting}".rstrip() + f": {comparison.metric}"]
    return "\n\n".join([*blocks, *map(grid_markdown, grids(comparison))]) + "\n"


def grid_markdown(grid: Grid) -> str:
    """One table with its title and notes."""
    lines = [_row(grid.header), "|" + "---|" * len(grid.header), *map(_row, grid.rows)]
    notes = "\n".join(f"- {markdown_text(note)}" for note in grid.notes)
    return "\n\n".join(
        block for block in (f"## {markdown_text(grid.title)}", "\n".join(lines), notes) if block
    )


def latex(comparison: Comparison) -> str:
    """All tables for a paper; needs the package booktabs."""
    return "\n".join(_latex_table(grid) for grid in grids(comparison))


def _latex_table(grid: Grid) -> str:
    columns = "l" * len(grid.header)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(grid.title)}.}}"]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(grid.header), r"\midrule"]
    lines += [_latex_row(row) for row in grid.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\footnotesize {_escaped(note)}." for note in grid.notes]
    return "\n".join([*lines, r"\end{table}", ""])


def _latex_row(cells: tuple[str, ...]) -> str:
    return " & ".join(_escaped(cell) for cell in cells) + r" \\"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(markdown_text, cells)) + " |"


def _csv(header: list[str], rows: list[list[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_plain(value) for value in row] for row in rows)
    return text.getvalue()


def _plain(value: object) -> object:
    if value is None or value != value:
        return ""
    return str(value).lower() if isinstance(value, bool) else spreadsheet_cell(value)
