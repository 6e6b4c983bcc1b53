"""The flags that say how a dataset is read, alike in every verb that reads one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from histobench.core.records import add_flags, given_flags, options_of
from histobench.roi.options import Origin

if TYPE_CHECKING:
    from histobench.roi.data.source import DatasetSource


def add_source_flags(parser: Any) -> None:
    """Split, groups and sites; to a parser or a group of arguments."""
    add_flags(parser, options_of(Origin))


def source_from(args: argparse.Namespace, source: str) -> DatasetSource:
    """The record of what the flags say about `source`."""
    from histobench.roi.data.source import DatasetSource

    return DatasetSource(
        source,
        classes_file=args.class2id_txt,
        name=args.dataset_name,
        seed=args.seed,
        **given_flags(args, options_of(Origin)),
    )
