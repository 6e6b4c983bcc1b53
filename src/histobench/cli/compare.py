"""`histobench compare`, `choose`, `similarity`, `power` and `verify`: what stored results show."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.flags import out_option, verbose_option
from histobench.cli.terminal import (
    Busy,
    labelled,
    open_terminal,
    print_answer,
    print_grid,
    print_overview,
    say,
    with_bounds,
)
from histobench.core.files import without_nan, write_json
from histobench.core.records import option, record
from histobench.roi.result_options import (
    FILES,
    ChooseOptions,
    CompareOptions,
    PowerOptions,
    ReadsResults,
    SimilarityOptions,
)
from histobench.roi.task_catalogue import FINE_TUNE

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.roi.comparison.comparison import Comparison


#: A matrix of more encoders than this does not fit a terminal; it is in the files.
_WIDEST_MATRIX = 8


@record
class CompareFlags(ReadsResults, CompareOptions):
    out: str | None = out_option("folder for the files", default_text="RESULTS/comparison", group=FILES)
    verbose: bool = verbose_option("print all tables: pairs, wins, chances, every note", group=FILES)


def compare_command(args: CompareFlags) -> int:
    """Rank encoders by one metric and show which differences are real.

    Prints values with intervals, the possible ranks of each encoder, the difference
    to the best (with intervals that hold for all pairs at once), which encoders may
    be the best, and a selection-corrected estimate for the winner. With several
    datasets also mean ranks with Friedman's test. --verbose adds all pairs, wins,
    ties and losses, and the chance that one encoder is better than another. --task
    Fine-tune also shows whether fine-tuning changes the ranking. Writes
    CSV, Markdown, LaTeX and JSON. Only runs on the same test images are compared.

    Examples:
      histobench compare results
      histobench compare results --metric auroc --task KNN
      histobench compare results --task Few-shot --setting 9way_16shot -o tables
    """
    from histobench.roi.comparison.comparison_files import write_comparison
    from histobench.roi.comparison.grids import grids
    from histobench.roi.comparison.splits_compared import compare_results, split_grid, write_split_tables
    from histobench.roi.options import LEAVE_ONE_GROUP_OUT
    from histobench.roi.results.layout import SPLITS

    console = open_terminal()
    folder = Path(args.out or Path(args.results) / "comparison")
    with Busy("comparing runs"):
        tables, comparison = compare_results(args.results, args)
    if tables:
        written = write_split_tables(tables, folder)
        for table in tables:
            print_grid(split_grid(table, digits=3), console)
        console.print(f"Files: {folder}/{{{', '.join(path.name for path in written)}}}")
    if comparison is None:
        return told_of_damage(Path(args.results))
    folder = folder / LEAVE_ONE_GROUP_OUT if args.splits else folder
    files = write_comparison(comparison, folder)
    if args.verbose:
        for grid in grids(comparison, digits=3):
            if len(grid.header) <= _WIDEST_MATRIX + 1:
                print_grid(grid, console)
    else:
        _print_short(comparison, console)
    if comparison.task == FINE_TUNE and not args.splits:
        if args.setting is None:
            console.print(f"Setting: {comparison.setting} (--setting chooses another)")
        _print_shifts(args, folder, console)
    if all(len(table.entries) < 2 for table in comparison.tables):
        console.print(labelled("one encoder only:", "yellow", "there is nothing to compare it with"))
    if not args.splits and next(Path(args.results).rglob(SPLITS), None):
        console.print("This is one test set; --splits compares over the repeated splits.")
    more = "" if args.verbose else " (--verbose prints all tables)"
    console.print(f"Files: {files[0].parent}/{files[0].stem}.*{more}")
    return told_of_damage(Path(args.results))


def _print_shifts(args: CompareFlags, folder: Path, console: Console) -> None:
    """Frozen against adapted networks, and what fine-tuning does to the ranking."""
    from histobench.roi.comparison.ranking_shift import ranking_shifts, shift_grid
    from histobench.roi.results.reader import load_runs

    shifts = ranking_shifts(load_runs(args.results), args)
    for shift in shifts:
        print_grid(shift_grid(shift), console)
    write_json(folder / "ranking_shift.json", {"datasets": [asdict(shift) for shift in shifts]})


def told_of_damage(results: Path) -> int:
    """Print which files of finished tasks are damaged; the exit code."""
    from histobench.roi.evaluation.evaluation_request import damaged_results

    damaged = damaged_results(results)
    for path in damaged:
        say(f"damaged or removed: {path}; its task may be missing above: repeat `histobench run`")
    return 2 if damaged else 0


def _print_short(comparison: Comparison, console: Console) -> None:
    """One screen: the ranked table of one dataset, or encoders x datasets and the ranking over them."""
    from histobench.roi.comparison.answer import answer, evidence_of
    from histobench.roi.comparison.grids import ranked_grids, ranking_grid
    from histobench.roi.plan.summary import datasets_overview

    if len(comparison.tables) == 1:
        for grid in ranked_grids(comparison, comparison.tables[0], digits=3):
            print_grid(grid, console)
        return
    print_overview(datasets_overview(comparison), console)
    if comparison.ranking is not None:
        print_grid(ranking_grid(comparison.ranking, comparison.alpha, digits=3), console)
    level = f"{100 * (1 - comparison.alpha):g}%"
    lower = "; lower is better" if comparison.lower_is_better else ""
    tested = any(table.standings is not None for table in comparison.tables)
    marks = "; * may be the best" if tested else ""
    console.print(f"Value [{level} interval]{marks}{lower}.")
    if tested:
        console.print("Corrected for all pairs of encoders within a dataset, not for the datasets.")
    task, setting = comparison.task, comparison.setting
    found = answer(evidence_of(comparison), task=task, metric=comparison.metric, setting=setting)
    print_answer(found.text, console)


@record
class PowerFlags(ReadsResults, PowerOptions):
    json: bool = option("print the numbers as JSON", default=False, group=FILES)


def power_command(args: PowerFlags) -> int:
    """Compute how many test images (or patients) are needed to detect a difference
    between two encoders.

    The noise of the difference is estimated from the stored predictions. For datasets
    with groups (patients, slides) the answer is a number of groups.

    Examples:
      histobench power results --encoders uni_v1,resnet50 --delta 0.02
      histobench power results --encoders uni_v1,resnet50 --metric accuracy --delta 0.01 --power 0.9
    """
    from histobench.roi.comparison.power_of_runs import in_words, power_of_results

    plans = power_of_results(args.results, args)
    if args.json:
        say(json.dumps(without_nan([asdict(plan) for plan in plans])[0], indent=2, allow_nan=False))
        return 0
    console = open_terminal()
    for plan in plans:
        console.print(*in_words(plan), sep="\n  ")
    return 0


#: Exit codes where a published number is contradicted, and where there was none to compare with.
CONTRADICTED = 1
NOTHING_COMPARED = 3


@record
class VerifyFlags(ReadsResults):
    out: str | None = out_option("JSON file", default_text="RESULTS/verification.json")


def verify_command(args: VerifyFlags) -> int:
    """Compare stored results with published ones: difference, interval, and whether
    the published number was reproduced.

    Only published combinations of encoder, dataset and recipe can be verified.
    Datasets need the names of `histobench data list` (bach@eva is BACH with the
    split of eva) and the published number of images.

    Exit code: 0 if every number that can be compared agrees, 1 if one is
    contradicted, 2 for errors, 3 if nothing could be compared.

    Example:
      histobench verify results
    """
    from histobench.roi.comparison.grids import Grid
    from histobench.roi.published.verify import DIFFERS, NOT_COMPARABLE, REPRODUCED, Verification, verify

    def cells(verdict: Verification) -> tuple[str, ...]:
        ours, published = verdict.ours, verdict.published
        return (
            published.dataset,
            published.encoder,
            f"{published.task} {published.setting} {published.metric}".replace("  ", " "),
            f"{published.value:.3f}",
            with_bounds(ours.value, ours.low, ours.high),
            f"{verdict.difference:+.3f}",
            f"{verdict.verdict} ({reasons[verdict.because]})" if verdict.because else verdict.verdict,
        )

    console = open_terminal()
    verdicts = verify(args.results)
    if not verdicts:
        console.print(f"{args.results} has no result of an encoder and dataset with published numbers")
        return NOTHING_COMPARED
    # A reason is a sentence; in the table it would be cut.
    reasons = {
        because: number
        for number, because in enumerate(dict.fromkeys(v.because for v in verdicts if v.because), start=1)
    }
    notes = [f"({number}) {because}" for because, number in reasons.items()]
    notes += dict.fromkeys(f"compared on {v.compared_on}" for v in verdicts)
    notes += dict.fromkeys(f"{v.published.source}: {v.published.url}" for v in verdicts)
    notes += dict.fromkeys(f"not confirmed: {v.published.unsure}" for v in verdicts if v.published.unsure)
    notes += dict.fromkeys(f"known difference: {v.published.known}" for v in verdicts if v.published.known)
    notes += dict.fromkeys(
        f"{v.ours.encoder} on {v.ours.dataset}: {text}" for v in verdicts for text in v.ours.caveats
    )
    header = ("dataset", "encoder", "what", "published", "ours", "difference", "verdict")
    print_grid(Grid("published and measured", header, tuple(map(cells, verdicts)), tuple(notes)), console)
    path = Path(args.out or Path(args.results) / "verification.json")
    rows = [
        {
            "published": asdict(verdict.published),
            "ours": {**asdict(verdict.ours), "path": verdict.ours.path.as_posix()},
            "difference": verdict.difference,
            "verdict": verdict.verdict,
            "because": verdict.because,
        }
        for verdict in verdicts
    ]
    write_json(path, {"verdicts": rows})
    counts = Counter(verdict.verdict for verdict in verdicts)
    console.print(", ".join(f"{counts[each]} {each}" for each in (REPRODUCED, DIFFERS, NOT_COMPARABLE)))
    console.print(f"written: {path}")
    if counts[DIFFERS]:
        return CONTRADICTED
    return 0 if counts[REPRODUCED] else NOTHING_COMPARED


@record
class ChooseFlags(ReadsResults, ChooseOptions):
    json: bool = option("print everything as JSON; write no file", default=False, group=FILES)
    out: str | None = out_option(
        "JSON file", default_text="RESULTS/choice.json, which the report shows", group=FILES
    )


def choose_command(args: ChooseFlags) -> int:
    """List the encoders of a results folder that meet your conditions, with the
    evidence for each, and a paragraph for a proposal.

    A single encoder is named only where the data show it: on every dataset, after
    correction for all pairs.

    Example:
      histobench choose results --license commercial --max-params 400M --min-robustness 0.8
    """
    from histobench.roi.comparison.choice import CHOICE_FILE, choice_grid, choose

    choice = choose(Path(args.results), args)
    if args.json:
        say(json.dumps(asdict(choice), indent=2))
        return 0
    console = open_terminal()
    if choice.candidates:
        print_grid(choice_grid(choice), console)
    console.print(choice.paragraph, soft_wrap=False)
    path = Path(args.out or Path(args.results) / CHOICE_FILE)
    write_json(path, asdict(choice))
    console.print(f"written: {path}")
    return 0


@record
class SimilarityFlags(ReadsResults, SimilarityOptions):
    out: str | None = out_option("JSON file", default_text="RESULTS/similarity.json, which the report shows")


def similarity_command(args: SimilarityFlags) -> int:
    """Measure how alike encoders are on the test images: debiased linear CKA, the
    share of nearest neighbors in common, and whether they misclassify the same
    images (Cohen's kappa of the errors), with 95% intervals over groups.

    Example:
      histobench similarity results
    """
    from histobench.roi.comparison.similarity import similarity_of_results
    from histobench.roi.comparison.similarity_table import SIMILARITY_FILE, similarity_grid

    found = similarity_of_results(Path(args.results), args)
    console = open_terminal()
    for grid in similarity_grid(found):
        print_grid(grid, console)
    path = Path(args.out or Path(args.results) / SIMILARITY_FILE)
    write_json(path, {"similarity": [asdict(each) for each in found]})
    console.print(f"written: {path}")
    return 0
