"""Our numbers beside published ones: difference, our interval, and whether the number was reproduced.

Only what the results folder has of published encoders, datasets and recipes can be verified; datasets go by
the names of `histobench data list` (bach@eva is BACH with the split of eva). Another number of images than
published is not compared.

Exit code: 0 if every number that can be compared agrees, 1 if one is contradicted, 2 for errors.

Example:
  histobench verify results
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from histobench.cli.terminal import open_terminal

#: Exit code where a published number is contradicted.
CONTRADICTED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The results folder."""
    parser.add_argument("results", help="results folder")
    parser.add_argument("-o", "--output", help="JSON file (default: RESULTS/verification.json)")


def run(args: argparse.Namespace) -> int:
    """Put stored values beside published ones, print the table and write it where asked; the exit code."""
    from histobench.cli.compare import print_grid
    from histobench.core.files import write_json
    from histobench.roi.comparison.grids import Grid
    from histobench.roi.published.verify import DIFFERS, NOT_COMPARABLE, REPRODUCED, Verdict, verify

    def cells(verdict: Verdict) -> tuple[str, ...]:
        ours, published = verdict.ours, verdict.published
        bounds = "" if ours.low is None or ours.high is None else f" [{ours.low:.3f}, {ours.high:.3f}]"
        said = f"{verdict.verdict} ({reasons[verdict.because]})" if verdict.because else verdict.verdict
        return (
            published.dataset,
            published.encoder,
            f"{published.task} {published.setting} {published.metric}".replace("  ", " "),
            f"{published.value:.3f}",
            f"{ours.value:.3f}{bounds}",
            f"{verdict.difference:+.3f}",
            said,
        )

    console = open_terminal()
    verdicts = verify(args.results)
    if not verdicts:
        told = "has no result of an encoder and dataset with published numbers"
        console.print(f"{args.results} {told}", soft_wrap=True)
        return 0
    # A reason is a sentence; in the table it would be cut.
    reasons = {
        because: number
        for number, because in enumerate(dict.fromkeys(v.because for v in verdicts if v.because), start=1)
    }
    notes = [f"({number}) {because}" for because, number in reasons.items()]
    notes += list(dict.fromkeys(f"{v.published.source}: {v.published.url}" for v in verdicts))
    notes += dict.fromkeys(f"not confirmed: {v.published.unsure}" for v in verdicts if v.published.unsure)
    notes += dict.fromkeys(f"known difference: {v.published.known}" for v in verdicts if v.published.known)
    notes += dict.fromkeys(
        f"{v.ours.encoder} on {v.ours.dataset}: {text}" for v in verdicts for text in v.ours.caveats
    )
    header = ("dataset", "encoder", "what", "published", "ours", "difference", "verdict")
    print_grid(Grid("published and measured", header, tuple(map(cells, verdicts)), tuple(notes)), console)
    path = Path(args.output or Path(args.results) / "verification.json")
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
    counts = {
        said: sum(verdict.verdict == said for verdict in verdicts)
        for said in (REPRODUCED, DIFFERS, NOT_COMPARABLE)
    }
    console.print(", ".join(f"{count} {said}" for said, count in counts.items()), soft_wrap=True)
    console.print(f"written: {path}", soft_wrap=True)
    return CONTRADICTED if counts[DIFFERS] else 0
