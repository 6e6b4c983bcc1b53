"""Which encoder to use, and how alike encoders are: questions to a results folder."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from histobench.cli.terminal import open_terminal, say


def choose_flags(parser: argparse.ArgumentParser) -> None:
    """The results folder and the conditions."""
    parser.add_argument("results", help="results folder")
    parser.add_argument(
        "--license",
        "--licence",
        choices=["any", "commercial"],
        default="any",
        help="commercial: only licenses that allow commercial use (default: any)",
    )
    parser.add_argument("--max-params", metavar="N", help="most parameters of the network, such as 400M")
    parser.add_argument(
        "--min-robustness", type=float, metavar="X", help="least robustness index, such as 0.8"
    )
    parser.add_argument("--task", help="default: Linear-Probe where there is one")
    parser.add_argument("--setting", help="setting of the task, such as 9way_16shot")
    parser.add_argument("--preset", help="only runs of this preset")
    parser.add_argument("--metric", default="balanced_accuracy", help="default: balanced_accuracy")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def choose_command(args: argparse.Namespace) -> int:
    """List the encoders of a results folder that meet your conditions, with the
    evidence for each, and a paragraph for a proposal.

    A single encoder is named only where the data show it: on every dataset, after
    correction for all pairs.

    Example:
      histobench choose results --license commercial --max-params 400M --min-robustness 0.8
    """
    from histobench.cli.compare import print_grid
    from histobench.roi.comparison.choice import Conditions, choice_grid, choose, read_params

    most = None if args.max_params is None else read_params(args.max_params)
    choice = choose(
        Path(args.results),
        Conditions(args.license, most, args.min_robustness),
        task=args.task,
        preset=args.preset,
        setting=args.setting,
        metric=args.metric,
    )
    if args.json:
        say(json.dumps(asdict(choice), indent=2))
        return 0
    console = open_terminal()
    if choice.candidates:
        print_grid(choice_grid(choice), console)
    console.print(choice.paragraph)
    return 0


def similarity_flags(parser: argparse.ArgumentParser) -> None:
    """The results folder."""
    parser.add_argument("results", help="results folder, with its features")
    parser.add_argument("--dataset", help="only this dataset")
    parser.add_argument("--encoders", help="only these encoders, separated by commas")
    parser.add_argument("--k", type=int, default=10, help="neighbors of an image (default: 10)")
    parser.add_argument("-o", "--output", help="JSON file (default: RESULTS/similarity.json)")


def similarity_command(args: argparse.Namespace) -> int:
    """Measure how alike encoders are on the test images: debiased linear CKA, the
    share of nearest neighbors in common, and whether they misclassify the same
    images (Cohen's kappa of the errors), with 95% intervals over groups.

    Example:
      histobench similarity results
    """
    from histobench.cli.compare import print_grid
    from histobench.core.errors import HistobenchError
    from histobench.core.files import write_json
    from histobench.roi.comparison.similarity import similarity_grid, similarity_of_results

    if args.k < 1:
        raise HistobenchError(f"--k must be at least 1, not {args.k}")
    encoders = [name.strip() for name in (args.encoders or "").split(",") if name.strip()]
    found = similarity_of_results(Path(args.results), dataset=args.dataset, encoders=encoders, k=args.k)
    console = open_terminal()
    for grid in similarity_grid(found):
        print_grid(grid, console)
    path = Path(args.output or Path(args.results) / "similarity.json")
    write_json(path, {"similarity": [asdict(each) for each in found]})
    console.print(f"written: {path}", soft_wrap=True)
    return 0
