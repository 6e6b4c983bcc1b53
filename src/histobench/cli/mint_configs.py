"""Write the experiment matrix as JSON files, one for each cell, in the published folders.

The matrix is that of histobench.mint.configs.datasets; docs/CONFIG.md explains it.
"""

from __future__ import annotations

import argparse

from histobench.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, and for which models."""
    parser.add_argument("folder", help="folder to write to")
    parser.add_argument("--model", action="append", help="a model's name instead of the table's models")
    parser.add_argument("--tasks", help="datasets or families, separated by commas (default: all)")


def run(args: argparse.Namespace) -> None:
    """Write a file per configuration and say how many."""
    from histobench.mint.configs import datasets
    from histobench.mint.configs.datasets import select_datasets
    from histobench.mint.configs.matrix import write_configs

    names = [name.strip() for name in args.tasks.split(",")] if args.tasks else None
    agents = None
    if args.model:
        first = datasets.EVALUATED_MODEL_LIST[0]
        agents = [{**first, "config": {**first["config"], "model_name": name}} for name in args.model]
    written = write_configs(args.folder, agents=agents, datasets=select_datasets(names))
    say(f"{len(written)} configurations written to {args.folder}")
