"""The summary of a results folder: encoders x tasks in one table, and one ranked table per task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.files import write_text
from histobench.core.version import __version__
from histobench.roi.comparison.answer import answer, listed_names
from histobench.roi.comparison.comparison import (
    Comparison,
    DatasetTable,
    TableMaker,
    compare_runs,
    dataset_table,
)
from histobench.roi.comparison.comparison_files import grid_markdown, markdown, write_comparison
from histobench.roi.comparison.grids import combination_words, elsewhere_words, unchecked_words
from histobench.roi.comparison.lab_summaries import lab_grids, lab_remarks
from histobench.roi.comparison.robustness_tables import (
    COUNTED,
    RobustnessTable,
    index_words,
    robustness_grid,
    shown_measures,
)
from histobench.roi.comparison.selection import by_task
from histobench.roi.comparison.splits_compared import (
    SplitTable,
    compare_splits,
    evidence_of_splits,
    evidence_with_splits,
    pooled_runs,
    split_grid,
    write_split_tables,
)
from histobench.roi.data.sites import PAIR_COLUMN
from histobench.roi.encoders.own_name import label_of
from histobench.roi.encoders.registry import known_spec
from histobench.roi.options import LEAVE_ONE_GROUP_OUT
from histobench.roi.plan.notes import read_speeds
from histobench.roi.plan.plan_outcome import (
    METRIC,
    Overview,
    OverviewCell,
    OverviewColumn,
    TablesShown,
    metric_words,
)
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.reader import load_runs, split_runs
from histobench.roi.task_catalogue import ROBUSTNESS, main_task, task_place
from histobench.roi.units.roi_run import EVALUATED
from histobench.work.run_folder import RunFolder

FILE = "summary.md"
#: What is named where robustness alone was measured.
ROBUSTNESS_METRIC = "robustness_index"


def compare_tasks(
    results_dir: Path, *, table_of: TableMaker = dataset_table
) -> tuple[list[Comparison], list[str]]:
    """The comparison of every task and preset in a results folder, and why some could not be made."""
    comparisons: list[Comparison] = []
    problems: list[str] = []
    for (task, preset, _, seed), runs in by_task(load_runs(results_dir)).items():
        try:
            comparison = compare_runs(runs, CompareSettings(METRIC), table_of=table_of)
        except (HistobenchError, OSError) as error:
            problems.append(f"{task} ({preset}): {error}")
            continue
        comparisons.append(comparison)
        write_comparison(comparison, _folder(results_dir, preset, seed))
    return comparisons, problems


def _folder(results_dir: Path, preset: str, seed: int) -> Path:
    folder = results_dir / "comparison" / preset
    return folder / f"seed-{seed}" if seed else folder


def compare_tasks_over_splits(results_dir: Path) -> tuple[list[SplitTable], list[Comparison], list[str]]:
    """Every task and preset over its splits, those of leave-one-group-out pooled, and what failed."""
    tables: list[SplitTable] = []
    pooled: list[Comparison] = []
    problems: list[str] = []
    try:
        over_splits = split_runs(results_dir)
    except HistobenchError as error:  # no split could be made: the outcome says why
        return tables, pooled, [str(error)]
    for (task, preset, _, seed), runs in by_task(over_splits).items():
        folder = _folder(results_dir, preset, seed)
        groups = [run for run in runs if run.info["split"]["scheme"] == LEAVE_ONE_GROUP_OUT]
        repeated = [run for run in runs if run.info["split"]["scheme"] != LEAVE_ONE_GROUP_OUT]
        try:
            if repeated:
                found = compare_splits(repeated, metric=METRIC)
                write_split_tables(found, folder)
                tables += found
            if groups:
                pooled.append(compare_runs(pooled_runs(groups), CompareSettings(METRIC)))
                write_comparison(pooled[-1], folder / LEAVE_ONE_GROUP_OUT)
        except (HistobenchError, OSError) as error:
            problems.append(f"{task} ({preset}) over splits: {error}")
    return tables, pooled, problems


def write_summary(
    results_dir: Path,
    comparisons: Sequence[Comparison],
    over_splits: Sequence[SplitTable] = (),
    *,
    heading: str,
    robustness: Sequence[RobustnessTable] = (),
) -> Path:
    """Write `summary.md`: every comparison, one after the other; then those over splits, and robustness."""
    metrics = [*(each.metric for each in comparisons), *(each.metric for each in over_splits)]
    shown = metric_words(dict.fromkeys(metrics or [ROBUSTNESS_METRIC if robustness else METRIC]))
    parts = [
        f"# {heading}",
        f"histobench {__version__}. {shown} with 95 % confidence intervals.",
        *(markdown(each).replace("\n## ", "\n### ").replace("# ", "## ", 1) for each in comparisons),
        *(["## Over splits"] if over_splits else []),
        *(grid_markdown(split_grid(table)).replace("## ", "### ", 1) for table in over_splits),
        *(grid_markdown(grid) for grid in lab_grids(results_dir)),
        *(grid_markdown(robustness_grid(table)) for table in robustness),
    ]
    path = results_dir / FILE
    write_text(path, "\n\n".join(parts))
    return path


#: The mark of a value whose encoder may be the best, as far as the tests can say; without a test, none.
MAY_BE_BEST = "*"
#: Robustness: a difference with a larger corrected p-value is not shown.
_ALPHA = 0.05


@dataclass(frozen=True)
class Scope:
    """What a command asked for; None: everything that the folder holds."""

    datasets: frozenset[str] | None = None
    encoders: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    presets: frozenset[str] | None = None
    seed: int | None = None

    @classmethod
    def of(cls, folder: RunFolder) -> Scope:
        """What a run was about; its tasks are those of its units: they depend on the dataset."""
        plan = folder.plan
        tasks = frozenset(unit.spec["task"] for unit in folder.units() if unit.kind in EVALUATED)
        datasets = frozenset(str(entry["name"]) for entry in plan["datasets"])
        encoders = frozenset(map(label_of, plan["encoders"]))
        return cls(datasets, encoders, tasks, frozenset(plan["presets"]), int(plan["seed"]))

    def has_comparison(self, comparison: Comparison) -> bool:
        return (
            _in(comparison.task, self.tasks)
            and any(_in(preset, self.presets) for preset in comparison.presets)
            and (self.seed is None or self.seed in comparison.seeds)
        )

    def has_encoder(self, name: str) -> bool:
        """Whether the encoder was asked for; several runs of one are `name [what differs]`."""
        return _in(name, self.encoders) or _in(name.partition(" [")[0], self.encoders)


def _in(name: str, names: frozenset[str] | None) -> bool:
    return names is None or name in names


def datasets_overview(comparison: Comparison) -> Overview:
    tables, everything = comparison.tables, Scope()
    columns = [OverviewColumn(t.dataset or "results", "", _cells(t, everything)) for t in tables]
    ranked = () if comparison.ranking is None else comparison.ranking.names
    names = dict.fromkeys((*ranked, *(name for column in columns for name in column.cells)))
    title = " ".join(filter(None, (comparison.task, comparison.setting)))
    return Overview(f"{title}, {comparison.metric}", tuple(columns), tuple(names), 0, None)


@dataclass
class _Page:
    columns: list[OverviewColumn] = field(default_factory=list)
    tables: list[DatasetTable] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)


def overviews(
    comparisons: Sequence[Comparison],
    over_splits: Sequence[SplitTable] = (),
    robustness: Sequence[RobustnessTable] = (),
    *,
    wanted: Scope,
    results: Path,
) -> TablesShown:
    """The tables of what was asked for, and its answer."""
    pages: defaultdict[str, _Page] = defaultdict(_Page)
    chosen = [each for each in comparisons if wanted.has_comparison(each)]
    presets = {preset for each in chosen for preset in each.presets}
    for each in sorted(chosen, key=lambda found: task_place(found.task)):
        for table in each.tables:
            cells = _cells(table, wanted) if _in(table.dataset, wanted.datasets) else {}
            if not cells:
                continue
            page = pages[table.dataset]
            words = ", ".join(filter(None, (each.setting, *(each.presets if len(presets) > 1 else ()))))
            page.columns.append(OverviewColumn(each.task, words, cells))
            page.tables.append(table)
            page.metrics.append(each.metric)
            if table.instead is not None:
                words = ", ".join(filter(None, ("accuracy", words)))
                page.columns.append(OverviewColumn(each.task, words, _cells(table.instead, wanted)))
                page.tables.append(table.instead)
                page.metrics.append("accuracy")
            page.remarks += [f"{each.task}: {text}" for text in combination_words(each, table, digits=3)]
            page.remarks += unchecked_words((entry.name, entry.caveats) for entry in table.entries)
            page.remarks += elsewhere_words(entry.name for entry in table.entries)
    for split in over_splits:
        if _in(split.task, wanted.tasks) and _in(split.dataset, wanted.datasets):
            column = OverviewColumn(split.task, f"splits {split.scheme}", _split_cells(split, wanted))
            pages[split.dataset].columns.append(column)
            pages[split.dataset].metrics.append(split.metric)
    for site in robustness:
        if _in(ROBUSTNESS, wanted.tasks) and _in(site.dataset, wanted.datasets):
            page = pages[site.dataset]
            if not site.reason and (cells := _robustness_cells(site, wanted)):
                page.columns.append(OverviewColumn(ROBUSTNESS, site.column, cells))
            page.remarks += index_words(site)
    for name, said in lab_remarks(results).items():
        if name in pages:
            pages[name].remarks += said
    made = (
        replace(
            _overview(name, page.columns, page.tables, wanted, results),
            remarks=tuple(dict.fromkeys(page.remarks)),
            metrics=tuple(dict.fromkeys(page.metrics or (ROBUSTNESS_METRIC,))),
        )
        for name, page in pages.items()
    )
    return TablesShown(tuple(made), answer_of_run(chosen, over_splits, wanted))


def answer_of_run(comparisons: Sequence[Comparison], over_splits: Sequence[SplitTable], wanted: Scope) -> str:
    tasks = [each.task for each in comparisons]
    main = comparisons[tasks.index(main_task(tasks))] if tasks else None
    tables = () if main is None else main.tables
    shown = [table for table in tables if _in(table.dataset, wanted.datasets)]
    if main is None or all(sum(wanted.has_encoder(e.name) for e in table.entries) < 2 for table in shown):
        return ""
    main = replace(main, tables=tuple(shown))
    evidence = evidence_with_splits(main, over_splits)
    names = dict.fromkeys(entry.name for table in shown for entry in table.entries)
    earlier = [name for name in names if not wanted.has_encoder(name)]
    was = "was" if len(earlier) == 1 else "were"
    before = f" {listed_names(earlier)} {was} run earlier in this folder." if earlier else ""
    others = f" The answer is by {main.task} alone, not by the other tasks." if len(set(tasks)) > 1 else ""
    return answer(evidence, task=main.task, metric=main.metric, setting=main.setting).text + before + others


def _overview(
    dataset: str,
    columns: Sequence[OverviewColumn],
    tables: Sequence[DatasetTable],
    wanted: Scope,
    results: Path,
) -> Overview:
    encoders = tuple(dict.fromkeys(name for column in columns for name in column.cells))
    groups = [table.n_groups for table in tables]
    entries = [entry for table in tables for entry in table.entries if wanted.has_encoder(entry.name)]
    caveats = dict.fromkeys(text for entry in entries for text in entry.caveats)
    missing = dict.fromkeys(entry.interval.reason or "" for entry in entries if entry.interval.low is None)
    everywhere = bool(entries) and all(entry.interval.low is None for entry in entries)
    return Overview(
        dataset,
        tuple(columns),
        encoders,
        max((table.n_images for table in tables), default=0),
        None if not groups or None in groups else max(each for each in groups if each is not None),
        _costs(encoders, results),
        next(iter(missing), "") if everywhere else "",
        (*caveats, *filter(None, missing if not everywhere else ())),
    )


def _cells(table: DatasetTable, wanted: Scope) -> dict[str, OverviewCell]:
    inside = () if table.standings is None else table.standings.best
    return {
        entry.name: OverviewCell(
            entry.value, entry.interval.low, entry.interval.high, MAY_BE_BEST if entry.name in inside else ""
        )
        for entry in table.entries
        if wanted.has_encoder(entry.name)
    }


def _split_cells(table: SplitTable, wanted: Scope) -> dict[str, OverviewCell]:
    found = evidence_of_splits(table)
    return {
        name: OverviewCell(*value, MAY_BE_BEST if name in found.may_be_best else "")
        for name, value in found.values.items()
        if wanted.has_encoder(name)
    }


def robustness_overview(table: RobustnessTable) -> Overview:
    what = "registered pairs" if table.column == PAIR_COLUMN else f"robustness by {table.column}"
    first = table.packs[0].content
    columns = [
        OverviewColumn(heading, "", _robustness_cells(table, Scope(), name, more_is_better=more))
        for name, heading, more in shown_measures(table)
        if name != COUNTED
    ]
    counted = f" ({first['num_samples']:,} images, {first['num_groups']:,} groups)"
    return Overview(
        f"{table.dataset}: {what}{'' if table.reason else counted}",
        tuple(column for column in columns if any(cell.value is not None for cell in column.cells.values())),
        tuple(pack.encoder for pack in table.packs),
        0,
        None,
        remarks=tuple(index_words(table)),
    )


def _robustness_cells(
    table: RobustnessTable, wanted: Scope, measure: str = "", *, more_is_better: bool = True
) -> dict[str, OverviewCell]:
    """A measure of each encoder: the robustness index (the score of registered pairs), or the one named."""
    measure = measure or ("pair_score" if table.column == PAIR_COLUMN else "robustness_index")
    shown = [pack for pack in table.packs if wanted.has_encoder(pack.encoder)]
    known = {pack.encoder: value for pack in shown if (value := pack.value(measure)) is not None}
    best = None if not known else (max if more_is_better else min)(known, key=lambda name: known[name])
    against = [
        pair
        for pair in table.pairs
        if pair.measure == measure and pair.p_holm is not None and best in (pair.first, pair.second)
    ]
    apart = [pair for pair in against if (pair.p_holm or 0.0) <= _ALPHA]
    worse = {name for pair in apart for name in (pair.first, pair.second)} - {best}
    cells = {}
    for pack in shown:
        found = pack.content["measures"].get(measure) or {}
        mark = MAY_BE_BEST if against and pack.encoder in known and pack.encoder not in worse else ""
        cells[pack.encoder] = OverviewCell(found.get("value"), found.get("low"), found.get("high"), mark)
    return cells


def _costs(encoders: Iterable[str], results: Path) -> dict[str, str]:
    """Parameters and measured speed of each encoder, as far as known."""
    speeds = read_speeds(results)
    costs = {}
    for name in encoders:
        plain = name.partition(" [")[0]
        spec = known_spec(plain)
        parts = [f"{spec.cost.params / 1e6:.3g}M"] if spec is not None and spec.cost is not None else []
        if plain in speeds:
            parts.append(f"{speeds[plain].images_per_second:.3g} img/s")
        if parts:
            costs[name] = ", ".join(parts)
    return costs
