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
  histobench mint run --agent openai:M@http://node:8000/v1 --tasks reasoning --engine slurm --workers 8
"""

from __future__ import annotations

import argparse

from histobench.cli.engine_flags import add_workers_arguments, check_engine_flags
from histobench.cli.mint_summary import INCOMPLETE
from histobench.cli.terminal import open_terminal
from histobench.mint.runs.options import ANSWERS, OUTPUT, RunOptions

CALLS = ("text", "native")
BALANCES = ("least-busy", "round-robin")
REASONING_HISTORIES = ("provider", "none", "all")
DEFAULT = RunOptions()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Who plays what, how, and where the episodes go."""
    what = parser.add_argument_group("what is run")
    what.add_argument("--agent", help="the model under test (default: local:)")
    what.add_argument("--tasks", help="datasets or families, separated by commas (default: quickstart)")
    what.add_argument("--data", help="folder of the datasets (default: data/processed)")
    what.add_argument(
        "--k",
        default=DEFAULT.k,
        help=f"most actions of an episode: 5, or 1,3,5, or 1..5 (default: {DEFAULT.k})",
    )
    what.add_argument("--limit", type=int, help="only the first N tasks of each dataset")
    what.add_argument(
        "--repeat",
        type=int,
        default=DEFAULT.repeat,
        help=f"play everything N times (default: {DEFAULT.repeat})",
    )
    what.add_argument(
        "--calls",
        choices=CALLS,
        default=DEFAULT.calls,
        help="how the model acts: tags in its text, as published, or functions of its provider (native)",
    )
    what.add_argument(
        "--feedback",
        default=DEFAULT.feedback,
        help=f"an expert: an agent, placebo or none (default: {DEFAULT.feedback})",
    )
    what.add_argument("-o", "--output", help=f"folder of the results (default: {OUTPUT})")
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--concurrency",
        type=int,
        default=DEFAULT.concurrency,
        help=f"episodes at a time (default: {DEFAULT.concurrency})",
    )
    limits.add_argument(
        "--max-cost",
        type=float,
        help="dollars that all runs of the folder may cost together; nothing is asked that could pass it",
    )
    limits.add_argument("--episode-tokens", type=int, help="most tokens of one episode, read and written")
    limits.add_argument("--episode-cost", type=float, help="most dollars of one episode")
    limits.add_argument("--episode-seconds", type=float, help="most seconds of one episode")
    add_model_arguments(parser.add_argument_group("advanced: how the model writes"))
    _add_protocol_arguments(parser.add_argument_group("advanced: the protocol"))
    add_provider_arguments(parser.add_argument_group("advanced: the provider"))
    add_workers_arguments(parser.add_argument_group("advanced: where it runs (docs/scale.md)"))


def add_model_arguments(how: argparse._ArgumentGroup, *, max_tokens: int = DEFAULT.max_tokens) -> None:
    """How long and how freely the model writes."""
    how.add_argument(
        "--max-tokens", type=int, default=max_tokens, help=f"of one message (default: {max_tokens})"
    )
    how.add_argument(
        "--temperature", type=float, default=DEFAULT.temperature, help=f"default: {DEFAULT.temperature:g}"
    )
    how.add_argument("--top-p", type=float, help="nucleus sampling (default: the provider's)")
    how.add_argument("--seed", type=int, help="of the sampling, where the provider offers one")
    how.add_argument("--reasoning-effort", help="low, medium, high, ...: no temperature and stop words then")
    how.add_argument(
        "--reasoning-history",
        choices=REASONING_HISTORIES,
        default=DEFAULT.reasoning_history,
        help="what of its reasoning a model gets back: as its provider documents, none, or all",
    )
    how.add_argument(
        "--constrain",
        action="store_true",
        help="every message is a well-formed action: by a grammar (local: and servers of llama.cpp), "
        "with --calls native by the provider's own rule that a function must be called",
    )


def _add_protocol_arguments(how: argparse._ArgumentGroup) -> None:
    how.add_argument("--name", help="the agent's name in folders and tables (default: the model's)")
    how.add_argument("--config", help="a configuration file, or a folder of them, instead of --tasks and --k")
    how.add_argument("--rule", choices=("strict", "published"), default=DEFAULT.rule, help="the scoring rule")
    how.add_argument("--prompts", choices=("own", "official"), default=DEFAULT.prompts, help="whose words")
    how.add_argument("--prompts-dir", help="a clone of the published benchmark, for --prompts official")
    how.add_argument(
        "--wikipedia",
        default=DEFAULT.wikipedia,
        help=f"live, tape:FILE or folder:DIR (default: {DEFAULT.wikipedia})",
    )
    how.add_argument("--sandbox", default=DEFAULT.sandbox, help="auto, or one that `histobench doctor` lists")
    how.add_argument(
        "--feedback-form", choices=("textual", "binary", "placebo"), default=DEFAULT.feedback_form
    )
    how.add_argument(
        "--gt",
        action=argparse.BooleanOptionalAction,
        default=DEFAULT.gt,
        help="the expert knows the solution",
    )


def add_provider_arguments(how: argparse._ArgumentGroup) -> None:
    """How the provider is asked, and what its answers cost."""
    how.add_argument("--cache", help=f"file of answers, or none (default: {ANSWERS} in the results' folder)")
    how.add_argument("--prices", help="YAML file of prices: MODEL: [read, written] in dollars per million")
    how.add_argument(
        "--attempts", type=int, default=DEFAULT.attempts, help=f"of one request (default: {DEFAULT.attempts})"
    )
    how.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT.timeout,
        help=f"seconds for one answer (default: {DEFAULT.timeout:g})",
    )
    how.add_argument("--rpm", type=float, help="requests per minute, besides what the provider's headers say")
    how.add_argument("--tpm", type=float, help="tokens per minute, likewise")
    how.add_argument(
        "--balance",
        choices=BALANCES,
        default=DEFAULT.balance,
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
    if args.engine != "local":
        from histobench.cli.mint_workers import run_elsewhere

        return run_elsewhere(args)
    check_engine_flags(args)
    from histobench.cli.mint_progress import progress_display
    from histobench.cli.mint_summary import print_summary
    from histobench.mint.runs.play import play

    console = open_terminal(error=True)
    played = play(RunOptions.of(args), lambda counter: progress_display(console, counter))
    print_summary(played.output, [cell.cell for cell in played.cells], played.outcome)
    return 0 if played.outcome.complete else INCOMPLETE
