"""`histobench cache`: list, verify or remove cached features."""

from __future__ import annotations

import sys
import time

from rich.filesize import decimal

from histobench.cli.entry import Command
from histobench.cli.terminal import Busy, print_table, say
from histobench.core.errors import HistobenchError
from histobench.core.folders import cache_dir
from histobench.core.records import option, record
from histobench.core.text import count_of

CACHE_COMMANDS = {
    "ls": Command("cache:ls", "list encoders with cached features, last used first"),
    "rm": Command("cache:rm", "remove cached features"),
    "verify": Command("cache:verify", "compare every file with its checksum"),
}


def cache_command() -> None:
    """List, verify or remove cached features.

    The cache is in HISTOBENCH_CACHE, else in the platform's cache folder (on Linux
    $XDG_CACHE_HOME/histobench or ~/.cache/histobench). Feature files in your own
    folders are not part of it. Features that are removed from the cache are
    computed again when they are needed.

    Examples:
      histobench cache ls
      histobench cache rm uni_v1 --yes
      histobench cache rm --older-than 30 --yes
      histobench cache verify
    """


@record
class NoFlags:
    """A command without flags."""


def ls_command(args: NoFlags) -> int:
    """List encoders with cached features, last used first."""
    from histobench.roi.features.cache.listing import cached_encoders

    root = cache_dir()
    entries = cached_encoders(root)
    if not entries:
        say(f"{root}: no cached features")
        return 0
    rows = [
        {
            "encoder": item.encoder,
            "size": str(item.size or "-"),
            "precision": item.precision,
            "images": str(item.images),
            "disk": decimal(item.nbytes),
            "last used": time.strftime("%Y-%m-%d %H:%M", time.localtime(item.last_used)),
            "fingerprint": item.fingerprint[:12],
            "feature sets": ", ".join(item.sets) or "-",
        }
        for item in entries
    ]
    print_table(rows, drop=("feature sets", "precision"))
    say(f"{root}: {decimal(sum(item.nbytes for item in entries))}")
    return 0


@record
class RmFlags:
    names: tuple[str, ...] = option(
        "encoder names, or the first characters of fingerprints", default=(), positional=True, metavar="NAME"
    )
    all: bool = option("remove everything", default=False)
    older_than: float | None = option(
        "remove what was not used for this many days", default=None, metavar="DAYS"
    )
    yes: bool = option("do not ask for confirmation", default=False)


def rm_command(args: RmFlags) -> int:
    """Remove cached features. They are computed again when they are needed."""
    from histobench.roi.features.cache.listing import cached_encoders, remove, select

    if not (args.names or args.all or args.older_than is not None):
        raise HistobenchError("nothing is selected: give encoder names, --older-than DAYS, or --all")
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
            say(f"  {item.encoder} ({item.images} images, {decimal(item.nbytes)})")
        if not sys.stdin.isatty():
            raise HistobenchError("add --yes to remove these")
        if input("remove these? [y/N] ").strip().lower() not in ("y", "yes"):
            say("nothing removed")
            return 0
    say(f"removed {count_of(len(chosen), 'entry')}, {decimal(remove(root, chosen))}")
    return 0


@record
class VerifyCacheFlags:
    remove: bool = option("remove damaged files", default=False)


def verify_command(args: VerifyCacheFlags) -> int:
    """Compare every cached file with its checksum."""
    from histobench.roi.features.cache.listing import cached_encoders, damaged_shards

    entries = cached_encoders(cache_dir())
    with Busy("comparing checksums"):
        damaged = damaged_shards(entries)
    for path in damaged:
        say(f"damaged: {path}" + (" (removed)" if args.remove else ""))
        if args.remove:
            path.unlink(missing_ok=True)
    if damaged and not args.remove:
        raise HistobenchError(
            f"{count_of(len(damaged), 'damaged file')}; remove with: histobench cache verify --remove"
        )
    images = sum(item.images for item in entries)
    say(f"{count_of(images, 'image')} of {count_of(len(entries), 'encoder')} verified")
    return 0
