"""Write a comparison as CSV, Markdown, LaTeX and JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from histobench.core.files import write_json, write_text
from histobench.core.text import csv_text, markdown_text, spreadsheet_cell
from histobench.roi.comparison.answer import answer, evidence_of
from histobench.roi.comparison.comparison import Comparison, DatasetRanking, DatasetTable, Pair, RankedEntry
from histobench.roi.comparison.grids import Grid, grids
from histobench.statistics.intervals import Interval


def as_json(comparison: Comparison) -> dict[str, Any]:
    about = {"metric": comparison.metric, "task": comparison.task, "setting": comparison.setting}
    return {
        "metric": comparison.metric,
        "lower_is_better": comparison.lower_is_better,
        "task": comparison.task,
        "setting": comparison.setting,
        "presets": list(comparison.presets),
        "alpha": comparison.alpha,
        "datasets": [_table(table) for table in comparison.tables],
        "ranking": None if comparison.ranking is None else _ranking(comparison.ranking),
        "answer": asdict(answer(evidence_of(comparison), **about)),
    }


def _table(table: DatasetTable) -> dict[str, Any]:
    winner: dict[str, Any] | None = None
    if table.standings is not None:
        found = table.standings.winner
        values = {"measured_value": found.measured, "corrected_value": found.value}
        winner = {"encoder": found.name, **values, **_bounds(found.interval)}
    return {
        "dataset": table.dataset,
        "num_images": table.n_images,
        "num_groups": table.n_groups,
        "resampled": table.resampled,
        # What `holds` goes by.
        "correction": f"max-t over {len(table.pairs)} pairs",
        "encoders": [_entry(entry) | _standing(table, entry.name) for entry in table.entries],
        "pairs": [_pair(pair) for pair in table.pairs],
        "winner": winner,
        "notes": list(table.notes),
        # The same encoders by accuracy, where the metric could not be tested.
        "accuracy_instead": None if table.instead is None else _table(table.instead),
    }


def _standing(table: DatasetTable, name: str) -> dict[str, Any]:
    standings = table.standings
    if standings is None or name not in standings.ranks:
        return {"rank_lower": None, "rank_upper": None, "may_be_best": None}
    low, high = standings.ranks[name]
    return {"rank_lower": low, "rank_upper": high, "may_be_best": name in standings.best}


def _entry(entry: RankedEntry) -> dict[str, Any]:
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
        "win_tie_loss": {name: count.tolist() for name, count in vars(ranking.win_tie_loss).items()},
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


_LATEX = str.maketrans(
    {
        **{character: rf"\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
    }
)


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `comparison_<task>[_<setting>]_<metric>.{csv,md,tex,json}` and the pairs as a second CSV."""
    parts = ["comparison", comparison.task, comparison.setting, comparison.metric]
    stem = "_".join(part for part in parts if part)
    texts = {
        f"{stem}.csv": encoders_csv(comparison),
        f"{stem}_pairs.csv": pairs_csv(comparison),
        f"{stem}.md": markdown(comparison),
        f"{stem}.tex": "\n".join(map(_latex_table, grids(comparison))),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    write_json(folder / f"{stem}.json", as_json(comparison))
    return [folder / name for name in (*texts, f"{stem}.json")]


_OF_PAIR = "difference_to_best difference_ci_lower difference_ci_upper p_value p_holm differs_from_best"
_TOGETHER = "simultaneous_ci_lower simultaneous_ci_upper p_simultaneous"


def encoders_csv(comparison: Comparison) -> str:
    """One row per dataset and encoder, in order, in full precision; what was not tested is empty."""
    known = "dataset task setting metric rank encoder value ci_lower ci_upper"
    header = f"{known} {_OF_PAIR} {_TOGETHER}".split()
    of = [comparison.task, comparison.setting, comparison.metric]
    rows: list[list[object]] = []
    for table in comparison.tables:
        best = table.entries[0].name
        for entry in table.entries:
            pair = None if entry.name == best else table.pair(entry.name, best)
            bounds = entry.interval.low, entry.interval.high
            against = [None] * 9 if pair is None else _pair_cells(pair)
            standing = _standing(table, entry.name).values()
            own = entry.rank, entry.name, entry.value
            rows.append([table.dataset, *of, *own, *bounds, *against, *standing])
    return cells_csv([*header, "rank_lower", "rank_upper", "may_be_best"], rows)


def pairs_csv(comparison: Comparison) -> str:
    header = f"dataset first second difference ci_lower ci_upper p_value p_holm holds {_TOGETHER}".split()
    rows: list[list[object]] = [
        [table.dataset, pair.first, pair.second, *_pair_cells(pair)]
        for table in comparison.tables
        for pair in table.pairs
    ]
    return cells_csv(header, rows)


def _pair_cells(pair: Pair) -> list[object]:
    holds = pair.holds if pair.p_value == pair.p_value else None
    alone = [pair.difference, pair.interval.low, pair.interval.high, pair.p_value, pair.p_adjusted, holds]
    return [*alone, pair.simultaneous.low, pair.simultaneous.high, pair.p_simultaneous]


def markdown(comparison: Comparison) -> str:
    title = f"# {comparison.task} {comparison.setting}".rstrip() + f": {comparison.metric}"
    return "\n\n".join([title, *map(grid_markdown, grids(comparison))]) + "\n"


def grid_text(grid: Grid) -> str:
    cells = (grid.header, *grid.rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    return "\n".join([grid.title, *rows, *(f"- {note}" for note in grid.notes)])


def grid_markdown(grid: Grid) -> str:
    def row(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(map(markdown_text, cells)) + " |"

    lines = [row(grid.header), "|" + "---|" * len(grid.header), *map(row, grid.rows)]
    blocks = [f"## {markdown_text(grid.title)}", "\n".join(lines)]
    blocks.append("\n".join(f"- {markdown_text(note)}" for note in grid.notes))
    return "\n\n".join(filter(None, blocks))


def _latex_table(grid: Grid) -> str:
    """For a paper; needs the package booktabs."""

    def row(cells: tuple[str, ...]) -> str:
        return " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\"

    lines = [r"\begin{table}", r"\centering", rf"\caption{{{grid.title.translate(_LATEX)}.}}"]
    lines += [rf"\begin{{tabular}}{{{'l' * len(grid.header)}}}", r"\toprule", row(grid.header), r"\midrule"]
    lines += [*map(row, grid.rows), r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\footnotesize {note.translate(_LATEX)}." for note in grid.notes]
    return "\n".join([*lines, r"\end{table}", ""])


def cells_csv(header: list[str], rows: list[list[Any]]) -> str:
    """What is missing is empty."""

    def cell(value: object) -> object:
        if value is None or value != value:
            return ""
        return str(value).lower() if isinstance(value, bool) else spreadsheet_cell(value)

    return csv_text(header, (map(cell, row) for row in rows))
