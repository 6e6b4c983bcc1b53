"""The language-model part of the demo: published episodes played again, and a small model without a key."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from rich.console import Console

#: Few and short: on two cores this is a minute.
SIZE = ("--tasks", "quickstart", "--constrain", "--limit", "4", "--k", "2", "--max-tokens", "64")
FOLDER = "mint"


def play_agents(output: Path, console: Console) -> None:
    """Play, print the tables; where the model or the sandbox is missing, say so and go on."""
    from histobench.mint import runs

    recording = Path(runs.__file__).parent / "demo_recording"
    agent = f"replay:{next(recording.glob('*.jsonl.gz'))}"
    console.print("\nLanguage-model agents: twelve published episodes, played again", style="bold")
    _play(["--agent", agent, "--tasks", "gsm8k", "--data", str(recording)], output, console)
    console.print("\nThe same loop with a very small model in this process, on easy sums", style="bold")
    if _play(list(SIZE), output, console):
        said = "So small a model solves little. Yours: histobench mint run --agent openai:MODEL"
        console.print(said, soft_wrap=True)


def _play(arguments: list[str], output: Path, console: Console) -> bool:
    from histobench.cli import mint_run

    parser = argparse.ArgumentParser()
    mint_run.add_arguments(parser)
    try:
        mint_run.run(parser.parse_args([*arguments, "--output", str(output / FOLDER)]))
    except HistobenchError as error:
        console.print(f"left out: {error}", soft_wrap=True)
        return False
    return True
