"""`histobench mint rescore`: apply a scoring rule to finished runs, without calling a model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.cli.flags import out_option
from histobench.cli.terminal import print_table
from histobench.core.errors import HistobenchError
from histobench.core.records import option, record

if TYPE_CHECKING:
    from histobench.mint.results.episode_outcome import EpisodeOutcome
    from histobench.mint.results.rescoring import Rescored
    from histobench.mint.tasks.base import Rule, Task


@record
class RescoreFlags:
    results: str = option("folder of runs, or of recordings", default="", positional=True, required=True)
    rule: tuple[str, ...] = option(
        "scoring rules, separated by commas", default=("strict",), metavar="strict|published|recorded,..."
    )
    tasks: tuple[str, ...] = option("datasets or families", default=(), default_text="all")
    data: str | None = option("folder of the datasets", default=None, default_text="data/processed")
    act: bool = option("also replay household episodes (slow; needs the ALFWorld engine)", default=False)
    out: str | None = out_option("write the outcomes of one rule to this .csv (for `mint table`)")


def rescore_command(args: RescoreFlags) -> None:
    """Apply a scoring rule to finished runs, without calling any model again.

    `strict` is the default rule of histobench; `published` is the rule of the
    published benchmark, with its defects. RESULTS is a folder of runs (results.jsonl
    in the published folders) or of recordings (*.k5.jsonl.gz). An episode counts as
    failed if the new rule rejects an answer that was given with budget left.

    Examples:
      histobench mint rescore outputs/ --rule published
      histobench mint rescore recordings/ --rule published,strict   both at once
    """
    from histobench.mint.envs.general_env import open_environment
    from histobench.mint.results.episode_outcome import write_outcome_table
    from histobench.mint.results.recording import read_played
    from histobench.mint.results.rescoring import rescore
    from histobench.mint.runs.task_source import choose_datasets
    from histobench.mint.tasks.base import as_rule

    rules = [as_rule(name) for name in args.rule]
    if args.out and len(rules) > 1:
        raise HistobenchError("--out takes the outcomes of one rule; give one --rule")
    wanted = {dataset.name for dataset in choose_datasets(list(args.tasks))} if args.tasks else None
    tasks = _Tasks(Path(args.results), args.data)
    by_dataset: dict[str, Counter[str]] = defaultdict(Counter)
    by_run: dict[str, Counter[str]] = defaultdict(Counter)
    outcomes: list[EpisodeOutcome] = []
    for episode in read_played(args.results):
        outcome = episode.outcome
        if wanted is not None and outcome.task not in wanted:
            continue
        both = (by_dataset[outcome.task], by_run[_run_name(outcome)])
        task = tasks.find(outcome.task, outcome.task_id)
        if task is None:
            for counts in both:
                counts["unknown"] += 1
            continue
        results = {
            rule: rescore(
                episode.messages,
                task,
                rule,
                stored_success=outcome.success,
                budget=episode.budget,
                open_env=open_environment if args.act else None,
                won=episode.won,
            )
            for rule in rules
        }
        for counts in both:
            _add(counts, outcome.success, results)
        outcomes.append(replace(outcome, success=results[rules[0]].success))
    _print("dataset", by_dataset, rules)
    _print("run", by_run, rules)
    if args.out:
        write_outcome_table(args.out, outcomes)


def _add(counts: Counter[str], stored: bool, results: Mapping[Rule, Rescored]) -> None:
    """Count an episode: its stored success, and for each rule what it changes."""
    counts["episodes"] += 1
    counts["stored"] += stored
    for rule, result in results.items():
        counts[rule] += result.success
        counts[f"gained {rule}"] += result.success and not stored
        counts[f"lost {rule}"] += stored and not result.success
        counts[f"open {rule}"] += result.open


class _Tasks:
    """Tasks by dataset and id, read when first asked for."""

    def __init__(self, results: Path, data: str | None) -> None:
        from histobench.mint.configs.datasets import DATASET_DIR

        beside = results / ".." / "processed"
        self._data = Path(data) if data else (beside if beside.is_dir() else Path(DATASET_DIR))
        self._known: dict[str, dict[str, Any]] = {}

    def find(self, dataset: str, task_id: str) -> Any:
        if dataset not in self._known:
            self._known[dataset] = {str(task.task_id): task for task in self._load(dataset)}
        return self._known[dataset].get(task_id)

    def _load(self, name: str) -> list[Task]:
        from histobench.mint.configs.datasets import known_datasets
        from histobench.mint.runs.task_source import BUILT_IN, choose_datasets, load_tasks

        if name not in (*BUILT_IN, *known_datasets()):
            return []  # played from a configuration that names its class; its episodes are counted as unknown
        return load_tasks(choose_datasets([name])[0], self._data)


def _run_name(outcome: EpisodeOutcome) -> str:
    from histobench.mint.results.episode_outcome import NO_FEEDBACK
    from histobench.mint.results.result_tables import FEEDBACK_TYPE

    expert = "" if outcome.feedback_model == NO_FEEDBACK else f" + {outcome.feedback_model}"
    if expert and outcome.feedback_type != FEEDBACK_TYPE:
        expert += f"/{outcome.feedback_type}"  # another kind is another run
    return f"{outcome.model}{expert}, k={outcome.k}"


def _print(title: str, counted: Mapping[str, Counter[str]], rules: Sequence[Rule]) -> None:
    rows = []
    for name, counts in counted.items():
        episodes = counts["episodes"]
        cells = {title: name, "episodes": str(episodes), "stored": _percent(counts["stored"], episodes)}
        for rule in rules:
            of = f" ({rule})" if len(rules) > 1 else ""
            cells[rule] = _percent(counts[rule], episodes)
            cells |= {what + of: str(counts[f"{what} {rule}"]) for what in ("gained", "lost", "open")}
        rows.append({**cells, "unknown task": str(counts["unknown"] or "")})
    print_table(rows)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"
