"""The cache of computed features: what is in it, whether it is sound, and how to make room."""

from __future__ import annotations

import argparse
import sys
import time

from histobench.cli.terminal import open_terminal, say
from histobench.core.errors import HistobenchError


def cache_flags(parser: argparse.ArgumentParser) -> None:
    """Three jobs: ls, rm, verify."""
    jobs = parser.add_subparsers(dest="job", required=True, metavar="{ls,rm,verify}")
    jobs.add_parser("ls", help="encoders with cached features, the last used first")
    rm = jobs.add_parser("rm", help="remove cached features")
    rm.add_argument("names", nargs="*", help="encoder names, or the beginnings of fingerprints")
    rm.add_argument("--all", action="store_true", help="everything")
    rm.add_argument(
        "--older-than", type=float, metavar="DAYS", help="what has not been used for so many days"
    )
    rm.add_argument("--yes", action="store_true", help="do not ask")
    verify = jobs.add_parser("verify", help="read everything and compare it with its checksum")
    verify.add_argument("--remove", action="store_true", help="remove what is damaged")


def cache_command(args: argparse.Namespace) -> int:
    """The cache of computed features: what is in it, whether it is sound, and how
    to make room.

    It is in HISTOBENCH_CACHE, else in the platform's cache folder (on Linux
    $XDG_CACHE_HOME/histobench or ~/.cache/histobench). Feature files in your own
    folders are not part of it. Features that are removed from the cache are
    computed again when they are needed.

    Examples:
      histobench cache ls
      histobench cache rm uni_v1 --yes
      histobench cache rm --older-than 30 --yes
      histobench cache verify
    """
    return {"ls": _ls, "rm": _rm, "verify": _verify}[args.job](args)


def _ls(args: argparse.Namespace) -> int:
    from rich.table import Table

    from histobench.roi.encoders.file_hash import cache_dir
    from histobench.roi.features.cache.listing import cached_encoders

    root = cache_dir()
    entries = cached_encoders(root)
    if not entries:
        say(f"{root}: no cached features")
        return 0
    table = Table(box=None, pad_edge=False)
    for column, justify in (
        ("encoder", "left"),
        ("size", "right"),
        ("precision", "left"),
        ("images", "right"),
        ("disk", "right"),
        ("last used", "left"),
        ("fingerprint", "left"),
        ("feature sets", "left"),
    ):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for item in entries:
        table.add_row(
            item.encoder,
            str(item.size or "-"),
            item.precision,
            str(item.images),
            _bytes(item.nbytes),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(item.last_used)),
            item.fingerprint[:12],
            ", ".join(item.sets) or "-",
        )
    open_terminal(width=None if sys.stdout.isatty() else 160).print(table)
    say(f"{root}: {_bytes(sum(item.nbytes for item in entries))}")
    return 0


def _rm(args: argparse.Namespace) -> int:
    from histobench.roi.encoders.file_hash import cache_dir
    from histobench.roi.features.cache.listing import cached_encoders, remove, select

    if not (args.names or args.all or args.older_than is not None):
        raise HistobenchError("say what to remove: encoder names, --older-than DAYS, or --all")
    root = cache_dir()
    entries = cached_encoders(root)
    chosen = select(entries, args.names) if args.names else entries
    if args.older_than is not None:
        limit = time.time() - args.older_than * 86400
        chosen = [item for item in chosen if item.last_used < limit]
    if not chosen:
        say("nothing to remove")
        return 0
    if not args.yes:
        for item in chosen:
            say(f"  {item.encoder} ({item.images} images, {_bytes(item.nbytes)})")
        if not sys.stdin.isatty():
            raise HistobenchError("add --yes to remove these")
        if input("remove these? [y/N] ").strip().lower() not in ("y", "yes"):
            say("nothing removed")
            return 0
    say(f"removed {len(chosen)} entries, {_bytes(remove(root, chosen))}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from histobench.roi.encoders.file_hash import cache_dir
    from histobench.roi.features.cache.listing import cached_encoders, damaged_shards

    entries = cached_encoders(cache_dir())
    damaged = damaged_shards(entries)
    for path in damaged:
        say(f"damaged: {path}" + (" (removed)" if args.remove else ""))
        if args.remove:
            path.unlink(missing_ok=True)
    if damaged and not args.remove:
        raise HistobenchError(f"{len(damaged)} damaged files; histobench cache verify --remove removes them")
    say(f"{sum(item.images for item in entries)} rows of {len(entries)} encoders are sound")
    return 0


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
