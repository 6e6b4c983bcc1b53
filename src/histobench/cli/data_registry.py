"""Public datasets by name: the jobs `data list`, `show`, `get`, `pin` and `remove`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from histobench.cli.terminal import open_terminal, say
from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from histobench.roi.registry.entry import PublicDataset
    from histobench.roi.registry.transfer import Progress

#: The jobs of this file, in the order of the help.
JOBS = ("list", "show", "get", "pin", "remove")


def add_jobs(jobs: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[argparse.ArgumentParser]:
    """Add the jobs to `histobench data`."""
    listing = jobs.add_parser("list", help="the public datasets that histobench knows by name")
    listing.add_argument("--organ", help="only of this organ, e.g. breast")
    listing.add_argument("--licence", help="only with licences that begin so, e.g. CC0 or CC-BY-4.0")
    listing.add_argument("--site", action="store_true", help="only with the site (hospital) of every image")
    listing.add_argument("--open", action="store_true", help="only those that need no form and no account")
    show = jobs.add_parser("show", help="everything known of a public dataset, and what is not confirmed")
    get = jobs.add_parser("get", help="fetch a public dataset, check it and list it as a CSV")
    get.add_argument("--to", help="folder for it (default: HISTOBENCH_DATA, or the cache folder)")
    get.add_argument(
        "--accept-checksum",
        action="append",
        default=[],
        metavar="SHA256",
        help="take a file with this checksum (md5 or sha256) instead of the published one; repeatable, and "
        "recorded with the dataset and its results",
    )
    pin = jobs.add_parser("pin", help="ask the host for sizes and checksums, without downloading")
    remove = jobs.add_parser("remove", help="delete a fetched dataset")
    for job in (show, get, pin, remove):
        job.add_argument(
            "name", help="name of the dataset, see: histobench data list; get also takes bach@eva"
        )
    return [listing, show, get, pin, remove]


def run(args: argparse.Namespace) -> int:
    """Do what the chosen action says and print what came of it; the exit code."""
    return {"list": _list, "show": _show, "get": _get, "pin": _pin, "remove": _remove}[args.job](args)


def _list(args: argparse.Namespace) -> int:
    from histobench.roi.registry.entry import select
    from histobench.roi.registry.install import locate

    found = select(organ=args.organ, licence=args.licence, site=args.site, open_only=args.open)
    if not found:
        raise HistobenchError("no public dataset fits; leave out a filter")
    lines = [("name", "organ", "images", "classes", "size", "access", "licence")]
    for entry in found:
        images = entry.counts.get("all") or sum(entry.counts.values())
        size = entry.size_text.replace("size not published", "?")
        size = size.replace("about ", "").replace("at least ", "> ")
        lines.append(
            (
                f"{entry.name}{' *' if locate(entry.name) else ''}",
                entry.organ,
                f"{images:,}" if images else "?",
                str(len(entry.classes)),
                size,
                entry.access,
                entry.licence,
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        cells = (
            text.rjust(width) if column in (2, 3) else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        say("  ".join(cells).rstrip())
    splits = [f"{entry.name}@{split}" for entry in found for split in entry.splits]
    if splits:
        say(f"published splits: {', '.join(splits)}")
    say("* is on this machine; more about one: histobench data show NAME")
    return 0


def _show(args: argparse.Namespace) -> int:
    from histobench.roi.registry.entry import find
    from histobench.roi.registry.install import data_folder, locate

    entry, split = find(args.name)
    say(f"{entry.name}: {entry.title}")
    for word, value in _facts(entry):
        say(f"  {word:<10} {value}")
    say("files")
    for file in entry.files:
        known = f"{file.bytes:,} bytes" if file.bytes else file.size_text or "size not published"
        checksum = (
            f"md5 {file.md5}" if file.md5 else f"sha256 {file.sha256}" if file.sha256 else "no checksum"
        )
        sure = f" (confidence {file.confidence})" if file.confidence else ""
        say(f"  {file.name}: {known}, {checksum}{sure}")
    for peer in entry.splits.values():
        if split is None or peer.name == split:
            counts = ", ".join(f"{count:,} {name}" for name, count in peer.counts.items())
            checked = f", checksum {peer.md5}" if peer.md5 else ""
            say(f"{entry.name}@{peer.name}: {counts}{checked}{f'; {peer.note}' if peer.note else ''}")
    for word, lines in (("not confirmed", entry.unconfirmed), ("trap", entry.traps)):
        for line in lines:
            say(f"{word}: {line}")
    here = locate(args.name)
    if here:
        say(f"here: {here.table}")
    elif entry.access == "form":
        from histobench.roi.registry.install import by_hand

        say(by_hand(entry, data_folder() / entry.name / "downloads"))
    else:
        say(f"fetch it with: histobench data get {entry.name}   ({entry.size_text})")
    return 0


def _facts(entry: PublicDataset) -> list[tuple[str, str]]:
    pixels = entry.image.get("px")
    size = " x ".join(map(str, pixels)) if isinstance(pixels, list) else str(pixels or "not stated")
    counts = ", ".join(f"{count:,} {split}" for split, count in entry.counts.items()) or "not published"
    return [
        ("task", entry.task),
        ("organ", entry.organ),
        ("classes", ", ".join(entry.classes)),
        ("images", f"{counts}; {size} px, {entry.image.get('mpp', '?')} microns per pixel"),
        ("split", entry.official_split),
        ("group", "in the table" if entry.group or _grouped(entry) else "not published"),
        ("columns", ", ".join(entry.site_columns) or "no site"),
        ("licence", entry.licence),
        ("access", entry.access),
        ("homepage", entry.homepage),
        ("cite", entry.citation),
    ]


def _grouped(entry: PublicDataset) -> bool:
    return any("group_column" in rule or "(?P<group>" in rule.get("path", "") for rule in entry.layout)


def _get(args: argparse.Namespace) -> int:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from histobench.roi.registry.entry import find
    from histobench.roi.registry.install import get

    entry, _ = find(args.name)
    console = open_terminal(error=True)
    say(f"{entry.name}: {entry.title} ({entry.size_text}, {entry.licence})")
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        found = get(args.name, to=args.to, progress=_bars(bars), accept=args.accept_checksum)
    for note in found.notes:
        say(f"note: {note}")
    say(f"ready: {found.table}\nuse it by its name: histobench data check {found.name}")
    return 0


def _bars(bars: object) -> Progress:
    from rich.progress import Progress as Bars

    assert isinstance(bars, Bars)
    tasks: dict[str, int] = {}

    def update(name: str, have: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total)
        bars.update(tasks[name], completed=have, total=total)  # type: ignore[arg-type]

    return update


def _pin(args: argparse.Namespace) -> int:
    from histobench.roi.registry.entry import find
    from histobench.roi.registry.pin import as_yaml, pinned

    entry, _ = find(args.name)
    say(as_yaml(entry, pinned(entry)), end="")
    return 0


def _remove(args: argparse.Namespace) -> int:
    from histobench.roi.registry.install import remove

    folder, size = remove(args.name)
    say(f"removed {folder} ({size / 1e9:.2f} GB)")
    return 0
