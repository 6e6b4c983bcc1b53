"""Does fine-tuning change the ranking? The frozen and the adapted networks of each encoder, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.comparison import dataset_table, settings_for
from histobench.roi.comparison.grids import Grid, ranks_text
from histobench.roi.comparison.selection import by_dataset, select_runs
from histobench.roi.metrics.metric_catalogue import LOWER_IS_BETTER
from histobench.roi.result_options import CompareOptions, CompareSettings
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import ADAPTED, FINE_TUNE, OF_TOKENS, UNADAPTED


@dataclass(frozen=True)
class Shift:
    """One encoder before and after fine-tuning: values, observed and possible ranks, and the difference."""

    encoder: str
    frozen: float
    adapted: float
    rank_frozen: int
    rank_adapted: int
    ranks_frozen: tuple[int, int] | None
    ranks_adapted: tuple[int, int] | None
    difference: float  # adapted - frozen
    low: float
    high: float
    holds: bool  # the interval, which holds for all pairs of networks at once, excludes 0


@dataclass(frozen=True)
class RankingShift:
    dataset: str
    metric: str
    alpha: float
    shifts: tuple[Shift, ...]
    kendall: float | None  # between the observed orders; None with fewer than two encoders
    reversals: tuple[tuple[str, str], ...]  # the first is shown to be better adapted, the second frozen
    note: str = ""  # why nothing was tested


def ranking_shifts(runs: Sequence[StoredRun], options: CompareOptions) -> list[RankingShift]:
    """Compare the frozen and the adapted network of every encoder, dataset by dataset."""
    if not any(run.task == FINE_TUNE for run in runs):
        raise HistobenchError(f"no results of the task {FINE_TUNE} here; add it to `tasks` of a run")
    which: dict[str, Any] = {"dataset": options.dataset, "encoders": options.encoders, "seed": options.seed}
    known = {run.setting for run in runs if run.identity.dataset == (options.dataset or run.identity.dataset)}
    shifts: list[RankingShift] = []
    for ending in ("", OF_TOKENS):
        if ADAPTED + ending in known:
            frozen, adapted = (
                by_dataset(select_runs(runs, task=FINE_TUNE, setting=setting + ending, **which))
                for setting in (UNADAPTED, ADAPTED)
            )
            shifts += [_shift(name, frozen.get(name, []), adapted[name], options) for name in adapted]
    return shifts


def _shift(
    dataset: str, frozen: Sequence[StoredRun], adapted: Sequence[StoredRun], settings: CompareSettings
) -> RankingShift:
    settings = settings_for([*frozen, *adapted], settings)
    before, after = (dataset_table(dataset, runs, settings) for runs in (frozen, adapted))
    both = dataset_table(dataset, [*frozen, *adapted], settings)
    possible = [table.standings.ranks if table.standings else {} for table in (before, after)]
    old = {entry.name: entry for entry in before.entries}
    shifts = []
    for new in after.entries:
        name, then = new.name, old.get(new.name)
        pair = both.pair(*(f"{name} [{runs[0].setting}]" for runs in (adapted, frozen)))
        if then is None or pair is None or new.rank is None or then.rank is None:
            continue
        assert new.value is not None  # it has a rank
        assert then.value is not None
        ends = (pair.simultaneous.low, pair.simultaneous.high)
        low, high = (math.nan if end is None else end for end in ends)
        ranks = (then.rank, new.rank, possible[0].get(name), possible[1].get(name))
        shifts.append(Shift(name, then.value, new.value, *ranks, pair.difference, low, high, pair.holds))
    reversals = []
    for first, second in combinations([shift.encoder for shift in shifts], 2):
        was, now = before.pair(first, second), after.pair(first, second)
        if was and now and was.holds and now.holds and (was.difference > 0) != (now.difference > 0):
            better = (now.difference > 0) != (settings.metric in LOWER_IS_BETTER)
            reversals.append((first, second) if better else (second, first))
    kendall = None
    if len(shifts) > 1:
        from scipy.stats import kendalltau  # imported late: it is slow to load

        tau = kendalltau(*zip(*((each.rank_frozen, each.rank_adapted) for each in shifts), strict=True))
        kendall = float(tau.statistic) if math.isfinite(tau.statistic) else None
    note = "" if both.standings else "".join(entry.interval.reason or "" for entry in both.entries[:1])
    found = (tuple(shifts), kendall, tuple(reversals), note)
    return RankingShift(dataset, settings.metric, settings.alpha, *found)


def shift_grid(shift: RankingShift) -> Grid:
    rows = []
    for each in shift.shifts:
        bounds = "" if math.isnan(each.low) else f" [{each.low:+.3f}, {each.high:+.3f}]"
        values = f"{each.frozen:.3f}", f"{each.adapted:.3f}"
        frozen = f"{each.rank_frozen} ({ranks_text(each.ranks_frozen)})"
        adapted = f"{each.rank_adapted} ({ranks_text(each.ranks_adapted)})"
        rows.append((each.encoder, *values, f"{each.difference:+.3f}{bounds}", frozen, adapted))
    header = ("encoder", "frozen", "LoRA", "difference", "rank frozen (possible)", "rank LoRA (possible)")
    interval = f"{100 * (1 - shift.alpha):g}% interval"
    rule = f"A difference is shown where its {interval} excludes 0; intervals hold for all pairs at once."
    untested = f"Differences were not tested: {shift.note.removeprefix('no interval: ')}."
    notes = [untested if shift.note else rule]
    if shift.kendall is not None:
        moved = [each.encoder for each in shift.shifts if each.rank_frozen != each.rank_adapted]
        observed = f"{', '.join(moved)} moved" if moved else "the same"
        notes.append(f"Observed order: {observed} (Kendall's tau {shift.kendall:.2f}).")
    if shift.kendall is not None and not shift.note:
        shown = "; ".join(f"{first} overtakes {second}" for first, second in shift.reversals)
        none = "No change of the ranking is shown: no pair differs significantly in opposite directions."
        notes.append(f"The ranking changes: {shown}." if shown else none)
    title = f"{shift.dataset}: {shift.metric} of the frozen and the fine-tuned networks"
    return Grid(title, header, tuple(rows), tuple(notes))
