"""How many test images (or patients) are needed to see a difference between two encoders.

Takes the noise of the difference from the stored predictions of two encoders on the same test images and
asks how large a test set must be so that a true difference of --delta shows with the wanted power. Where
the dataset has groups (patients, slides) the answer is in groups.

Examples:
  histobench power results --encoders uni_v1,resnet50 --delta 0.02
  histobench power results --encoders uni_v1,resnet50 --metric accuracy --task KNN --delta 0.01 --power 0.9
"""

from __future__ import annotations

import argparse

from histobench.cli.terminal import say
from histobench.core.errors import HistobenchError
from histobench.core.files import without_nan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two encoders, the metric, the difference."""
    parser.add_argument("results", help="results folder (searched with all its subfolders)")
    parser.add_argument("--encoders", required=True, help="two encoders, comma-separated")
    parser.add_argument("--delta", type=float, default=0.02, help="difference to be seen (default: 0.02)")
    parser.add_argument("--metric", default="balanced_accuracy", help="default: balanced_accuracy")
    parser.add_argument("--task", help="default: Linear-Probe where there is one")
    parser.add_argument("--setting", help="setting of the task, such as 9way_16shot")
    parser.add_argument("--preset", help="only runs of this preset")
    parser.add_argument("--dataset", help="only this dataset")
    parser.add_argument("--power", type=float, default=0.8, help="chance of seeing it (default: 0.8)")
    parser.add_argument("--alpha", type=float, default=0.05, help="two-sided error rate (default: 0.05)")
    parser.add_argument(
        "--n_bootstrap", type=int, help="simulated test sets (default: 4000, or 1000 for slow metrics)"
    )
    parser.add_argument("--random_state", type=int, default=42, help="seed (default: 42)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def run(args: argparse.Namespace) -> int:
    """Plan, and say it in words."""
    from histobench.cli.compare import names_in
    from histobench.roi.comparison.power import PowerSettings, plan_test_set
    from histobench.roi.comparison.selection import by_dataset, select_runs
    from histobench.roi.results.reader import load_runs

    settings = PowerSettings(
        args.metric, args.delta, args.power, args.alpha, args.n_bootstrap, args.random_state
    )
    encoders = names_in(args.encoders) or []
    if len(set(encoders)) != 2:
        raise HistobenchError(f"--encoders must name two encoders, not {args.encoders!r}")
    runs = select_runs(
        load_runs(args.results),
        task=args.task,
        setting=args.setting,
        preset=args.preset,
        dataset=args.dataset,
        encoders=encoders,
    )
    plans = [plan_test_set(members, settings) for members in by_dataset(runs).values()]
    if args.json:
        import json
        from dataclasses import asdict

        say(json.dumps(without_nan([asdict(plan) for plan in plans])[0], indent=2, allow_nan=False))
        return 0
    from histobench.roi.comparison.power import in_words

    say("\n\n".join(in_words(plan) for plan in plans))
    return 0
