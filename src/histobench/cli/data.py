"""`histobench data`: get, check and split datasets, and write the demo dataset."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.entry import Command
from histobench.cli.flags import DATA, out_option, verbose_option
from histobench.cli.terminal import Busy, bars, in_flags, open_terminal, print_table, say
from histobench.core.errors import HistobenchError
from histobench.core.files import check_writable
from histobench.core.records import option, record
from histobench.core.text import count_of
from histobench.roi.options import DATA_GROUP, LoadOptions

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.roi.data.check import Finding, Findings
    from histobench.roi.data.roi_dataset import RoiDataset
    from histobench.roi.registry.dataset_entry import PublicDataset


DATA_COMMANDS = {
    "check": Command("data:check", "find missing files, broken images, wrong labels, leaks"),
    "split": Command("data:split", "write the split of a folder as a CSV and a class map"),
    "demo": Command("data:demo", "write the synthetic demo dataset (not real tissue)"),
    "list": Command("data:list", "list the public datasets that histobench knows by name"),
    "show": Command("data:show", "show all facts of a public dataset, also unconfirmed ones"),
    "get": Command("data:get", "download a public dataset, check it and write its CSV"),
    "remove": Command("data:remove", "delete a downloaded dataset"),
}


def data_command() -> None:
    """Get a public dataset by name, check a dataset before measuring on it, write a
    split to a file, or draw the demo dataset.

    Examples:
      histobench data list --organ breast --open
      histobench data get bach@eva
      histobench data check tiles.csv --classes classes.txt
      histobench data check tiles/ --split 0.7/0.1/0.2 --group-regex 'patient_(\\d+)'
      histobench data split tiles/ --split 0.8/0.2 -o tiles.csv
      histobench data demo demo-tiles
    """


@record
class ListFlags:
    organ: str | None = option("only datasets of this organ, such as breast", default=None)
    license: str | None = option(
        "only licenses that begin with this, such as CC0 or CC-BY-4.0", default=None, old=("--licence",)
    )
    site: bool = option("only datasets with the site of every image", default=False)
    open: bool = option("only datasets without form or account", default=False)


def list_command(args: ListFlags) -> int:
    """List the public datasets that histobench knows by name.

    Example:
      histobench data list --organ breast --open
    """
    from histobench.roi.registry.dataset_entry import select
    from histobench.roi.registry.install import locate

    found = select(organ=args.organ, license=args.license, site=args.site, open_only=args.open)
    if not found:
        raise HistobenchError("no public dataset matches; remove a filter")
    rows = []
    for entry in found:
        images = entry.counts.get("all") or sum(entry.counts.values())
        size = entry.size_text.replace("size not published", "?")
        size = size.replace("about ", "").replace("at least ", "> ")
        rows.append(
            {
                "name": entry.name,
                "here": "yes" if locate(entry.name) else "",
                "organ": entry.organ,
                "images": f"{images:,}" if images else "?",
                "classes": str(len(entry.classes)),
                "size": size,
                "access": entry.access,
                "license": entry.license,
            }
        )
    print_table(rows, drop=("license", "size"))
    splits = [f"{entry.name}@{split}" for entry in found for split in entry.splits]
    if splits:
        open_terminal().print(f"published splits: {', '.join(splits)}", soft_wrap=False)
    say("Details of one dataset: histobench data show NAME")
    return 0


@record
class NameFlags:
    name: str = option(
        "name of the dataset (histobench data list); get also accepts a split: bach@eva",
        default="",
        positional=True,
        required=True,
    )


def show_command(args: NameFlags) -> int:
    """Show all facts of a public dataset, also unconfirmed ones."""
    from histobench.roi.registry.dataset_entry import find
    from histobench.roi.registry.install import by_hand, data_folder, locate

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
        say(by_hand(entry, data_folder() / entry.name / "downloads"))
    else:
        say(f"download it with: histobench data get {entry.name}   ({entry.size_text})")
    return 0


def _facts(entry: PublicDataset) -> list[tuple[str, str]]:
    pixels = entry.image.get("px")
    size = " x ".join(map(str, pixels)) if isinstance(pixels, list) else str(pixels or "not stated")
    counts = ", ".join(f"{count:,} {split}" for split, count in entry.counts.items()) or "not published"
    grouped = entry.group or any(
        "group_column" in rule or "(?P<group>" in rule.get("path", "") for rule in entry.layout
    )
    return [
        ("task", entry.task),
        ("organ", entry.organ),
        ("classes", ", ".join(entry.classes)),
        ("images", f"{counts}; {size} px, {entry.image.get('mpp', '?')} microns per pixel"),
        ("split", entry.official_split),
        ("group", "in the table" if grouped else "not published"),
        ("columns", ", ".join(entry.site_columns) or "no site"),
        ("license", entry.license),
        ("license read in", f"{entry.facts.license}, {entry.facts.date}"),
        ("access", entry.access),
        ("homepage", entry.homepage),
        ("cite", entry.citation),
    ]


@record
class GetFlags(NameFlags):
    to: str | None = option(
        "folder to write", default=None, default_text="HISTOBENCH_DATA, or the cache folder"
    )
    accept_checksum: tuple[str, ...] = option(
        "accept a file with this checksum (md5 or sha256) instead of the published one; repeatable; "
        "recorded with the dataset and its results",
        default=(),
        metavar="SHA256",
    )


def get_command(args: GetFlags) -> int:
    """Download a public dataset, check it and write its CSV.

    Example:
      histobench data get bach@eva
    """
    from rich.progress import DownloadColumn, TimeRemainingColumn

    from histobench.roi.registry.dataset_entry import find
    from histobench.roi.registry.install import get

    entry, _ = find(args.name)
    say(f"{entry.name}: {entry.title} ({entry.size_text}, {entry.license})")
    with bars(open_terminal(error=True), DownloadColumn(), TimeRemainingColumn()) as progress:
        found = get(args.name, to=args.to, progress=progress, accept=args.accept_checksum)
    for note in found.notes:
        say(f"note: {note}")
    say(f"ready: {found.table}\nNext: histobench data check {found.name}")
    return 0


def remove_command(args: NameFlags) -> int:
    """Delete a downloaded dataset."""
    from histobench.roi.registry.install import remove

    folder, size = remove(args.name)
    say(f"removed {folder} ({size / 1e9:.2f} GB)")
    return 0


#: What it means that there are no findings of a kind.
_PASSED = {
    "row": "every row can be read",
    "split": "there are training and test images",
    "missing file": "every file exists",
    "unreadable image": "every image can be read",
    "unusual image": "every image has the size of a tissue tile",
    "label": "every label is in the class map",
    "empty class": "every class has images in every split",
    "image in two splits": "no image is in two splits (compared by pixels)",
    "near-duplicate": "no image looks like one in another split (re-saved, resized)",
    "group in two splits": "no group is in two splits",
    "double image": "no image is there twice within a split",
    "sites": "classes and sites are crossed, and every site is in the training and in the test set",
}
_NO_GROUPS = (
    "no groups (patients, slides) are known: one patient's images may be in train and in test; "
    "name them with --group-regex or --group-column"
)
_COLOURS = {"PASS": "green", "WARN": "yellow", "FAIL": "red", "NOTE": "cyan"}


@record
class SourceFlags(LoadOptions):
    data: str = option(DATA, default="", positional=True, required=True, kw_only=True)


@record
class CheckFlags(SourceFlags):
    on_bad_image: str = option(
        "missing or unreadable images: stop (an error) or skip (left out and listed)",
        default="stop",
        choices=("stop", "skip"),
    )
    show: int = option("findings to list per kind", default=20)
    verbose: bool = verbose_option("also list every check that passed")
    num_workers: int | None = option(
        "threads that read images", default=None, default_text="one per core", group=DATA_GROUP
    )


def check_command(args: CheckFlags) -> int:
    """Check a dataset before measuring on it: missing files, broken images, wrong
    labels, leaks between splits.

    Examples:
      histobench data check tiles.csv
      histobench data check tiles/ --split 0.7/0.1/0.2 --group-regex 'patient_(\\d+)'
    """
    from histobench.roi.data.check import check_dataset, drop_bad
    from histobench.roi.data.source import DatasetSource
    from histobench.roi.data.task_folders import PATHO_BENCH, PLISM, kind_of_folder

    console = open_terminal()
    with Busy(f"reading {args.data}"):
        reading = DatasetSource.asked(args.data, args).read()
    # Slides of these folders are features of another tool.
    images = kind_of_folder(Path(args.data)) not in (PATHO_BENCH, PLISM)
    with bars(open_terminal(error=True)) as progress:
        findings = check_dataset(
            reading,
            on_bad_image=args.on_bad_image,
            look_at_images=images,
            workers=args.num_workers,
            on_progress=partial(progress, "reading images"),
        )
    dataset = reading.dataset
    if args.on_bad_image == "skip":
        dataset = drop_bad(dataset, findings)
    _print_summary(console, dataset, findings)
    _print_findings(console, dataset, findings, shown=max(0, args.show), verbose=args.verbose)
    errors, warnings = len(findings.errors), len(findings.warnings)
    tail = f"{count_of(errors, 'error')}, {count_of(warnings, 'warning')}"
    console.print(f"{'FAIL' if errors else 'PASS'} {tail}", style="red" if errors else "green")
    return 2 if errors else 0


def _print_summary(console: Console, dataset: RoiDataset, findings: Findings) -> None:
    from histobench.roi.data.sites import site_table

    images = [image for members in dataset.splits.values() for image in members]
    groups = {image.group for image in images if image.group is not None}
    sizes = sorted(findings.sizes.items(), key=lambda item: (-item[1], item[0]))
    size = ", ".join(f"{width} x {height}" for (width, height), _ in sizes[:3])
    size += f" and {len(sizes) - 3} other sizes" if len(sizes) > 3 else ""
    target = dataset.target
    what = count_of(len(dataset.classes), "class")
    if target is not None:
        columns = ", ".join(target.names) if len(target.names) < 4 else f"{len(target.names)} columns"
        what = f"{target.kind} ({columns})"
    parts = [what, count_of(len(images), "image")]
    parts += [count_of(len(groups), "group")] if groups else []
    for column, values in site_table([image.sites for image in images]).items():
        parts.append(f"{column}: {len(set(values) - {''}):,}")
    parts += [f"{size} px"] if sizes else []
    console.print(f"{dataset.name}: {', '.join(parts)}")
    for note in dataset.notes:
        console.print(note)
    if not sizes:
        console.print("images: not looked at (features of another tool, or none can be read)")
    print_split_counts(dataset)


def print_split_counts(dataset: RoiDataset) -> None:
    """Print the images of every class and the groups (patients, slides) in each split."""
    from collections import Counter

    splits = [split for split in ("train", "val", "test") if split in dataset.splits]
    counts = {split: Counter(image.label for image in dataset.splits[split]) for split in splits}
    rows = [
        {"id": str(label), "class": name, **{split: str(counts[split][label]) for split in splits}}
        for label, name in enumerate(dataset.classes)
    ]
    rows.append({"id": "", "class": "all", **{split: str(counts[split].total()) for split in splits}})
    groups = {
        split: {image.group for image in dataset.splits[split] if image.group is not None} for split in splits
    }
    if any(groups.values()):
        found = {split: str(len(groups[split])) for split in splits}
        rows.append({"id": "", "class": "groups (patients, slides)", **found})
    print_table(rows, lead=2)


def _print_findings(
    console: Console, dataset: RoiDataset, findings: Findings, *, shown: int, verbose: bool
) -> None:
    from histobench.roi.data.check import KINDS

    passed = 0
    anything = any(dataset.splits.values())
    grouped = any(image.group is not None for members in dataset.splits.values() for image in members)
    sited = any(image.sites for members in dataset.splits.values() for image in members)
    for kind in KINDS:
        found = findings.of(kind)
        if kind == "group in two splits" and not grouped:
            if not findings.of("groups") and len(dataset.splits) > 1:
                _print_line(console, "NOTE", _NO_GROUPS)
        elif kind == "sites" and not sited and not found:
            continue
        elif not found and kind in _PASSED and anything:
            passed += 1
            if verbose:
                _print_line(console, "PASS", _PASSED[kind])
        for word, level in (("FAIL", "error"), ("WARN", "warning")):
            _print_kind(console, word, kind, [f for f in found if f.level == level], shown)
    if passed and not verbose:
        _print_line(console, "PASS", f"{count_of(passed, 'check')} passed (-v lists them)")


def _print_kind(console: Console, word: str, kind: str, found: Sequence[Finding], shown: int) -> None:
    if not found:
        return
    left_out = ", left out" if found[0].image is not None and found[0].level == "warning" else ""
    _print_line(console, word, f"{kind}: {len(found)}{left_out}")
    for finding in found[:shown]:
        console.print(in_flags(f"       {finding}"))
    if len(found) > shown:
        console.print(f"       ... and {len(found) - shown} more (--show {len(found)} lists all)")


def _print_line(console: Console, word: str, text: str) -> None:
    from rich.text import Text

    console.print(Text.assemble((word, _COLOURS[word]), f"   {text}"))


@record
class SplitFlags(SourceFlags):
    out: str = out_option("CSV to write, with the class map next to it", default="", required=True)


def split_command(args: SplitFlags) -> int:
    """Write the split of a dataset as a CSV, with the class map next to it.

    Example:
      histobench data split tiles/ --split 0.8/0.2 -o tiles.csv
    """
    from histobench.roi.data.source import DatasetSource, write_csv

    if args.out.lower().endswith(".txt"):
        raise HistobenchError(f"{args.out}: the class map takes this name; end the output in .csv")
    dataset = DatasetSource.asked(args.data, args).load()
    class_map = write_csv(dataset, args.out)
    counts = ", ".join(f"{len(images):,} {split}" for split, images in dataset.splits.items())
    say(f"{args.out}: {counts}\n{class_map}: {count_of(len(dataset.classes), 'class')}")
    return 0


@record
class DemoDataFlags:
    out: str = option("folder to write", default="", positional=True, required=True, metavar="FOLDER")
    per_class: int = option("training tiles per class", default=60, least=1)
    test_per_class: int | None = option(
        "test tiles per class", default=None, least=1, default_text="half of --per-class"
    )
    size: int = option("tile side in pixels", default=224)
    seed: int = option("seed", default=0, least=0)
    name: str = option("name of the files", default="synthetic-crc")
    layout: str = option("CSV layout", default="long", choices=("long", "wide"))
    sites: str | None = option(
        "add scanner and stain of each tile; confounded: one kind of scanner per class",
        default=None,
        choices=("crossed", "confounded"),
        default_text="no",
    )
    tiles_per_patient: int = option("tiles of each class from one patient, 1 to 5", default=5, least=1)


def demo_command(args: DemoDataFlags) -> int:
    """Write the synthetic demo dataset (not real tissue).

    Example:
      histobench data demo demo-tiles
    """
    from histobench.roi.data.demo import write_demo_dataset

    table = write_demo_dataset(
        check_writable(Path(args.out), "out"),
        name=args.name,
        train_per_class=args.per_class,
        test_per_class=args.test_per_class or max(1, args.per_class // 2),
        size=args.size,
        seed=args.seed,
        layout=args.layout,
        sites=args.sites or "",
        tiles_per_patient=args.tiles_per_patient,
    )
    say(f"synthetic dataset: {table}")
    say(f"Next: histobench data check {shlex.quote(str(table))}")
    return 0
