"""The whole ROI track on synthetic tissue, a few agents, some that consult an encoder, and pages of it all.

Needs no network and no GPU. The tiles are drawn by a program; what the numbers show is that everything works,
not which encoder is good at pathology.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.flag_values import seed
from histobench.cli.terminal import open_terminal

if TYPE_CHECKING:
    from rich.console import Console

ENCODERS = ("efficientnet-lite0", "tiny-vl", "random-vit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the demo goes and how large it is."""
    parser.add_argument("-o", "--output", default="demo-results", help="folder (default: demo-results)")
    parser.add_argument("--per-class", type=int, default=40, help="training tiles per class (default: 40)")
    parser.add_argument("--test-per-class", type=int, default=60, help="test tiles per class (default: 60)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the tiles and of everything random")


def run(args: argparse.Namespace) -> int:
    """Make the tiles, run the plan, print the tables."""
    from histobench.cli.demo_agents import play_agents
    from histobench.cli.demo_consult import play_consult
    from histobench.cli.run import carry_out
    from histobench.roi.data.demo import write_demo_dataset
    from histobench.roi.options import DatasetEntry, Options, Plan, Settings
    from histobench.roi.task_catalogue import DEFAULT_TASKS, ROBUSTNESS

    console = open_terminal()
    output = Path(args.output)
    with console.status("drawing synthetic tiles"):
        table = write_demo_dataset(
            output / "data",
            train_per_class=args.per_class,
            test_per_class=args.test_per_class,
            seed=args.seed,
            sites="crossed",
        )
    name = table.stem
    console.print(f"synthetic tiles: {table.parent / 'tiles'}", soft_wrap=True)
    plan = Plan(
        datasets=(
            DatasetEntry(
                name,
                table,
                class2id=table.with_suffix(".txt"),
                prompts=table.with_name(f"{name}-Zero_Shot_Prompts.txt"),
            ),
        ),
        encoders=ENCODERS,
        results=output / "results",
        tasks=(*DEFAULT_TASKS, ROBUSTNESS),
        seed=args.seed,
        settings=Settings(batch_size="auto", compile="off"),
        options=Options(n_way=(), n_shot=(1, 2, 4, 8, 16, 32)),
    )
    code = carry_out(plan, console, heading="Synthetic tissue: a demonstration, not a benchmark")
    play_agents(output, console)
    play_consult(table, output, console, encoders=ENCODERS, seed=args.seed)
    build_pages(output, console)
    return code


def build_pages(output: Path, console: Console) -> None:
    """The web pages of everything the demo has made; the last line says where they are."""
    from histobench.report.site import build_site

    if not any(output.rglob("*_complete_results.json")):
        return  # everything failed, and has been told
    with console.status("building the web pages"):
        page = build_site(output, output / "site", title="histobench demo")
    console.print(f"open in a browser: {page}", soft_wrap=True)
