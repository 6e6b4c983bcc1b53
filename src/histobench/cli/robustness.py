"""`histobench robustness`: measure how far features depend on the site, from stored features."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.entry import USER_ERROR
from histobench.cli.flags import add_source_flags, positive, seed, source_from
from histobench.cli.terminal import Busy, count_of, labelled, open_terminal, print_overview
from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.roi.comparison.robustness_tables import RobustnessTable
    from histobench.roi.features.feature_file import FeatureSet

#: Exit code where an encoder or a named column failed. A column with nothing to compare is not one.
PARTLY = 1


def robustness_flags(parser: argparse.ArgumentParser) -> None:
    """Feature files and how they are measured."""
    parser.add_argument(
        "features", nargs="*", help="feature files (.pt) of one or more encoders, or folders of them"
    )
    parser.add_argument("-o", "--output", default="./results", help="results folder (default: ./results)")
    parser.add_argument("--column", action="append", help="site column, or pair; repeatable (default: all)")
    parser.add_argument("--k", type=positive, help="neighbors of the robustness index (default: automatic)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of random changes (default: 0)")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print every measure with all notes and reasons"
    )
    parser.add_argument("--device", help="cpu, cuda:0, ... (default: the GPU if there is one)")
    images = parser.add_argument_group("from images again")
    images.add_argument(
        "--stress",
        action="store_true",
        help="change stain, sharpness, compression, ... of test images and measure how features and a linear "
        "probe trained on unchanged images respond",
    )
    images.add_argument("--data", help="folder of class folders, CSV, TAR shards or public dataset")
    images.add_argument("--models", help="encoders, separated by commas")
    images.add_argument("--stress-images", type=positive, default=200, help="test images (default: 200)")
    images.add_argument("--weights", help="checkpoint, folder of checkpoints, or table")
    images.add_argument("--class2id_txt", help="class mapping file")
    images.add_argument("--dataset_name", help="name of the dataset (default: from the file name)")
    add_source_flags(images, target=False)


def robustness_command(args: argparse.Namespace) -> int:
    """Measure how far features depend on the hospital, scanner or stain instead of
    the tissue. Reads stored features; needs neither images nor a GPU.

    Feature files need a site column (site, scanner, stain, ...): see
    docs/how-to/datasets.md and docs/explanation/robustness.md.

    Examples:
      histobench robustness features/ -o results
      histobench robustness features/*uni_v1*.pt features/*virchow2*.pt --column scanner
      histobench robustness --stress --data tiles.csv --models uni_v1,virchow2 -o results
    """
    if args.stress:
        return _stress(args)
    if not args.features:
        raise HistobenchError("give feature files (.pt), or --stress with --data and --models")
    from histobench.api.site_robustness import measured
    from histobench.core.devices import resolve_device
    from histobench.roi.comparison.robustness_tables import FILE, summarise
    from histobench.roi.evaluation.robustness_task import RobustnessOptions

    console = open_terminal()
    options = RobustnessOptions(k=args.k, seed=args.seed, device=resolve_device(args.device))
    output, written = Path(args.output), 0
    with Busy("reading features"):
        encoders, unreadable = _encoders(args.features)
    if not encoders:
        raise HistobenchError("; ".join(unreadable))
    failed = [labelled("failed", "red", reason) for reason in unreadable]
    for name, features in encoders.items():
        problems: dict[str, str] = {}
        with Busy(f"measuring {name[1]} on {name[0]}"):
            for what, found, _ in measured(name, features, args.column, options, output):
                if not isinstance(found, Exception):
                    written += 1
                elif isinstance(found, HistobenchError):
                    problems[what] = str(found)
                elif args.debug:
                    raise found
                else:  # one encoder's failure does not cost the others
                    problems[what] = f"{type(found).__name__}: {found} (--debug shows where)"
        failed += [labelled("failed", "red", f"{what}: {reason}") for what, reason in problems.items()]
    for line in failed:
        console.print(line, soft_wrap=True)
    if written:
        with Busy("comparing encoders"):
            tables = summarise(output)
        asked = {dataset for dataset, _, _ in encoders}
        shown = [table for table in tables if table.dataset in asked]
        print_tables(shown, console, verbose=args.verbose)
        if len(shown) < len(tables):
            console.print(f"Not shown here: {count_of(len(tables) - len(shown), 'table')} of other datasets.")
        console.print(f"Details: --verbose, or {output / FILE}", soft_wrap=True)
    if not written:
        return USER_ERROR
    return PARTLY if failed else 0


def _stress(args: argparse.Namespace) -> int:
    from histobench.cli.compare import encoder_names, print_grid
    from histobench.cli.extract import display
    from histobench.roi.plan.stress import run_stress, stress_grid

    models = [] if args.models is None else encoder_names(args.models)
    if not args.data or not models or args.features:
        raise HistobenchError("--stress reads images: give --data and --models instead of feature files")
    console = open_terminal()
    dataset = source_from(args, args.data).load()
    reports = run_stress(
        dataset,
        models,
        Path(args.output),
        images=args.stress_images,
        seed=args.seed,
        device=args.device,
        weights=args.weights,
        progress=display(),
    )
    for report in reports:
        print_grid(stress_grid(report), console)
        console.print(f"written: {report.path}", soft_wrap=True)
    return 0


def print_tables(tables: Sequence[RobustnessTable], console: Console, *, verbose: bool = True) -> None:
    """Print one table per dataset and site column; `verbose`: with all notes."""
    from histobench.cli.compare import print_grid
    from histobench.roi.comparison.robustness_tables import robustness_grid
    from histobench.roi.plan.summary import robustness_overview

    for table in tables:
        if verbose:
            print_grid(robustness_grid(table), console)
        else:
            overview = robustness_overview(table)
            if table.reason:
                console.print(overview.dataset, style="bold", soft_wrap=True)
            else:
                print_overview(overview, console)
            for remark in overview.remarks:
                console.print(remark, soft_wrap=True)
            if overview.remarks:
                console.print()
    if tables and not verbose:
        console.print("[95% interval over groups]; * may be the best (paired tests, Holm).")
        console.print("More is better, except site AUROC (0.5: features do not show the site).")


def _encoders(given: Sequence[str]) -> tuple[dict[tuple[str, str, str], FeatureSet], list[str]]:
    """The features of each dataset, encoder and image size, and why files are left out."""
    from histobench.roi.evaluation.robustness_task import feature_files, joined_splits
    from histobench.roi.features.feature_file import load

    readable, unreadable = [], []
    for path in feature_files(given):
        try:
            readable.append((str(path), load(path)))
        except HistobenchError as error:
            unreadable.append(str(error))
    joined, left_out = joined_splits(readable)
    return joined, [*unreadable, *left_out]
