"""The language-model part of the demo: a few episodes with the small model that needs no key."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from rich.console import Console

#: Few and short: on two cores this is a minute.
SIZE = ("--tasks", "starter", "--limit", "4", "--k", "2", "--max-tokens", "64")
FOLDER = "mint"


def play_agents(output: Path, console: Console) -> None:
    """Play, print the table; where the model or the sandbox is missing, say so and go on."""
    from histobench.cli import mint_run

    console.print("\nLanguage-model agents: a very small model, to show how a run goes", style="bold")
    parser = argparse.ArgumentParser()
    mint_run.add_arguments(parser)
    try:
        mint_run.run(parser.parse_args([*SIZE, "--output", str(output / FOLDER)]))
    except HistobenchError as error:
        console.print(f"left out: {error}", soft_wrap=True)
        return
    console.print(
        "So small a model solves next to nothing. Yours: histobench mint run --agent openai:MODEL",
        soft_wrap=True,
    )
