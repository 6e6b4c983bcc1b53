"""Encoders over many splits of one dataset: means, ranks, tests, and their files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import write_json, write_text
from histobench.roi.comparison.answer import Evidence, Value, answer, evidence_of_table
from histobench.roi.comparison.comparison import Comparison, compare_runs, settings_for
from histobench.roi.comparison.comparison_files import cells_csv, grid_markdown
from histobench.roi.comparison.episode_intervals import reports_episodes
from histobench.roi.comparison.grids import Grid, shown, shown_p
from histobench.roi.comparison.metric_intervals import range_of
from histobench.roi.comparison.selection import by_dataset, select_runs
from histobench.roi.metrics.classification import evaluate_predictions
from histobench.roi.metrics.metric_catalogue import LOWER_IS_BETTER
from histobench.roi.options import LEAVE_ONE_GROUP_OUT
from histobench.roi.predictions import Predictions
from histobench.roi.result_options import CompareOptions, CompareSettings
from histobench.roi.results.reader import load_runs, split_runs
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import CLASS, PATIENT
from histobench.statistics.intervals import Interval
from histobench.statistics.many_models import ranks
from histobench.statistics.tests import MeanOverSplits, corrected_resampled_t, holm

Floats = NDArray[np.float64]
Key = tuple[int, int]  # repeat and fold
#: What the corrected t test needs to hold its level, as far as known; a table says what it lacks.
FEWEST_SPLITS = 10
LARGEST_TEST_TO_TRAIN = 0.5
FEWEST_GROUPS = 12


@dataclass(frozen=True)
class SplitEntry:
    """One encoder over the splits; ranks are those within each split, 1 for the best."""

    name: str
    mean: MeanOverSplits
    spread: float  # standard deviation over splits
    least: float
    greatest: float
    mean_rank: float
    rank_low: int  # where the middle 95 % of its ranks lie
    rank_high: int
    first: float  # share of splits in which it is the best, or one of equals


@dataclass(frozen=True)
class SplitPair:
    first: str
    second: str
    difference: MeanOverSplits
    p_value: float  # of the chosen test
    p_adjusted: float  # Holm over all pairs
    holds: bool
    wins: float  # share of splits in which the first is better


@dataclass(frozen=True)
class SplitTable:
    dataset: str
    task: str
    setting: str
    metric: str
    scheme: str
    n_splits: int
    test_to_train: float
    test: str
    alpha: float
    entries: tuple[SplitEntry, ...]
    pairs: tuple[SplitPair, ...]
    notes: tuple[str, ...] = ()
    n_images: int = 0  # of all splits together
    n_groups: int | None = None


def evidence_with_splits(comparison: Comparison, over_splits: Sequence[SplitTable]) -> list[Evidence]:
    """The evidence of each dataset: its splits where these have all of its encoders, else its test set."""
    alike = comparison.task, comparison.setting, comparison.metric
    same = [each for each in over_splits if (each.task, each.setting, each.metric) == alike]
    splits = [evidence_of_splits(each) for each in same]
    return [prefer_splits(evidence_of_table(comparison, table), splits) for table in comparison.tables]


def prefer_splits(found: Evidence, splits: Sequence[Evidence]) -> Evidence:
    """The splits of the same dataset if they have all of its encoders: they test all patients."""
    same = (each for each in splits if each.dataset == found.dataset)
    whole = (each for each in same if found.values.keys() <= each.values.keys())
    return next((replace(each, doubt=found.doubt) for each in whole), found)


def evidence_of_splits(table: SplitTable) -> Evidence:
    values: dict[str, Value] = {
        entry.name: (entry.mean.mean, None, None)
        if math.isnan(entry.mean.low)
        else (entry.mean.mean, entry.mean.low, entry.mean.high)
        for entry in table.entries
    }
    first = table.entries[0].name
    tested = any(pair.p_value == pair.p_value for pair in table.pairs)
    worse = {pair.second for pair in table.pairs if pair.first == first and pair.holds}
    return Evidence(
        table.dataset,
        table.metric,
        values,
        tuple(name for name in values if name not in worse) if tested else (),
        table.n_images,
        table.n_groups,
        1 - table.alpha,
        "" if tested else "every split gives the same difference",
        splits=f"{table.n_splits} splits ({table.scheme})",
        of_patients=table.task == PATIENT,
    )


def compare_results(
    results: str | Path | Sequence[StoredRun], options: CompareOptions
) -> tuple[list[SplitTable], Comparison | None]:
    """Compare the runs of a results folder, or those given: over splits, or as they are."""
    if isinstance(results, str | Path):
        results = (split_runs if options.splits else load_runs)(results)
    runs = select_runs(results, **options.conditions())
    if not options.splits:
        return [], compare_runs(runs, options)
    # Folds are compared by the corrected t test, leave-one-group-out like one test set.
    whole = [run for run in runs if run.info["split"]["scheme"] != LEAVE_ONE_GROUP_OUT]
    single = [run for run in runs if run.info["split"]["scheme"] == LEAVE_ONE_GROUP_OUT]
    tables = compare_splits(whole, metric=options.metric, alpha=options.alpha) if whole else []
    return tables, compare_runs(pooled_runs(single), options) if single else None


def compare_splits(
    runs: Sequence[StoredRun], *, metric: str = "balanced_accuracy", alpha: float = 0.05
) -> list[SplitTable]:
    """A table for every dataset and scheme among the runs of one task and setting (see `split_runs`)."""
    metric = settings_for(runs, CompareSettings(metric, alpha)).metric if runs else metric
    alike: dict[tuple[str, str], list[StoredRun]] = {}
    for dataset, members in by_dataset(runs).items():
        for run in members:
            alike.setdefault((dataset, str(run.info["split"]["scheme"])), []).append(run)
    return [_table(*key, members, metric, alpha) for key, members in alike.items()]


def _table(dataset: str, scheme: str, runs: Sequence[StoredRun], metric: str, alpha: float) -> SplitTable:
    named = _by_encoder(runs)
    keys = _shared(dataset, named)
    values = np.array(
        [[named[name][key].metrics.get(metric) for key in keys] for name in named], dtype=np.float64
    )  # [m, J]
    defined: NDArray[np.bool_] = np.asarray(np.isfinite(values).all(axis=0))
    notes = []
    planned = max(int(run.info["split"]["of"]) for run in runs)
    if len(keys) < planned:
        notes.append(f"{len(keys)} of {planned} splits of {scheme} were run for every encoder")
    if not defined.all():
        missing = int((~defined).sum())
        notes.append(f"the metric is undefined on {missing} splits (a class is missing there), left out")
    keys, values = [key for key, kept in zip(keys, defined, strict=True) if kept], values[:, defined]
    if values.shape[1] < 2:
        raise HistobenchError(f"{dataset}: {metric} is defined on fewer than two shared splits of {scheme}")
    sizes = [next(iter(named.values()))[key].info["split"] for key in keys]
    ratio = float(np.mean([size["num_test"] / size["num_train"] for size in sizes]))
    lower = metric in LOWER_IS_BETTER
    names = list(named)
    place = ranks(values.T, higher_is_better=not lower).T  # [m, J]
    best, means = place.min(axis=0), values.mean(axis=1)
    order = sorted(range(len(names)), key=lambda k: (means[k] if lower else -means[k], names[k]))
    ends = range_of(metric, max(len(run.classes) for run in runs))
    entries = tuple(
        _entry(names[k], values[k], _t_test(values[k], ratio, alpha, ends), place[k], best, alpha)
        for k in order
    )
    pairs = _pairs([(names[k], values[k]) for k in order], ratio, alpha, lower, ends[1] - ends[0])
    stored = [run.predictions if run.target == CLASS else run.target_predictions for run in runs]
    images = {name for predictions in stored for name in predictions.img_names}
    groups = {group for predictions in stored for group in predictions.groups or () if group}
    notes += _doubts(len(keys), ratio, len(groups), pairs)
    return SplitTable(
        dataset, runs[0].task, runs[0].setting, metric, scheme, len(keys), ratio, "corrected-t", alpha,
        entries, pairs, tuple(notes), len(images), len(groups) or None,
    )  # fmt: skip


def _by_encoder(runs: Sequence[StoredRun]) -> dict[str, dict[Key, StoredRun]]:
    presets = len({run.identity.preset for run in runs}) > 1
    seeds = len({run.identity.seed for run in runs}) > 1
    named: dict[str, dict[Key, StoredRun]] = {}
    for run in runs:
        what = [run.identity.preset] * presets + [f"seed {run.identity.seed}"] * seeds
        name = run.identity.encoder + (f" [{', '.join(what)}]" if what else "")
        split = run.info["split"]
        named.setdefault(name, {})[int(split["repeat"]), int(split["fold"])] = run
    return named


def _shared(dataset: str, named: Mapping[str, Mapping[Key, StoredRun]]) -> list[Key]:
    first, *others = named
    keys = sorted(set.intersection(*(set(splits) for splits in named.values())))
    for name in others:
        for key in keys:
            mine, theirs = (named[who][key].info["split"].get("images") for who in (first, name))
            if mine != theirs:
                raise HistobenchError(
                    f"cannot compare {first} with {name} over splits of {dataset}: repeat {key[0]}, fold "
                    f"{key[1]} has other test images; evaluate both with the same data, groups and seed"
                )
    return keys


def _doubts(n_splits: int, ratio: float, n_groups: int, pairs: Sequence[SplitPair]) -> Iterator[str]:
    if n_splits < FEWEST_SPLITS:
        needed = f"use at least {FEWEST_SPLITS}"
        yield f"caution: {n_splits} splits are too few to estimate their variance; {needed}"
    if ratio > LARGEST_TEST_TO_TRAIN:
        yield (
            f"caution: test sets are {ratio:.1f} times the size of training sets: the correction for "
            "overlapping training sets assumes larger training sets; use more folds"
        )
    if 0 < n_groups < FEWEST_GROUPS:
        yield (
            f"caution: all splits divide the same {n_groups} groups: p-values may be too small; "
            f"{FEWEST_GROUPS} groups or more are needed, or leave-one-group-out"
        )
    if any(math.isnan(pair.p_value) or math.isnan(pair.difference.low) for pair in pairs):
        yield "no interval where a difference is the same on every split: nothing shows its spread"


def _t_test(values: Floats, ratio: float, alpha: float, ends: tuple[float, float]) -> MeanOverSplits:
    found = corrected_resampled_t(values, test_to_train=ratio, level=1 - alpha)
    return (
        found
        if math.isnan(found.low)
        else replace(found, low=max(found.low, ends[0]), high=min(found.high, ends[1]))
    )


def _entry(
    name: str, values: Floats, mean: MeanOverSplits, place: Floats, best: Floats, alpha: float
) -> SplitEntry:
    low, high = np.quantile(place, [alpha / 2, 1 - alpha / 2])
    return SplitEntry(
        name=name,
        mean=mean,
        spread=float(values.std(ddof=1)),
        least=float(values.min()),
        greatest=float(values.max()),
        mean_rank=float(place.mean()),
        rank_low=math.floor(low),
        rank_high=math.ceil(high),
        first=float((place == best).mean()),
    )


def _pairs(
    ordered: list[tuple[str, Floats]], ratio: float, alpha: float, lower: bool, span: float
) -> tuple[SplitPair, ...]:
    pairs = list(combinations(ordered, 2))
    tests = [_t_test(a - b, ratio, alpha, (-span, span)) for (_, a), (_, b) in pairs]
    adjusted = holm([test.p_value for test in tests]).tolist()
    return tuple(
        SplitPair(first, second, test, test.p_value, p, p <= alpha, float((a < b if lower else a > b).mean()))
        for ((first, a), (second, b)), test, p in zip(pairs, tests, adjusted, strict=True)
    )


def split_grid(table: SplitTable, *, digits: int = 4) -> Grid:
    """Encoders in order: mean over splits, their spread, ranks, and the difference to the first."""
    level = f"{100 * (1 - table.alpha):g}%"
    first = table.entries[0].name
    against = {pair.second: pair for pair in table.pairs if pair.first == first}
    rows = []
    for entry in table.entries:
        pair = against.get(entry.name)
        tail = ("", "") if pair is None else (_value(pair.difference, digits), shown_p(pair.p_adjusted))
        splits = f"{entry.least:.{digits}f} to {entry.greatest:.{digits}f}"
        rank = f"{entry.mean_rank:.1f} ({entry.rank_low} to {entry.rank_high})"
        rows.append((entry.name, _value(entry.mean, digits), splits, rank, f"{entry.first:.0%}", *tail))
    setting = f" {table.setting}" if table.setting else ""
    found = answer([evidence_of_splits(table)], task=table.task, metric=table.metric, setting=table.setting)
    tested = (
        f"p: corrected resampled t test (Nadeau and Bengio), Holm-corrected over {len(table.pairs)} pairs; "
        f"below {table.alpha:g}: they differ"
    )
    how = (
        f"{table.n_splits} splits; intervals: corrected resampled t, test sets of {table.test_to_train:.2f} "
        "times the training images; ranks: mean, and the middle 95 %"
    )
    return Grid(
        title=f"{table.dataset}: {table.task}{setting}, {table.metric}, over splits {table.scheme}",
        header=(
            "encoder",
            f"mean [{level}]",
            "splits from",
            "rank",
            "rank 1",
            f"first leads by [{level}]",
            "p (Holm)",
        ),
        rows=tuple(rows),
        notes=(f"Answer: {found.text}", how, *[tested] * bool(table.pairs), *table.notes),
    )


def write_split_tables(tables: Sequence[SplitTable], folder: Path) -> list[Path]:
    first = tables[0]
    stem = "_".join(part for part in ("splits", first.task, first.setting, first.metric) if part)
    paths = [folder / f"{stem}{suffix}" for suffix in (".csv", ".md", ".json")]
    write_text(paths[0], _csv(tables))
    write_text(paths[1], "\n\n".join(grid_markdown(split_grid(table)) for table in tables) + "\n")
    write_json(paths[2], [as_plain(table) for table in tables])
    return paths


def as_plain(value: Any) -> Any:
    """A table, or a part of it, as plain JSON values; missing numbers are null."""
    if isinstance(value, SplitTable):
        value = asdict(value)
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return None if value != value else value


def _csv(tables: Sequence[SplitTable]) -> str:
    header = "dataset scheme encoder mean ci_lower ci_upper std min max mean_rank rank_low rank_high first"
    rows = [
        [table.dataset, table.scheme, entry.name, *astuple(entry.mean)[:3], *astuple(entry)[2:]]
        for table in tables
        for entry in table.entries
    ]
    return cells_csv(header.split(), rows)


def _value(mean: MeanOverSplits, digits: int) -> str:
    interval = Interval(None, None) if math.isnan(mean.low) else Interval(mean.low, mean.high)
    return shown(mean.mean, interval, digits=digits)


def pooled_runs(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """One run per dataset, encoder, preset and seed: the predictions of its groups put together."""
    parts: dict[tuple[str, str, str, int], list[StoredRun]] = {}
    for run in runs:
        identity = run.identity
        parts.setdefault((identity.dataset, identity.encoder, identity.preset, identity.seed), []).append(run)
    return [
        _pooled(sorted(members, key=lambda run: int(run.info["split"]["fold"]))) for members in parts.values()
    ]


def _pooled(runs: Sequence[StoredRun]) -> StoredRun:
    first, expected = runs[0], int(runs[0].info["split"]["of"])
    if any(map(reports_episodes, runs)):
        raise HistobenchError(
            f"{first.task} reports means over episodes, which single groups cannot be pooled into; "
            "use `splits` 5x2 for it"
        )
    if len(runs) < expected:
        raise HistobenchError(
            f"{first.identity.encoder}: {len(runs)} of {expected} groups were evaluated; finish the run first"
        )
    every = [run.predictions for run in runs]
    width = max(part.probabilities.shape[1] for part in every)
    predictions = Predictions(
        probabilities=np.concatenate(
            [np.pad(p, ((0, 0), (0, width - p.shape[1]))) for p in (part.probabilities for part in every)]
        ),
        labels=np.concatenate([part.labels for part in every]),
        predicted=np.concatenate([part.predicted for part in every]),
        classes=first.classes,
        img_names=tuple(name for part in every for name in part.img_names),
        groups=tuple(group for part in every for group in part.groups or ("",) * len(part)),
    )
    pooled = replace(
        first,
        path=first.path.parents[2] / "pooled" / first.path.name,
        identity=replace(first.identity, dataset=f"{first.identity.dataset} ({LEAVE_ONE_GROUP_OUT})"),
        metrics=evaluate_predictions(predictions).values,
        info={key: value for key, value in first.info.items() if key != "split"},
    )
    pooled.__dict__["predictions"] = predictions
    return pooled
