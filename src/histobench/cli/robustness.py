"""`histobench robustness`: measure how much features depend on the site, from stored features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.entry import USER_ERROR
from histobench.cli.flags import DATA, WEIGHTS
from histobench.cli.terminal import Busy, labelled, open_terminal, print_grid, print_overview
from histobench.core.errors import HistobenchError
from histobench.core.records import option, record
from histobench.core.text import count_of
from histobench.roi.options import DataOptions
from histobench.roi.result_options import RobustnessSettings

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.roi.comparison.robustness_tables import RobustnessTable
    from histobench.roi.features.feature_file import FeatureSet

#: Exit code where an encoder or a named column failed. A column with nothing to compare is not one.
PARTLY = 1


_IMAGES = "from images (--stress)"


@record
class RobustnessFlags(DataOptions, RobustnessSettings):
    features: tuple[str, ...] = option(
        "feature files (.pt) of one or more encoders, or folders of them",
        default=(),
        positional=True,
        metavar="FEATURES",
        kw_only=True,
    )
    results: str = option(
        "results folder to write to", default="./results", also=("-o",), old=("--output",), kw_only=True
    )
    verbose: bool = option(
        "print every measure with all notes and reasons", default=False, also=("-v",), kw_only=True
    )
    stress: bool = option(
        "change stain, sharpness, compression, ... of test images and measure how features and a linear "
        "probe trained on unchanged images respond",
        default=False,
        group=_IMAGES,
        kw_only=True,
    )
    data: str | None = option(DATA, default=None, group=_IMAGES, kw_only=True)
    encoders: tuple[str, ...] = option(
        "encoders", default=(), old=("--models",), metavar="NAME,...", group=_IMAGES, kw_only=True
    )
    stress_images: int = option("test images", default=200, least=1, group=_IMAGES, kw_only=True)
    weights: str | None = option(WEIGHTS, default=None, metavar="PATH", group=_IMAGES, kw_only=True)


def robustness_command(args: RobustnessFlags) -> int:
    """Measure how much features depend on the hospital, scanner or stain instead of
    the tissue. Reads stored features; needs neither images nor a GPU.

    Feature files need a site column (site, scanner, stain, ...): see
    docs/how-to/datasets.md and docs/explanation/robustness.md.

    Examples:
      histobench robustness features/ -o results
      histobench robustness features/*uni_v1*.pt features/*virchow2*.pt --columns scanner
      histobench robustness --stress --data tiles.csv --encoders uni_v1,virchow2 -o results
    """
    if args.stress:
        return _stress(args)
    if not args.features:
        raise HistobenchError("give feature files (.pt), or --stress with --data and --encoders")
    from histobench.api.site_robustness import measured
    from histobench.core.devices import resolve_device
    from histobench.roi.comparison.robustness_tables import FILE, summarise
    from histobench.roi.evaluation.robustness_task import RobustnessOptions

    console = open_terminal()
    options = RobustnessOptions(k=args.k, device=resolve_device(args.device))
    output, written = Path(args.results), 0
    with Busy("reading features"):
        encoders, unreadable = _encoders(args.features)
    if not encoders:
        raise HistobenchError("; ".join(unreadable))
    failed = [labelled("failed", "red", reason) for reason in unreadable]
    for name, features in encoders.items():
        with Busy(f"measuring {name[1]} on {name[0]}"):
            for what, found, _ in measured(name, features, args.columns or None, options, output):
                if isinstance(found, HistobenchError):
                    failed.append(labelled("failed", "red", f"{what}: {found}"))
                else:
                    written += 1
    for line in failed:
        console.print(line)
    if written:
        with Busy("comparing encoders"):
            tables = summarise(output)
        asked = {dataset for dataset, _, _ in encoders}
        shown = [table for table in tables if table.dataset in asked]
        print_tables(shown, console, verbose=args.verbose)
        if len(shown) < len(tables):
            console.print(f"Not shown here: {count_of(len(tables) - len(shown), 'table')} of other datasets.")
        console.print(f"Details: --verbose, or {output / FILE}")
    if not written:
        return USER_ERROR
    return PARTLY if failed else 0


def _stress(args: RobustnessFlags) -> int:
    from histobench.cli.extract import display
    from histobench.roi.data.source import DatasetSource
    from histobench.roi.plan.stress import run_stress, stress_grid

    if not args.data or not args.encoders or args.features:
        raise HistobenchError("--stress reads images: give --data and --encoders instead of feature files")
    console = open_terminal()
    reports = run_stress(
        DatasetSource.asked(args.data, args).load(),
        args.encoders,
        Path(args.results),
        images=args.stress_images,
        seed=args.seed,
        device=args.device,
        weights=args.weights,
        progress=display(),
    )
    for report in reports:
        print_grid(stress_grid(report), console)
        console.print(f"written: {report.path}")
    return 0


def print_tables(tables: Sequence[RobustnessTable], console: Console, *, verbose: bool = True) -> None:
    """Print one table per dataset and site column; `verbose`: with all notes."""
    from histobench.roi.comparison.robustness_tables import robustness_grid
    from histobench.roi.plan.summary import robustness_overview

    for table in tables:
        if verbose:
            print_grid(robustness_grid(table), console)
        else:
            overview = robustness_overview(table)
            if table.reason:
                console.print(overview.dataset, style="bold")
            else:
                print_overview(overview, console)
            for remark in overview.remarks:
                console.print(remark)
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
