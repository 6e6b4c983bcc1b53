"""Run a language model on tasks, with or without expert feedback, and keep every episode.

Agents: openai:MODEL, openai:MODEL@http://host/v1 (vLLM, Ollama, llama.cpp, ...), vllm:MODEL@http://host/v1,
responses:MODEL, anthropic:MODEL, gemini:MODEL, local: (a small model that needs no key), local:FILE.gguf,
replay:FILE, human.
Keys: OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY; for an address of your own, HISTOBENCH_API_KEY.

A run that was stopped or killed goes on where it was: repeat the same command.

Examples:
  histobench mint run --constrain                                a small local model on eight built-in tasks
  histobench mint run --constrain --limit 4 --k 2                the first four of them, two actions each
  histobench mint run --agent openai:gpt-4o-mini --tasks gsm8k,math --k 1..5 --max-cost 5
  histobench mint run --agent openai:M@http://localhost:8000/v1 --tasks reasoning --feedback openai:gpt-4o
  histobench mint run --config configs/ --output data/outputs
"""

from __future__ import annotations

import argparse
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.terminal import open_terminal
from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from histobench.mint.agents.factory import Terms
    from histobench.mint.feedback.kind import Form
    from histobench.mint.runs.planned_cell import PlannedCell

CALLS = ("text", "native")
BALANCES = ("least-busy", "round-robin")
REASONING_HISTORIES = ("provider", "none", "all")
OUTPUT = "mint-results"
ANSWERS = "answers.sqlite"
INCOMPLETE = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Who plays what, how, and where the episodes go."""
    what = parser.add_argument_group("what is run")
    what.add_argument("--agent", help="the model under test (default: local:)")
    what.add_argument("--tasks", help="datasets or families, separated by commas (default: quickstart)")
    what.add_argument("--data", help="folder of the datasets (default: data/processed)")
    what.add_argument(
        "--k", default="5", help="most actions of an episode: 5, or 1,3,5, or 1..5 (default: 5)"
    )
    what.add_argument("--limit", type=int, help="only the first N tasks of each dataset")
    what.add_argument("--repeat", type=int, default=1, help="play everything N times (default: 1)")
    what.add_argument(
        "--calls",
        choices=CALLS,
        default="text",
        help="how the model acts: tags in its text, as published, or functions of its provider (native)",
    )
    what.add_argument(
        "--feedback", default="none", help="an expert: an agent, placebo or none (default: none)"
    )
    what.add_argument("-o", "--output", help=f"folder of the results (default: {OUTPUT})")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--concurrency", type=int, default=8, help="episodes at a time (default: 8)")
    limits.add_argument("--max-cost", type=float, help="dollars after which nothing more is asked")
    add_model_arguments(parser.add_argument_group("advanced: how the model writes"))
    _add_protocol_arguments(parser.add_argument_group("advanced: the protocol"))
    add_provider_arguments(parser.add_argument_group("advanced: the provider"))


def add_model_arguments(how: argparse._ArgumentGroup, *, max_tokens: int = 512) -> None:
    """How long and how freely the model writes."""
    how.add_argument(
        "--max-tokens", type=int, default=max_tokens, help=f"of one message (default: {max_tokens})"
    )
    how.add_argument("--temperature", type=float, default=0.0, help="default: 0")
    how.add_argument("--top-p", type=float, help="nucleus sampling (default: the provider's)")
    how.add_argument("--seed", type=int, help="of the sampling, where the provider offers one")
    how.add_argument("--reasoning-effort", help="low, medium, high, ...: no temperature and stop words then")
    how.add_argument(
        "--reasoning-history",
        choices=REASONING_HISTORIES,
        default="provider",
        help="what of its reasoning a model gets back: as its provider documents, none, or all",
    )
    how.add_argument(
        "--constrain",
        action="store_true",
        help="a grammar makes every message a well-formed action (local: and servers of llama.cpp)",
    )


def _add_protocol_arguments(how: argparse._ArgumentGroup) -> None:
    how.add_argument("--name", help="the agent's name in folders and tables (default: the model's)")
    how.add_argument("--config", help="a configuration file, or a folder of them, instead of --tasks and --k")
    how.add_argument("--rule", choices=("strict", "published"), default="strict", help="the scoring rule")
    how.add_argument("--prompts", choices=("own", "official"), default="own", help="whose words")
    how.add_argument("--prompts-dir", help="a clone of the published benchmark, for --prompts official")
    how.add_argument("--wikipedia", default="live", help="live, tape:FILE or folder:DIR (default: live)")
    how.add_argument("--sandbox", default="auto", help="auto, or one that `histobench doctor` lists")
    how.add_argument("--feedback-form", choices=("textual", "binary", "placebo"), default="textual")
    how.add_argument(
        "--gt", action=argparse.BooleanOptionalAction, default=False, help="the expert knows the solution"
    )


def add_provider_arguments(how: argparse._ArgumentGroup) -> None:
    """How the provider is asked, and what its answers cost."""
    how.add_argument("--cache", help=f"file of answers, or none (default: {ANSWERS} in the results' folder)")
    how.add_argument("--prices", help="YAML file of prices: MODEL: [read, written] in dollars per million")
    how.add_argument("--attempts", type=int, default=10, help="of one request (default: 10)")
    how.add_argument("--timeout", type=float, default=300.0, help="seconds for one answer (default: 300)")
    how.add_argument("--rpm", type=float, help="requests per minute, besides what the provider's headers say")
    how.add_argument("--tpm", type=float, help="tokens per minute, likewise")
    how.add_argument(
        "--balance",
        choices=BALANCES,
        default="least-busy",
        help="which of several servers is asked next (openai:M@http://a/v1,http://b/v1)",
    )
    how.add_argument(
        "--batch",
        metavar="HOW",
        help="send the turns of all running episodes together: `hosted` (the provider's batches), or a "
        "command with {requests} and {answers}; --concurrency is the size of a batch",
    )


def run(args: argparse.Namespace) -> int:
    """Play the missing episodes and say how it went."""

    from histobench.cli.mint_progress import progress_display
    from histobench.cli.mint_summary import print_summary
    from histobench.mint.agents.factory import open_player
    from histobench.mint.prompts.choice import choose_wording
    from histobench.mint.runs.episode_run import Stage
    from histobench.mint.runs.run import Run
    from histobench.mint.runs.task_source import load_tasks, searches
    from histobench.mint.sandbox import open_sandbox
    from histobench.mint.tools.wikipedia.source import open_encyclopedia

    check_numbers(args)
    if args.calls == "native" and args.prompts != "own":
        raise HistobenchError("--calls native has words of its own; leave out --prompts official")
    if args.calls == "native" and args.constrain:
        raise HistobenchError("--constrain is for --calls text; the server sees to the form of native calls")
    console = open_terminal(error=True)
    wording = choose_wording(args.prompts, args.prompts_dir)
    cells, output = _cells(args)
    cells = [replace(cell, wikipedia=args.wikipedia) if searches(cell.dataset) else cell for cell in cells]
    loaded = [(cell, load_tasks(cell.dataset, args.data or cell.data, args.limit)) for cell in cells]
    terms = open_terms(args, output, cells)
    encyclopedia = open_encyclopedia(args.wikipedia)
    with Run(
        loaded,
        output,
        open_player=lambda spec, sampling, as_expert: open_player(
            spec, terms, sampling=sampling, as_expert=as_expert
        ),
        repeats=args.repeat,
        costs=terms.costs,
    ) as work:
        if not work.jobs:
            outcome = work.nothing_to_do()
        else:
            data = {Path(place) for cell in cells if (place := args.data or cell.data)}
            with (
                open_sandbox(args.sandbox, withhold=[output, *data]) as pool,
                progress_display(console, work.tally) as watch,
            ):
                stage = Stage(pool, wording, encyclopedia, threading.Event())
                outcome = work.carry_out(stage, concurrency=args.concurrency, watch=watch)
    if terms.cache is not None:
        terms.cache.close()
    print_summary(output, [cell.cell for cell in cells], outcome)
    return 0 if outcome.complete else INCOMPLETE


def check_numbers(args: argparse.Namespace) -> None:
    """Raise where a flag has a value that nothing can be done with."""
    for name in ("concurrency", "repeat", "limit", "attempts", "max_tokens"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise HistobenchError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if not args.timeout > 0:  # also "nan"
        raise HistobenchError(f"--timeout must be more than 0 seconds, not {args.timeout}")
    if not 0 <= args.temperature < float("inf"):
        raise HistobenchError(f"--temperature must be 0 or more, not {args.temperature}")
    if args.top_p is not None and not 0 < args.top_p <= 1:
        raise HistobenchError(f"--top-p must be more than 0 and at most 1, not {args.top_p}")


def _cells(args: argparse.Namespace) -> tuple[list[PlannedCell], Path]:
    from histobench.mint.agents.completion import Sampling
    from histobench.mint.agents.factory import player_name
    from histobench.mint.agents.spec import parse_agent
    from histobench.mint.configs.cell import NONE, check_model_name
    from histobench.mint.envs.grammar import ACTION_GRAMMAR, SOLUTION_GRAMMAR
    from histobench.mint.feedback.kind import FeedbackKind
    from histobench.mint.runs.config_file import read_configs
    from histobench.mint.runs.planned_cell import PLACEBO
    from histobench.mint.runs.request import RunRequest, parse_budgets, plan_expert
    from histobench.mint.runs.task_source import choose_datasets
    from histobench.mint.tasks.rule import as_rule

    rule = as_rule(args.rule)
    if args.name is not None:
        check_model_name(args.name)
    if args.config:
        agent = parse_agent(args.agent) if args.agent else None
        configured = read_configs(args.config, agent=agent, name=args.name, rule=rule)
        outputs = {entry.output for entry in configured}
        if len(outputs) > 1 and not args.output:
            raise HistobenchError(f"{args.config}: the files write to {len(outputs)} folders; give --output")
        cells = [
            replace(entry.planned, prompts=args.prompts, cell=replace(entry.planned.cell, calls=args.calls))
            for entry in configured
        ]
        return cells, Path(args.output) if args.output else outputs.pop()
    agent = parse_agent(args.agent or "local:")
    form: Form = "placebo" if args.feedback == PLACEBO else args.feedback_form
    expert = plan_expert(args.feedback, FeedbackKind(args.gt, form))
    names = [name.strip() for name in (args.tasks or "quickstart").split(",") if name.strip()]
    expert_name = NONE
    if expert is not None:
        expert_name = player_name(expert.spec, as_expert=True) if expert.spec else PLACEBO
    request = RunRequest(
        agent=agent,
        name=args.name or player_name(agent),
        datasets=choose_datasets(names),
        budgets=parse_budgets(args.k),
        expert=expert,
        expert_name=expert_name,
        sampling=Sampling(
            args.temperature,
            args.max_tokens,
            top_p=args.top_p,
            seed=args.seed,
            reasoning_effort=args.reasoning_effort,
            reasoning_history=args.reasoning_history,
            grammar=ACTION_GRAMMAR if args.constrain else None,
            last_grammar=SOLUTION_GRAMMAR if args.constrain else None,
        ),
        rule=rule,
        prompts=args.prompts,
        calls=args.calls,
    )
    return request.cells(), Path(args.output or OUTPUT)


def open_terms(args: argparse.Namespace, output: Path, cells: Sequence[PlannedCell]) -> Terms:
    """What all endpoints of the run share; raises where a limit of cost could not be kept."""
    from histobench.mint.agents.cache import AnswerCache
    from histobench.mint.agents.cost import CostTracker, find_price, read_prices
    from histobench.mint.agents.factory import Batches, Terms
    from histobench.mint.agents.rate_limit import RateLimits
    from histobench.mint.agents.retry import RetryPolicy
    from histobench.mint.results.details import spent_below

    prices = read_prices(args.prices)
    if args.max_cost is not None:
        if not args.max_cost > 0:  # also "nan", which no sum ever reaches
            raise HistobenchError(f"--max-cost must be more than 0 dollars, not {args.max_cost}")
        specs = [cell.agent for cell in cells] + [
            cell.expert.spec for cell in cells if cell.expert and cell.expert.spec
        ]
        for spec in specs:
            if spec.is_endpoint and find_price(spec.target, prices) is None:
                raise HistobenchError(
                    f"--max-cost needs the price of {spec.target}; write `{spec.target}: [read, written]` "
                    "(dollars per million tokens) to a file and give it with --prices"
                )
    cache = None if args.cache == "none" else AnswerCache(args.cache or output / ANSWERS)
    for name in ("rpm", "tpm"):
        if (value := getattr(args, name)) is not None and not value > 0:
            raise HistobenchError(f"--{name} must be more than 0, not {value}")
    return Terms(
        limits=RateLimits(args.rpm, args.tpm),
        balance=args.balance,
        batch=Batches(args.batch, output / "batches") if args.batch else None,
        concurrency=args.concurrency,
        retry=RetryPolicy(attempts=args.attempts, answer_timeout=args.timeout),
        cache=cache,
        prices=prices,
        costs=CostTracker(max_cost=args.max_cost, spent=cache.spent() if cache else spent_below(output)),
    )
