"""Register contrasts of a study, with the time: the table says which came before an agent had played.

The file is a JSON list: [{"name": "dose", "measure": "u_wrong", "arm": "wrong-50", "against": "strong"}].
Measures: final, over_tool (without `against`), u_right, u_wrong, discrimination. In sequence arms `part` is
after (the last quarter; default) or before (the last quarter before the change).

Examples:
  histobench consult register study/ contrasts.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from histobench.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The study and the file."""
    parser.add_argument("study", help="folder that `histobench consult prepare` wrote")
    parser.add_argument("file", type=Path, help="JSON file of contrasts")


def run(args: argparse.Namespace) -> int:
    """Add them to the study."""
    from histobench.consult.study import open_study, read_contrasts, register_contrasts

    study = open_study(args.study)
    register_contrasts(study.folder, read_contrasts(args.file), study.facts.arms)
    for contrast in open_study(args.study).contrasts:
        say(f"{contrast.name}: {contrast.words} (registered {contrast.registered})")
    return 0
