"""`histobench bootstrap`: bootstrap intervals as HistoROIBench computes them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.terminal import in_flags, open_terminal, print_table, with_bounds
from histobench.core.errors import HistobenchError
from histobench.core.records import option, record

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.roi.comparison.bootstrap_intervals import StoredIntervals

_SHOWN = {"balanced_accuracy": "bal. acc.", "auroc": "AUROC"}
#: Rows that are printed; all are in the summary.
_LONGEST = 60


@record
class BootstrapFlags:
    """The flags of `bootstrap`."""

    results: str = option(
        "results folder, searched with all its subfolders",
        default="",
        old=("--results_dir",),
        positional=True,
        required=True,
    )
    n_bootstrap: int = option("resamples", default=1000)
    seed: int = option("seed of the resamples", default=42, least=0, old=("--random_state",))
    method: str = option(
        "percentile, or bca: corrected for bias and skewness, slower",
        default="percentile",
        choices=("percentile", "bca"),
    )
    force: bool = option("compute again what exists", default=False)


def bootstrap_command(args: BootstrapFlags) -> int:
    """Compute bootstrap intervals of every metric of every stored task, as
    HistoROIBench does (the older method).

    Writes X_bootstrap_ci.json next to each X_complete_results.json, and
    bootstrap_ci_summary.json in the results folder. Images are resampled within
    classes, or whole patients or slides if the dataset has groups. These intervals
    are often too narrow when there are few patients
    (docs/explanation/statistics.md). All other tables and the report show the
    intervals of X_intervals.json, which this command also updates.

    Examples:
      histobench bootstrap results
      histobench bootstrap results --method bca --n-bootstrap 5000 --force
    """
    from rich.progress import track

    from histobench.roi.comparison.bootstrap_intervals import BootstrapSettings, bootstrap_runs, write_summary
    from histobench.roi.results.reader import load_runs

    folder = Path(args.results)
    settings = BootstrapSettings(args.n_bootstrap, args.seed, args.method)
    runs = load_runs(folder)
    console = open_terminal()
    steps = track(
        bootstrap_runs(runs, settings, force=args.force),
        description="resampling",
        total=len(runs),
        transient=True,
        console=console,
        disable=not console.is_terminal,
    )
    found = list(steps)
    summary = write_summary(folder, found)
    _print(found, console)
    console.print(f"summary: {summary}")
    failures = [item.failure for item in found if item.failure is not None]
    if failures:
        raise HistobenchError(f"{len(failures)} of {len(found)} runs have no intervals: {failures[0]}")
    return 0


def _print(found: list[StoredIntervals], console: Console) -> None:
    shown: dict[str, list[dict[str, str]]] = {}
    for item in found[:_LONGEST]:
        metrics = item.content["metrics"] if item.content else {}
        values = {f"{title} (95%)": _shown(metrics.get(name)) for name, title in _SHOWN.items()}
        row = {"task": item.run.task, "setting": item.run.setting, **values}
        shown.setdefault(f"{item.run.identity.encoder} on {item.run.identity.dataset}", []).append(row)
    for title, rows in shown.items():
        print_table(rows, console, title=title)
    if len(found) > _LONGEST:
        console.print(f"... and {len(found) - _LONGEST} more in the summary")
    console.print(
        "Older method: bootstrap intervals are often too narrow (84 to 90% coverage over 5 to 30 patients, "
        "see docs/explanation/statistics.md). Tables and reports show the intervals of X_intervals.json."
    )
    for reason, count in _without(found).items():
        console.print(f"no interval in {count} runs: {reason}")
    drawn = Counter(str(item.content["resampled"]) for item in found if item.content)
    what = ", ".join(f"{name} ({count} runs)" for name, count in drawn.items())
    console.print(f"resampled: {what}")
    skipped = Counter(item.skipped for item in found if item.skipped is not None)
    failed = sum(item.failure is not None for item in found)
    console.print(
        f"{len(found) - skipped.total() - failed} computed, {skipped.total()} skipped"
        + (f", {failed} failed" if failed else ""),
    )
    for why, count in skipped.items():
        console.print(in_flags(f"  {count} skipped: {why}"))


def _without(found: list[StoredIntervals]) -> Counter[str]:
    """Why shown metrics have no interval, and how many runs that concerns."""
    counts: Counter[str] = Counter()
    for item in found:
        metrics = item.content["metrics"] if item.content else {}
        entries = [metrics[name] for name in _SHOWN if metrics.get(name) is not None]
        counts.update({str(entry.get("reason")) for entry in entries if entry.get("ci_lower") is None})
    return counts


def _shown(entry: dict[str, float | None] | None) -> str:
    return "-" if entry is None else with_bounds(entry["value"], entry["ci_lower"], entry["ci_upper"])
