"""The flags that say how a dataset is read, alike in every verb that reads one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from histobench.roi.data.source import DatasetSource


def add_source_flags(parser: Any) -> None:
    """Split, groups and sites; to a parser or a group of arguments."""
    parser.add_argument("--split", help="shares of train/val/test where the data has none, e.g. 0.7/0.1/0.2")
    parser.add_argument("--group-regex", help="finds the patient or slide in a path; groups are not split up")
    parser.add_argument("--group-column", help="column of the CSV with the patient or slide (default: group)")
    parser.add_argument(
        "--site-regex",
        help="finds hospital, scanner or stain in a path; named groups, as (?P<scanner>...), are the columns",
    )
    parser.add_argument(
        "--site-column",
        action="append",
        metavar="NAME",
        help="a further column of the CSV with a site (site, scanner, stain, hospital, ... are found alone)",
    )


def source_from(args: argparse.Namespace, source: str) -> DatasetSource:
    """The record of what the flags say about `source`."""
    from histobench.roi.data.source import DatasetSource

    return DatasetSource(
        source,
        classes_file=args.class2id_txt,
        name=args.dataset_name,
        split=args.split,
        group_regex=args.group_regex,
        group_column=args.group_column,
        site_regex=args.site_regex,
        site_columns=tuple(args.site_column or ()),
        seed=args.seed,
    )
