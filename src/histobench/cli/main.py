"""`histobench VERB ...`: finds the verb, imports only its file, runs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from histobench import __version__
from histobench.cli.entry import printing, run_verb
from histobench.cli.terminal import say
from histobench.core.errors import did_you_mean

#: verb -> (module, what it does). The module has `add_arguments(parser)` and `run(args) -> int | None`.
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("histobench.cli.demo", "both tracks, in minutes: encoders on synthetic tissue, a few agents"),
    "run": ("histobench.cli.run", "a whole benchmark: datasets x encoders x tasks, to a ranked summary"),
    "status": ("histobench.cli.status", "how far a run is: units done, running, failed, and the time left"),
    "work": ("histobench.cli.work", "do the units of a run (what jobs on a cluster call)"),
    "data": ("histobench.cli.data", "check a dataset; write the synthetic demo dataset"),
    "extract": ("histobench.cli.extract", "images to features with one or more encoders"),
    "cache": ("histobench.cli.cache", "the cache of computed features: list, remove, verify"),
    "evaluate": ("histobench.cli.evaluate", "features to predictions, metrics and result files"),
    "bootstrap": ("histobench.cli.bootstrap", "confidence intervals for stored results"),
    "compare": ("histobench.cli.compare", "rank encoders with paired tests"),
    "robustness": (
        "histobench.cli.robustness",
        "biology or the site: what stored features show",
    ),
    "verify": ("histobench.cli.verify", "stored results beside published ones"),
    "power": ("histobench.cli.power", "how many test images a difference needs"),
    "report": ("histobench.cli.report", "results to a web site: leaderboard, runs, comparisons"),
    "serve": ("histobench.cli.serve", "the same site, live, while runs are going on"),
    "models": ("histobench.cli.models", "the encoders: table, details, licences"),
    "mint": ("histobench.cli.mint", "language-model agents: run, table, compare, rescore, replay, configs"),
    "consult": ("histobench.cli.consult", "agents that consult encoders: prepare, run, table, compare"),
    "mcp": ("histobench.cli.mcp", "encoders on a folder as tools for any assistant (MCP)"),
    "doctor": ("histobench.cli.doctor", "is this machine ready? PASS, WARN, FAIL and the fix"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        return printing(lambda: _say(_overview()))
    if arguments[0] in ("-V", "--version"):
        return printing(lambda: _say(f"histobench {__version__}"))
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        say(f"histobench: error: unknown verb {verb!r}; {did_you_mean(verb, VERBS)}", error=True)
        return 2
    return printing(
        lambda: run_verb(importlib.import_module(VERBS[verb][0]), rest, prog=f"histobench {verb}")
    )


def _say(text: str) -> int:
    say(text)
    return 0


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = "\n".join(f"  {verb:<{width}}  {summary}" for verb, (_, summary) in VERBS.items())
    return (
        "histobench: which pathology foundation model should I use, and how sure can I be?\n\n"
        "usage: histobench VERB [options]\n\n"
        f"verbs:\n{lines}\n\n"
        "histobench VERB --help explains a verb. New here? Start with: histobench demo"
    )


if __name__ == "__main__":
    sys.exit(main())
