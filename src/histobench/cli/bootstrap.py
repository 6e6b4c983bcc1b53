"""`histobench bootstrap`: bootstrap intervals as HistoROIBench computes them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from histobench.cli.terminal import bars, in_flags, open_terminal, say
from histobench.core.errors import HistobenchError
from histobench.core.records import option, record


@record
class BootstrapFlags:
    results: str = option(
        "results folder, searched with all its subfolders",
        default="",
        old=("--results_dir",),
        positional=True,
        required=True,
    )
    n_bootstrap: int = option("resamples", default=1000, least=2)
    seed: int = option("seed of the resamples", default=42, least=0, old=("--random_state",))
    force: bool = option("compute again what exists", default=False)


def bootstrap_command(args: BootstrapFlags) -> int:
    """Compute percentile bootstrap intervals of every metric of every stored
    task, as HistoROIBench does (the older method).

    Writes X_bootstrap_ci.json next to each X_complete_results.json, and
    bootstrap_ci_summary.json in the results folder. Images are resampled within
    classes, or whole patients or slides if the dataset has groups. These intervals
    are often too narrow when there are few patients
    (docs/explanation/statistics.md). All other tables and the report show the
    intervals of X_intervals.json, which this command also updates.

    Examples:
      histobench bootstrap results
      histobench bootstrap results --n-bootstrap 5000 --force
    """
    from histobench.roi.comparison.bootstrap_intervals import BootstrapSettings, bootstrap_runs, write_summary
    from histobench.roi.results.reader import load_runs

    folder = Path(args.results)
    settings = BootstrapSettings(args.n_bootstrap, args.seed)
    runs = load_runs(folder)
    found = []
    with bars(open_terminal(error=True)) as progress:
        for item in bootstrap_runs(runs, settings, force=args.force):
            found.append(item)
            progress("resampling", len(found), len(runs))
    skipped = Counter(item.skipped for item in found if item.skipped is not None)
    failures = [item.failure for item in found if item.failure is not None]
    say(
        f"{len(found) - skipped.total() - len(failures)} computed, {skipped.total()} skipped"
        + (f", {len(failures)} failed" if failures else "")
    )
    for why, count in skipped.items():
        say(in_flags(f"  {count} skipped: {why}"))
    say(
        "Older method: bootstrap intervals are often too narrow (84 to 90% coverage over 5 to 30 patients, "
        "see docs/explanation/statistics.md). Tables and reports show the intervals of X_intervals.json."
    )
    say(f"intervals: {write_summary(folder, found)}, and next to every result")
    if failures:
        raise HistobenchError(f"{len(failures)} of {len(found)} runs have no intervals: {failures[0]}")
    return 0
