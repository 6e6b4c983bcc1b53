"""Finished runs for other programs.

  --to dataset   a folder for the Hugging Face Hub: data/*.parquet and a card (README.md); nothing is uploaded
  --to inspect   logs of Inspect (*.eval) for `inspect view`; `mint table` reads them back
  --to otel      spans of OpenTelemetry, OTLP as JSON, with the names of the conventions for generative AI
  --to jsonl     one line for each turn

Examples:
  histobench mint export mint-results --to dataset -o episodes
  histobench mint export mint-results --to inspect -o logs
"""

from __future__ import annotations

import argparse
from pathlib import Path

from histobench.cli.terminal import say

FORMATS = ("dataset", "inspect", "otel", "jsonl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What, as what, and where to."""
    parser.add_argument("results", nargs="+", help="folders of runs, or results.jsonl files")
    parser.add_argument("--to", choices=FORMATS, required=True, help="the format")
    parser.add_argument("-o", "--output", required=True, help="a folder; for otel and jsonl, a file")


def run(args: argparse.Namespace) -> None:
    """Write, and say what was written."""
    from histobench.core.errors import HistobenchError
    from histobench.mint.results.stored_episode import find_result_files, read_files

    files = [file for path in args.results for file in find_result_files(path)]
    episodes = list(read_files(files))
    if not episodes:
        raise HistobenchError(f"no finished episodes in {', '.join(args.results)}")
    output, left_out = Path(args.output), 0
    if args.to == "dataset":
        from histobench.mint.exchange.dataset_folder import write_dataset_folder

        write_dataset_folder(episodes, output)
    elif args.to == "inspect":
        try:
            from histobench.mint.exchange.inspect_logs import write_inspect_logs
        except ImportError as error:
            raise HistobenchError("logs of Inspect need pip install 'histobench[inspect]'") from error
        write_inspect_logs(episodes, output)
    else:
        from histobench.mint.exchange.traces import write_spans, write_turns

        if args.to == "otel":
            left_out = write_spans(episodes, output)
        else:
            write_turns(episodes, output)
    say(f"{len(episodes) - left_out} episodes in {output}")
    if left_out:
        say(f"{left_out} episodes have no times (played by another program or an earlier version): left out")
