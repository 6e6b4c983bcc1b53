"""`histobench COMMAND ...`: find the command, import only its file, run it."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence

from histobench.cli.entry import Command, end_on_signals, printing, run_command
from histobench.cli.terminal import say
from histobench.core.errors import did_you_mean
from histobench.core.version import __version__

#: The commands in the groups of `histobench --help`. Each is imported when it is run.
GROUPS: dict[str, dict[str, Command]] = {
    "data and encoders": {
        "data": Command("data:data", "get, check and split datasets; write the synthetic demo dataset"),
        "models": Command("models:models", "list the encoders, their licenses and their details"),
        "extract": Command("extract:extract", "compute features of images with one or more encoders"),
        "features": Command("extract:features", "write stored features in the formats of other tools"),
        "cache": Command("cache:cache", "list, remove or verify cached features"),
        "doctor": Command("doctor:doctor", "check that this machine is ready"),
    },
    "benchmark": {
        "demo": Command("demo:demo", "try everything on synthetic tissue in one to two minutes"),
        "run": Command("run:run", "run a whole benchmark: datasets x encoders x tasks"),
        "status": Command("run:status", "show the progress of a run"),
        "evaluate": Command("evaluate:evaluate", "evaluate stored features"),
        "robustness": Command("robustness:robustness", "measure how much features depend on the site"),
    },
    "results": {
        "compare": Command("compare:compare", "rank encoders, with paired tests"),
        "bootstrap": Command(
            "bootstrap:bootstrap", "compute HistoROIBench-style percentile bootstrap intervals"
        ),
        "choose": Command("compare:choose", "list the encoders that meet your conditions, with evidence"),
        "similarity": Command("compare:similarity", "measure how alike encoders are"),
        "power": Command("compare:power", "plan the size of a test set"),
        "verify": Command("compare:verify", "compare stored results with published ones"),
        "report": Command("report:report", "write a web site of the results"),
        "serve": Command("report:serve", "serve that site and update it while runs continue"),
    },
    "agents": {
        "mint": Command("mint:mint", "benchmark language models as agents"),
        "consult": Command("consult:consult", "study agents that consult encoders"),
        "mcp": Command("mcp:mcp", "offer encoders as tools to an assistant (MCP)"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
#: Not listed: other commands start it.
HIDDEN = {"worker": Command("worker:worker", "do a share of the work of a run")}

#: Threads of torch that wait sleep instead of spinning, in this process and in those that it starts:
#: beside other work on two cores a ViT-S was 2.5 times as fast with half the processor time.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    codes: list[int] = []
    if argv is None:  # before torch is imported
        for name, value in WAITING.items():
            os.environ.setdefault(name, value)
        gc.set_threshold(10_000)  # imports make a million objects and no garbage
        # Registered first, called last: Python would look through what torch has made, for 2 to 4 s.
        atexit.register(lambda: [os._exit(code) for code in codes])
    code = _run(list(sys.argv[1:] if argv is None else argv))
    if argv is None:  # the process ends with this call
        end_on_signals()
        codes.append(code)
    return code


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:  # help COMMAND is COMMAND --help
        arguments = [*(word for word in arguments if word != "help"), "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        return printing(lambda: say(_overview()))
    if arguments[0] in ("-V", "--version", "version"):
        return printing(lambda: say(f"histobench {__version__}"))
    name, rest = arguments[0], arguments[1:]
    command = {**COMMANDS, **HIDDEN}.get(name)
    if command is None:
        hint = did_you_mean(name, COMMANDS, all_if_none=False) or "histobench --help lists the commands"
        say(f"histobench: error: unknown command {name!r}; {hint}", error=True)
        return 2
    return run_command(command, rest, prog=f"histobench {name}")


def _overview() -> str:
    width = max(map(len, COMMANDS))
    groups = "\n\n".join(
        f"{title}:\n" + "\n".join(f"  {name:<{width}}  {each.summary}" for name, each in commands.items())
        for title, commands in GROUPS.items()
    )
    return (
        "histobench: which pathology foundation model should I use, and how sure can I be?\n\n"
        "usage: histobench COMMAND [options]\n\n"
        f"{groups}\n\n"
        "histobench help COMMAND explains a command. New here? Try: histobench demo"
    )


if __name__ == "__main__":
    sys.exit(main())
