"""A comparison as grids of text: the one form that CSV, Markdown, LaTeX and the terminal all show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from histobench.roi.comparison.answer import answer, evidence_of_table
from histobench.roi.comparison.comparison import Comparison, DatasetRanking, DatasetTable
from histobench.roi.encoders.own_name import UNCHECKED, combined_parts
from histobench.roi.task_catalogue import PATIENT
from histobench.statistics.intervals import Interval

#: Fewer datasets than this say nothing about others; the chances would be those assumed beforehand.
LEAST_DATASETS = 3


@dataclass(frozen=True)
class Grid:
    """A titled table of text; `notes` stand below it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def grids(comparison: Comparison, *, digits: int = 4) -> list[Grid]:
    """For each dataset the ranked table and the matrix of pairs; then the ranking over datasets."""
    found: list[Grid] = []
    for table in comparison.tables:
        found += ranked_grids(comparison, table, digits=digits)
        if len(table.pairs) > 1:
            found.append(pair_grid(comparison, table, digits=digits))
    ranking = comparison.ranking
    if ranking is not None:
        found.append(ranking_grid(ranking, comparison.alpha, digits=digits))
        found += [win_grid(ranking), chances_grid(ranking)]
    return found


def ranked_grids(comparison: Comparison, table: DatasetTable, *, digits: int = 4) -> list[Grid]:
    """The ranked table, and that of accuracy where it was tested instead."""
    found = [ranked_grid(comparison, table, digits=digits)]
    if table.instead is not None:
        found.append(ranked_grid(replace(comparison, metric="accuracy"), table.instead, digits=digits))
    return found


def ranked_grid(comparison: Comparison, table: DatasetTable, *, digits: int = 4) -> Grid:
    """Encoders in order, with intervals, possible ranks and the difference to the first one."""
    level = f"{100 * (1 - comparison.alpha):g}%"
    first = table.entries[0].name
    standings = table.standings
    rows = []
    caveats = list(dict.fromkeys(text for entry in table.entries for text in entry.caveats))
    for entry in table.entries:
        pair = None if entry.name == first else table.pair(entry.name, first)
        tail = ("", "") if entry.name == first else ("-", "-")
        if pair is not None:
            tail = shown(pair.difference, pair.simultaneous, digits=digits), shown_p(pair.p_simultaneous)
        rank = "-" if entry.rank is None else str(entry.rank)
        ranks = () if standings is None else (ranks_text(standings.ranks.get(entry.name)),)
        marks = ",".join(str(1 + caveats.index(text)) for text in entry.caveats)
        value = shown(entry.value, entry.interval, digits=digits) + (f" ({marks})" if marks else "")
        rows.append((rank, entry.name, value, *ranks, *tail))
    possible = () if standings is None else ("ranks",)
    task, setting = comparison.task, comparison.setting
    evidence = [evidence_of_table(comparison, table)]
    return Grid(
        title=_title(comparison, table),
        header=("#", "encoder", f"value [{level}]", *possible, f"to first [{level}]", "p (max-t)"),
        rows=tuple(rows),
        notes=(
            f"Answer: {answer(evidence, task=task, metric=comparison.metric, setting=setting).text}",
            *_standing_words(comparison, table, digits),
            *combination_words(comparison, table, digits=digits),
            *elsewhere_words(entry.name for entry in table.entries),
            _how(comparison, table),
            *table.notes,
            *(f"({number}) {text}" for number, text in enumerate(caveats, start=1)),
        ),
    )


def ranks_text(ranks: tuple[int, int] | None) -> str:
    if ranks is None:
        return "-"
    return str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]}-{ranks[1]}"


def _standing_words(comparison: Comparison, table: DatasetTable, digits: int) -> list[str]:
    standings = table.standings
    if standings is None:
        return []
    level = f"{100 * (1 - comparison.alpha):g}%"
    winner = standings.winner
    words = [
        "An encoder differs from the first where the interval of its difference excludes 0. These intervals "
        f"and the ranks hold for all {len(standings.ranks)} encoders at once with {level} confidence (max-t)"
    ]
    if winner.interval.low is not None and len(standings.ranks) > 2:
        words.append(
            f"selection-corrected estimate for {winner.name}: "
            f"{shown(winner.value, winner.interval, digits=digits)}: quote this one for the winner (the "
            "observed maximum is biased upward, and its interval in the table does not allow for that)"
        )
    return words


def combination_words(comparison: Comparison, table: DatasetTable, *, digits: int = 4) -> list[str]:
    """Whether each combination beats the better of its parts, by the table's corrected paired test."""
    values = {entry.name: entry.value for entry in table.entries}

    def difference(name: str, part: str) -> tuple[float, bool] | None:
        pair = table.pair(name, part)
        return None if pair is None else (pair.difference, pair.holds)

    words = []
    for both, sentence in beaten_parts(values, difference, lower=comparison.lower_is_better):
        pair = None if both is None else table.pair(*both)
        if pair is not None:
            apart = shown(pair.difference, pair.simultaneous, digits=digits)
            sentence += f": {apart}, p {shown_p(pair.p_simultaneous)}"
        words.append(sentence)
    return words


def beaten_parts(
    values: Mapping[str, float | None],
    difference: Callable[[str, str], tuple[float, bool] | None],
    *,
    lower: bool,
) -> list[tuple[tuple[str, str] | None, str]]:
    """The combinations that beat the better of their parts, a sentence each; where none does, it says so.

    `difference` gives that of two encoders and whether it holds.
    """
    known = {name: value for name, value in values.items() if value is not None}
    sign = -1.0 if lower else 1.0
    asked: list[str] = []
    better: list[tuple[tuple[str, str] | None, str]] = []
    for name in known:
        parts = [part for part in combined_parts(name) if part in known]
        if len(parts) < 2:
            continue
        best = max(parts, key=lambda part: sign * known[part])
        found = difference(name, best)
        asked.append(name)
        if found is not None and found[1] and sign * found[0] > 0:
            better.append(((name, best), f"{name} beats {best}, the better of its parts"))
    if asked and not better:
        who = asked[0] if len(asked) == 1 else f"none of the {len(asked)} combinations"
        verb = "is not shown to beat" if len(asked) == 1 else "is shown to beat"
        return [(None, f"{who} {verb} the better of its parts (paired, corrected)")]
    return better


def elsewhere_words(names: Iterable[str]) -> list[str]:
    if not any("@elsewhere" in name for name in names):
        return []
    return ["@elsewhere: features computed elsewhere; their images, weights and transform were not checked"]


def unchecked_words(caveats_of: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """A note that names the encoders outside the zoo; `caveats_of`: encoders, and caveats of their runs."""
    names = dict.fromkeys(name for name, caveats in caveats_of if UNCHECKED in caveats)
    return [f"{', '.join(names)}: {UNCHECKED}"] if names else []


def pair_grid(comparison: Comparison, table: DatasetTable, *, digits: int = 4) -> Grid:
    """Every encoder against every other: row - column, in parentheses where no difference is shown."""
    names = [entry.name for entry in table.entries]

    def cell(i: int, j: int) -> str:
        pair = None if i == j else table.pair(names[i], names[j])
        if pair is None:
            return ""
        difference = f"{pair.difference + 0.0:+.{digits}f}"
        return difference if pair.holds else f"({difference})"

    note = (
        "in parentheses: no difference is shown; the interval that holds together with those of all other "
        f"pairs ({1 - comparison.alpha:.0%}, max-t) includes 0"
    )
    return _matrix(f"{table.dataset or 'results'}: row minus column", names, cell, note)


def _matrix(title: str, names: Sequence[str], cell: Callable[[int, int], str], note: str) -> Grid:
    places = range(len(names))
    rows = tuple((names[i], *(cell(i, j) for j in places)) for i in places)
    return Grid(title, ("", *names), rows, (note,))


def ranking_grid(ranking: DatasetRanking, alpha: float, *, digits: int = 4) -> Grid:
    """Mean ranks over datasets with Friedman's test and the critical difference."""
    counts = ranking.win_tie_loss
    rows: list[tuple[str, ...]] = []
    for k, name in enumerate(ranking.names):
        results = f"{counts.wins[k].sum()}/{counts.ties[k].sum()}/{counts.losses[k].sum()}"
        rows.append((name, f"{ranking.mean_ranks[k]:.2f}", (f"{ranking.mean_values[k]:.{digits}f}"), results))
    # Encoders without a mean rank are shown, with where they were run.
    total = len(ranking.datasets) + len(ranking.left_out_datasets)
    rows += [
        (name, "-", f"on {number} of {total}", "-")
        for name, number in ranking.run_on
        if name in ranking.left_out
    ]
    test = ranking.friedman
    notes = [
        f"Friedman chi2 = {test.statistic:.2f}, p = {shown_p(test.p_value)}; mean ranks that are "
        f"{ranking.critical_difference:.2f} or more apart differ (Nemenyi, {alpha:g})"
    ]
    notes += [f"no difference between {', '.join(group)}" for group in ranking.groups]
    for reason, names in (
        ("not run on all of these datasets, so without a mean rank", ranking.left_out),
        ("left out, because too few encoders were run on them", ranking.left_out_datasets),
    ):
        notes += [f"{reason}: {', '.join(names)}"] if names else []
    return Grid(
        title=f"over {len(ranking.datasets)} datasets ({', '.join(ranking.datasets)})",
        header=("encoder", "mean rank", "mean value", "win/tie/loss"),
        rows=tuple(rows),
        notes=(*notes, *ranking.notes),
    )


def win_grid(ranking: DatasetRanking) -> Grid:
    counts = ranking.win_tie_loss
    return _matrix(
        "win/tie/loss of row against column",
        ranking.names,
        lambda i, j: "" if i == j else f"{counts.wins[i, j]}/{counts.ties[i, j]}/{counts.losses[i, j]}",
        "a win or a loss is a difference whose interval excludes 0 and holds together with all others "
        "of its dataset",
    )


def chances_grid(ranking: DatasetRanking) -> Grid:
    """How likely each encoder is better than each other on datasets like these (Bayesian signed-rank)."""

    def cell(i: int, j: int) -> str:
        chance = ranking.chances[i][j]
        if chance is None:
            return ""
        if chance.datasets < LEAST_DATASETS:
            return "-"
        return "/".join(f"{100 * share:.0f}" for share in (chance.better, chance.equivalent, chance.worse))

    return _matrix(
        "chances in % that row is better than, equivalent to, worse than column on datasets like these",
        [name for name, _ in ranking.run_on],
        cell,
        f"Bayesian signed-rank test; equivalent: apart by at most {ranking.rope:g} (`rope`); each pair "
        f"on the datasets that both were run on (-: fewer than {LEAST_DATASETS}); "
        "their values are taken as exact",
    )


def shown(value: float | None, interval: Interval, *, digits: int = 4) -> str:
    """`value [low, high]`, with a dash for what is missing.

    >>> shown(-0.0, Interval(-0.5, -0.0), digits=3)
    '0.000 [-0.500, 0.000]'
    """
    if value is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{_decimal(value, digits)} [-]"
    low, high = _decimal(interval.low, digits), _decimal(interval.high, digits)
    return f"{_decimal(value, digits)} [{low}, {high}]"


def _decimal(value: float, digits: int) -> str:
    # The negative of no difference is not "-0.000", which would look like an interval without 0.
    return f"{0.0 if abs(value) < 1e-12 else value:.{digits}f}"


def shown_p(p_value: float) -> str:
    """Three digits; never 0."""
    if p_value != p_value:
        return "-"
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _title(comparison: Comparison, table: DatasetTable) -> str:
    setting = f" {comparison.setting}" if comparison.setting else ""
    presets = ", ".join(preset for preset in comparison.presets if preset)
    # The seed is worth a word where it is not the usual one; of several, the encoders' names tell which.
    seed = f"seed {comparison.seeds[0]}" if len(comparison.seeds) == 1 and comparison.seeds[0] else ""
    details = ", ".join(filter(None, (f"preset {presets}" if presets else "", seed)))
    suffix = f" ({details})" if details else ""
    return f"{table.dataset or 'results'}: {comparison.task}{setting}, {comparison.metric}{suffix}"


def _how(comparison: Comparison, table: DatasetTable) -> str:
    groups = "" if table.n_groups is None else f" of {table.n_groups} groups"
    of_patients = comparison.task == PATIENT or comparison.setting == "patients"
    images = f"{table.n_images} test {'patients' if of_patients else f'images{groups}'}"
    direction = "lower is better; " if comparison.lower_is_better else ""
    pairs = "1 pair" if len(table.pairs) == 1 else f"{len(table.pairs)} pairs"
    tested = ""
    if table.standings is not None:
        unit = "image" if table.n_groups is None else "group"
        largest = "" if len(table.pairs) == 1 else f" for the largest of {pairs}"
        tested = f"; differences: leaving out one {unit} at a time, Student's t{largest}"
    methods = sorted({entry.interval.method for entry in table.entries if entry.interval.low is not None})
    named = f" ({', '.join(methods)})" if methods else ""
    return f"{direction}{images}; intervals: {table.resampled}, left out one at a time{named}{tested}"
