"""A run from its options to its episodes: what the command line and Python have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.http import RetryPolicy
from histobench.mint import sandbox
from histobench.mint.agents.agent import EpisodeLimits
from histobench.mint.agents.agent_spec import AgentSpec, parse_agent
from histobench.mint.agents.answer_cache import AnswerCache, AnswerFiles
from histobench.mint.agents.costs import CostTracker, Ledger
from histobench.mint.agents.factory import Terms, open_player, player_name
from histobench.mint.agents.prices import Price, find_price, read_prices
from histobench.mint.configs.cell import NONE, check_model_name
from histobench.mint.feedback.kind import FeedbackKind, Form
from histobench.mint.prompts.first_message import Wording, choose_wording
from histobench.mint.results.stored_episode import WRITERS
from histobench.mint.runs.config_file import read_configs
from histobench.mint.runs.episode_queue import EpisodeCounter, OpenPlayer, Run, RunOutcome, Standing
from histobench.mint.runs.episode_run import RunContext
from histobench.mint.runs.planned_cell import PLACEBO, PlannedCell, parse_budgets, plan_cells, plan_expert
from histobench.mint.runs.run_options import ANSWERS, OUTPUT, SPENT, RunOptions
from histobench.mint.runs.task_source import choose_datasets, load_tasks, searches, tasks_checksum
from histobench.mint.runs.writers import Writer, check_alone, spent_by_writers
from histobench.mint.tasks.base import Task, as_rule
from histobench.mint.tools.wikipedia_search import Encyclopedia, open_encyclopedia

#: Opens whatever shows how a run is going; what it yields is called with each new standing.
OpenDisplay = Callable[[EpisodeCounter], AbstractContextManager[Callable[[Standing], None]]]


Loaded = tuple[Sequence[tuple[PlannedCell, Sequence[Task]]], Path]


@dataclass(frozen=True)
class Played:
    output: Path
    cells: tuple[PlannedCell, ...]
    outcome: RunOutcome


def play(options: RunOptions, display: OpenDisplay, *, writer: Writer | None = None) -> Played:
    wording = choose_wording(options.prompts, options.prompts_dir)
    loaded, output = load_cells(options)
    cells = [cell for cell, _ in loaded]
    if writer is None:
        check_alone(output)
    terms = open_terms(options, output, agents_of(cells), writer)
    outcome = play_cells(
        loaded,
        options,
        output,
        terms,
        open_player=lambda spec, sampling, as_expert: open_player(
            spec, terms, sampling=sampling, as_expert=as_expert
        ),
        wording=wording,
        encyclopedia=open_encyclopedia(options.wikipedia),
        withhold=[output, *(Path(place) for cell in cells if (place := options.data or cell.data))],
        display=display,
        writer=writer,
    )
    return Played(output, tuple(cells), outcome)


def load_cells(options: RunOptions) -> Loaded:
    cells, output = asked_cells(options)
    prices = read_prices(options.prices)
    cells = [
        replace(
            cell,
            wikipedia=options.wikipedia if searches(cell.dataset) else cell.wikipedia,
            checksum=tasks_checksum(cell.dataset, options.data or cell.data),
            prices=_prices_of(cell, prices),
        )
        for cell in cells
    ]
    return [
        (cell, load_tasks(cell.dataset, options.data or cell.data, options.limit)) for cell in cells
    ], output


def _prices_of(cell: PlannedCell, prices: Mapping[str, Price]) -> dict[str, Any]:
    experts = [cell.expert.spec] if cell.expert and cell.expert.spec else []
    found = {spec.target: find_price(spec.target, prices) for spec in (cell.agent, *experts)}
    return {name: asdict(price) for name, price in found.items() if price is not None}


def play_cells(
    planned: Sequence[tuple[PlannedCell, Sequence[Task]]],
    options: RunOptions,
    output: Path,
    terms: Terms,
    *,
    open_player: OpenPlayer,
    wording: Wording,
    encyclopedia: Encyclopedia | None,
    withhold: Sequence[Path],
    display: OpenDisplay,
    writer: Writer | None = None,
    runs_code: bool = True,
) -> RunOutcome:
    """Play what is missing of cells and their tasks; `withhold` is what no agent's code may read."""
    with Run(
        planned, output, open_player=open_player, repeats=options.repeat, costs=terms.costs, writer=writer
    ) as work:
        if not work.pending:
            outcome = RunOutcome(work.counter.standing())
        else:
            opened: Any = nullcontext(NoSandbox())
            if runs_code:
                opened = sandbox.open_sandbox(options.sandbox, withhold=sorted(set(withhold)))
            with opened as pool, display(work.counter) as watch:
                shared = RunContext(pool, wording, encyclopedia, threading.Event())
                outcome = work.carry_out(shared, concurrency=options.concurrency, watch=watch)
    if terms.cache is not None:
        terms.cache.close()
    return outcome


class NoSandbox:
    backend, pid = "none", 0

    def is_lost_since(self, pid: int) -> bool:
        return False


@contextmanager
def no_display(counter: EpisodeCounter) -> Iterator[Callable[[Standing], None]]:
    yield lambda standing: None


def asked_cells(options: RunOptions) -> tuple[list[PlannedCell], Path]:
    sandbox.check_sandbox(options.sandbox)
    rule = as_rule(options.rule)
    if options.name is not None:
        check_model_name(options.name)
    if options.config:
        return _configured(options, rule)
    agent = parse_agent(options.agent or "local:")
    form: Form = "placebo" if options.feedback == PLACEBO else options.feedback_form
    expert = plan_expert(options.feedback, FeedbackKind(options.gt, form))
    names = [name.strip() for name in (options.tasks or "quickstart").split(",") if name.strip()]
    expert_name = NONE
    if expert is not None:
        expert_name = player_name(expert.spec, as_expert=True) if expert.spec else PLACEBO
    cells = plan_cells(
        options.name or player_name(agent),
        agent,
        choose_datasets(names),
        parse_budgets(options.k),
        expert=expert,
        expert_name=expert_name,
        sampling=options.sampling,
        rule=rule,
        prompts=options.prompts,
        calls=options.calls,
    )
    return cells, Path(options.output or OUTPUT)


def _configured(options: RunOptions, rule: Any) -> tuple[list[PlannedCell], Path]:
    assert options.config is not None
    agent = parse_agent(options.agent) if options.agent else None
    configured = read_configs(options.config, agent=agent, name=options.name, rule=rule)
    outputs = {output for _, output in configured}
    if len(outputs) > 1 and not options.output:
        raise HistobenchError(f"{options.config}: the files write to {len(outputs)} folders; give `results`")
    cells = [
        replace(planned, prompts=options.prompts, cell=replace(planned.cell, calls=options.calls))
        for planned, _ in configured
    ]
    return cells, Path(options.output) if options.output else outputs.pop()


def agents_of(cells: Iterable[PlannedCell]) -> Iterator[AgentSpec]:
    for cell in cells:
        yield cell.agent
        if cell.expert and cell.expert.spec:
            yield cell.expert.spec


def open_terms(
    options: RunOptions, output: Path, agents: Iterable[AgentSpec], writer: Writer | None = None
) -> Terms:
    prices = read_prices(options.prices)
    limits = [name for name in ("max_cost", "episode_cost") if getattr(options, name) is not None]
    if limits:
        for spec in agents:
            if spec.is_endpoint and find_price(spec.target, prices) is None:
                raise HistobenchError(
                    f"`{limits[0]}` needs the price of {spec.target}; write `{spec.target}: [read, written]` "
                    "(dollars per million tokens) to a file and give it with `prices`"
                )
    cache = None
    if options.cache != "none":
        kept = options.cache or output / ANSWERS
        cache = AnswerCache(kept) if writer is None else AnswerFiles(output / WRITERS / "answers")
    return Terms(
        limits={"requests": _share(options.rpm, writer), "tokens": _share(options.tpm, writer)},
        concurrency=options.concurrency,
        retry=RetryPolicy(attempts=options.attempts, answer_timeout=options.timeout),
        cache=cache,
        prices=prices,
        costs=_costs(options, output, writer),
        episode=EpisodeLimits(options.episode_tokens, options.episode_cost, options.episode_seconds),
    )


def _costs(options: RunOptions, output: Path, writer: Writer | None) -> CostTracker:
    if writer is not None:
        return CostTracker(
            max_cost=options.max_cost,
            spent=writer.spent_before,
            others=writer.spent_by_others,
            keep=writer.keep_spent,
        )
    ledger = Ledger(output / SPENT)
    spent = ledger.spent + spent_by_writers(output)
    return CostTracker(max_cost=options.max_cost, spent=spent, keep=ledger.keep)


def _share(limit: float | None, writer: Writer | None) -> float | None:
    return limit if limit is None or writer is None else limit / writer.part.of
