"""Comparisons over splits as text, CSV, Markdown and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from histobench.core.atomic import write_json, write_text
from histobench.core.statistics.intervals import Interval
from histobench.core.statistics.split_tests import MeanOverSplits
from histobench.roi.comparison.comparison_files import grid_markdown
from histobench.roi.comparison.grids import Grid, shown, shown_p
from histobench.roi.comparison.split_comparison import SplitTable

_TEST = "corrected resampled t test (Nadeau and Bengio)"


def split_grid(table: SplitTable, *, digits: int = 4) -> Grid:
    """Encoders best first: mean over splits, their spread, ranks, and the difference to the best."""
    level = f"{100 * (1 - table.alpha):g}%"
    best = table.entries[0].name
    against = {pair.second: pair for pair in table.pairs if pair.first == best}
    rows = []
    for entry in table.entries:
        pair = against.get(entry.name)
        tail = ("best", "") if pair is None else (
            _value(pair.difference, digits),
            shown_p(pair.p_adjusted) + (" *" if pair.holds else ""),
        )  # fmt: skip
        rows.append(
            (
                entry.name,
                _value(entry.mean, digits),
                f"{entry.least:.{digits}f} to {entry.greatest:.{digits}f}",
                f"{entry.mean_rank:.1f} ({entry.rank_low} to {entry.rank_high})",
                f"{100 * entry.first:.0f}%",
                *tail,
            )
        )
    setting = f" {table.setting}" if table.setting else ""
    p = (f"p: {_TEST}, Holm-corrected over {len(table.pairs)} pairs",) if table.pairs else ()
    how = (
        f"{table.n_splits} splits; intervals: corrected resampled t, test sets of {table.test_to_train:.2f} "
        "times the training images; ranks: mean, and where the middle 95 % lie"
    )
    return Grid(
        title=f"{table.dataset}: {table.task}{setting}, {table.metric}, over splits {table.scheme}",
        header=(
            "encoder",
            f"mean [{level}]",
            "splits from",
            "rank",
            "first",
            f"best leads by [{level}]",
            "p (Holm)",
        ),
        rows=tuple(rows),
        notes=(how, *p, *table.notes),
    )


def write_split_tables(tables: Sequence[SplitTable], folder: Path) -> list[Path]:
    """Write `splits_<task>[_<setting>]_<metric>.{csv,md,json}`."""
    first = tables[0]
    stem = "_".join(part for part in ("splits", first.task, first.setting, first.metric) if part)
    paths = [folder / f"{stem}{suffix}" for suffix in (".csv", ".md", ".json")]
    write_text(paths[0], _csv(tables))
    write_text(paths[1], "\n\n".join(grid_markdown(split_grid(table)) for table in tables) + "\n")
    write_json(paths[2], [as_plain(table) for table in tables])
    return paths


def as_plain(table: SplitTable) -> dict[str, Any]:
    """The table as plain JSON values; missing numbers are null."""
    plain = _plain(asdict(table))
    assert isinstance(plain, dict)
    return plain


def _csv(tables: Sequence[SplitTable]) -> str:
    header = ["dataset", "scheme", "encoder", "mean", "ci_lower", "ci_upper", "std", "min", "max"]
    header += ["mean_rank", "rank_low", "rank_high", "first"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for table in tables:
        for entry in table.entries:
            mean = entry.mean
            row = [table.dataset, table.scheme, entry.name, mean.mean, mean.low, mean.high, entry.spread]
            row += [
                entry.least,
                entry.greatest,
                entry.mean_rank,
                entry.rank_low,
                entry.rank_high,
                entry.first,
            ]
            writer.writerow(["" if value != value else value for value in row])
    return text.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if value != value else value


def _value(mean: MeanOverSplits, digits: int) -> str:
    known = mean.low == mean.low
    return shown(mean.mean, Interval(mean.low, mean.high) if known else Interval(None, None), digits=digits)
