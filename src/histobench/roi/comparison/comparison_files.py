"""Write a comparison as CSV, Markdown, LaTeX and JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from histobench.core.files import write_json, write_text
from histobench.core.text import csv_text, markdown_text, spreadsheet_cell
from histobench.roi.comparison.answer import answer, evidence_of
from histobench.roi.comparison.comparison import Comparison, DatasetRanking, DatasetTable, Entry, Pair
from histobench.roi.comparison.grids import Grid, grids
from histobench.statistics.intervals import Interval

# A comparison as plain JSON values.


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything the comparison knows; missing numbers are null."""
    task, setting = comparison.task, comparison.setting
    found = answer(evidence_of(comparison), task=task, metric=comparison.metric, setting=setting)
    return {
        "metric": comparison.metric,
        "lower_is_better": comparison.lower_is_better,
        "task": comparison.task,
        "setting": comparison.setting,
        "presets": list(comparison.presets),
        "alpha": comparison.alpha,
        "datasets": [_table(table) for table in comparison.tables],
        "ranking": None if comparison.ranking is None else _ranking(comparison.ranking),
        "answer": asdict(found),
    }


def _table(table: DatasetTable) -> dict[str, Any]:
    return {
        "dataset": table.dataset,
        "num_images": table.n_images,
        "num_groups": table.n_groups,
        "resampled": table.resampled,
        # What `holds` goes by.
        "correction": f"max-t over {len(table.pairs)} pairs",
        "encoders": [_entry(entry) | _standing(table, entry.name) for entry in table.entries],
        "pairs": [_pair(pair) for pair in table.pairs],
        "winner": _winner(table),
        "notes": list(table.notes),
        # The same encoders by accuracy, where the metric could not be tested.
        "accuracy_instead": None if table.instead is None else _table(table.instead),
    }


def _standing(table: DatasetTable, name: str) -> dict[str, Any]:
    standings = table.standings
    if standings is None or name not in standings.ranks:
        return {"rank_lower": None, "rank_upper": None, "may_be_best": None}
    low, high = standings.ranks[name]
    return {"rank_lower": low, "rank_upper": high, "may_be_best": name in standings.best.listed()}


def _winner(table: DatasetTable) -> dict[str, Any] | None:
    if table.standings is None:
        return None
    winner = table.standings.winner
    return {
        "encoder": winner.name,
        "measured_value": winner.measured,
        "corrected_value": winner.value,
        **_bounds(winner.interval),
    }


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "encoder": entry.name,
        "rank": entry.rank,
        "value": entry.value,
        **_bounds(entry.interval),
        "reported_value": entry.reported,
        **({"caveats": list(entry.caveats)} if entry.caveats else {}),
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "first": pair.first,
        "second": pair.second,
        "difference": pair.difference,
        **_bounds(pair.interval),
        "p_value": _number(pair.p_value),
        "p_holm": _number(pair.p_adjusted),
        "holds": pair.holds if pair.p_value == pair.p_value else None,
        "simultaneous": {**_bounds(pair.simultaneous), "p_value": _number(pair.p_simultaneous)},
    }


def _ranking(ranking: DatasetRanking) -> dict[str, Any]:
    counts = ranking.win_tie_loss
    return {
        "datasets": list(ranking.datasets),
        "encoders": [
            {"encoder": name, "mean_rank": rank, "mean_value": value}
            for name, rank, value in zip(ranking.names, ranking.mean_ranks, ranking.mean_values, strict=True)
        ],
        "friedman": {
            "statistic": ranking.friedman.statistic,
            "p_value": ranking.friedman.p_value,
            "iman_davenport_f": _number(ranking.friedman.f_statistic),
            "iman_davenport_p_value": ranking.friedman.f_p_value,
        },
        "nemenyi": {
            "critical_difference": ranking.critical_difference,
            "p_values": [list(row) for row in ranking.nemenyi_p],
            "groups_without_difference": [list(group) for group in ranking.groups],
        },
        "win_tie_loss": {
            "wins": counts.wins.tolist(),
            "ties": counts.ties.tolist(),
            "losses": counts.losses.tolist(),
        },
        "signed_rank": {
            "rope": ranking.rope,
            "pairs": [
                {"first": first, "second": second, **asdict(chances)}
                for i, (first, _) in enumerate(ranking.run_on)
                for j, (second, _) in enumerate(ranking.run_on)
                if i < j and (chances := ranking.chances[i][j]) is not None
            ],
        },
        "left_out": list(ranking.left_out),
        "left_out_datasets": list(ranking.left_out_datasets),
        "run_on": dict(ranking.run_on),
        "notes": list(ranking.notes),
    }


def _bounds(interval: Interval) -> dict[str, Any]:
    bounds = {"ci_lower": interval.low, "ci_upper": interval.high, "ci_method": interval.method}
    return bounds | ({"ci_note": interval.reason} if interval.reason else {})


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


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


_OF_PAIR = "difference_to_best difference_ci_lower difference_ci_upper p_value p_holm differs_from_best"
_TOGETHER = "simultaneous_ci_lower simultaneous_ci_upper p_simultaneous"


def encoders_csv(comparison: Comparison) -> str:
    """One row per dataset and encoder, in order, in full precision; what was not tested is empty."""
    header = (
        f"dataset task setting metric rank encoder value ci_lower ci_upper {_OF_PAIR} {_TOGETHER}".split()
    )
    of = [comparison.task, comparison.setting, comparison.metric]
    rows: list[list[object]] = []
    for table in comparison.tables:
        best = table.entries[0].name
        for entry in table.entries:
            pair = None if entry.name == best else table.pair(entry.name, best)
            own = [table.dataset, *of, entry.rank, entry.name, entry.value]
            own += [entry.interval.low, entry.interval.high]
            against = [None] * (len(header) - len(own)) if pair is None else _pair_cells(pair)
            rows.append([*own, *against, *_standing(table, entry.name).values()])
    return _csv([*header, "rank_lower", "rank_upper", "may_be_best"], rows)


def pairs_csv(comparison: Comparison) -> str:
    """One row per dataset and pair of encoders."""
    header = f"dataset first second difference ci_lower ci_upper p_value p_holm holds {_TOGETHER}".split()
    rows: list[list[object]] = [
        [table.dataset, pair.first, pair.second, *_pair_cells(pair)]
        for table in comparison.tables
        for pair in table.pairs
    ]
    return _csv(header, rows)


def _pair_cells(pair: Pair) -> list[object]:
    holds = pair.holds if pair.p_value == pair.p_value else None
    alone, together = pair.interval, pair.simultaneous
    return [
        pair.difference, alone.low, alone.high, pair.p_value, pair.p_adjusted, holds,
        together.low, together.high, pair.p_simultaneous,
    ]  # fmt: skip


def markdown(comparison: Comparison) -> str:
    """All tables for a README or a lab book."""
    blocks = [f"# {comparison.task} {comparison.setting}".rstrip() + f": {comparison.metric}"]
    return "\n\n".join([*blocks, *map(grid_markdown, grids(comparison))]) + "\n"


def grid_text(grid: Grid) -> str:
    """One table in aligned columns, with its title and notes.

    >>> from histobench.roi.comparison.grids import Grid
    >>> print(grid_text(Grid("KNN", ("encoder", "value"), (("uni", "0.9"), ("conch", "0.8")), ("one note",))))
    KNN
    encoder  value
    uni      0.9
    conch    0.8
    - one note
    """
    cells = (grid.header, *grid.rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    return "\n".join([grid.title, *rows, *(f"- {note}" for note in grid.notes)])


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
    return csv_text(header, ([_plain(value) for value in row] for row in rows))


def _plain(value: object) -> object:
    if value is None or value != value:
        return ""
    return str(value).lower() if isinstance(value, bool) else spreadsheet_cell(value)
