"""`histobench extract`: compute features of images and write feature files."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from histobench.cli.entry import USER_ERROR
from histobench.cli.flags import add_source_flags, positive, required, seed, source_from
from histobench.cli.terminal import Busy, open_terminal, say
from histobench.core.records import add_flags, given_flags, options_of
from histobench.roi.options import Settings

if TYPE_CHECKING:
    from histobench.core.progress import Progress
    from histobench.roi.features.shard_plan import Extraction


def extract_flags(parser: argparse.ArgumentParser) -> None:
    """The documented flags of 00-ROI_Feature_Extract.py, and a few more."""
    data = parser.add_argument_group("dataset")
    data.add_argument(
        "--dataset_split_csv",
        required=True,
        help="CSV of images, labels and splits, or a folder of class folders",
    )
    data.add_argument("--class2id_txt", help="class mapping file (default: from the labels or folder names)")
    data.add_argument(
        "--dataset_name", help="name in the feature files (default: from the file name of the CSV)"
    )
    add_source_flags(data)
    data.add_argument("--seed", type=seed, default=0, help="seed of the split (default: 0)")
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model_name",
        required=True,
        help="encoders, separated by commas; also timm:NAME, hf:OWNER/NAME, my_file.py:MyEncoder or "
        "name=my_file.py:MyEncoder",
    )
    model.add_argument(
        "--resize_size",
        type=positive,
        help="image size (default: the encoder's own; 448 in 00-ROI_Feature_Extract.py)",
    )
    model.add_argument(
        "--weights", help="checkpoint, folder of checkpoints, or table like model_weights.json"
    )
    model.add_argument(
        "--allow-revision",
        action="store_true",
        help="use weights in the hub's cache even if their revision is not the pinned one",
    )
    inference = parser.add_argument_group("inference")
    add_flags(inference, options_of(Settings))
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="run the other encoders if some are unknown or have no weights (default: start nothing)",
    )
    parser.add_argument(
        "--save_dir", default="./ROI_Features", help="output folder (default: ./ROI_Features)"
    )


def extract_command(args: argparse.Namespace) -> int:
    """Compute features of images with one or more encoders and write feature files.

    Features that were computed before come from the cache. Repeat the command to
    continue after an interruption.

    Examples:
      histobench extract --dataset_split_csv crc.csv --class2id_txt crc.txt --dataset_name CRC-100K \\
      --model_name uni_v1,virchow2 --save_dir features
      histobench extract --dataset_split_csv tiles/ --split 0.7/0.1/0.2 --model_name efficientnet-lite0
    """
    from histobench.roi.data.split import check_learnt
    from histobench.roi.encoders.registry import require_encoders
    from histobench.roi.features.feature_extraction import extract
    from histobench.roi.features.settings import EncoderRecipe

    with Busy(f"reading {args.dataset_split_csv}"):
        dataset = source_from(args, args.dataset_split_csv).load()
        check_learnt(dataset)
    recipes = [
        EncoderRecipe(name, args.resize_size, args.weights, args.allow_revision)
        for name in dict.fromkeys(required(args.model_name, "--model_name", "encoder (histobench models)"))
    ]
    reasons = {recipe.name: recipe.unresolved() for recipe in recipes}
    require_encoders(reasons, keep_going=args.keep_going)
    recipes = [recipe for recipe in recipes if not reasons[recipe.name]]
    extractions = extract(
        dataset, recipes, args.save_dir, **given_flags(args, options_of(Settings)), progress=display()
    )
    print_extractions(extractions)
    for name, why in reasons.items():
        if why:
            say(f"FAILED: {name}: {why}")
    return USER_ERROR if any(reasons.values()) else 0


def features_flags(parser: argparse.ArgumentParser) -> None:
    """One job: export."""
    jobs = parser.add_subparsers(dest="job", required=True, metavar="{export}")
    export = jobs.add_parser("export", help="write feature files as h5ad, parquet or npz")
    export.add_argument("files", nargs="+", help="feature files of one encoder (.pt), one per split")
    export.add_argument("--to", required=True, choices=["h5ad", "parquet", "npz"], help="format")
    export.add_argument("-o", "--output", help="file to write (default: beside the first, without the split)")


def features_command(args: argparse.Namespace) -> int:
    """Write feature files in a format of other tools, with names, labels, groups
    and splits; `histobench run --features` reads them again.

    Example:
      histobench features export results/features/*uni_v1*.pt --to h5ad
    """
    from pathlib import Path

    from histobench.roi.features.elsewhere import export_features
    from histobench.roi.features.feature_file import load

    files = [Path(file) for file in args.files]
    stem = files[0].stem
    for split in ("_train", "_val", "_test"):
        stem = stem.removesuffix(split)
    target = Path(args.output) if args.output else files[0].with_name(f"{stem}.{args.to}")
    say(f"written: {export_features(list(map(load, files)), target, args.to)}")
    return 0


# Progress of an extraction: a bar on a terminal, a line now and then in a log.

#: Seconds between two lines where there is no terminal.
EVERY = 10.0


def display() -> Progress:
    """A bar for a terminal, lines for anything else; both go to standard error."""
    return Bar() if sys.stderr.isatty() else Lines()


class Bar:
    """A rich progress bar with images per second and the time left."""

    def __init__(self) -> None:
        self._console = open_terminal(error=True)

    def begin(self, what: str, total: int) -> None:
        """Show a bar for `total` images, called `what`."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(what, total=total, rate="")
        self._began = time.perf_counter()
        self._done = 0
        self._bar.start()

    def advance(self, count: int) -> None:
        """`count` more images are done: move the bar and show the rate since it began."""
        self._done += count
        rate = self._done / max(time.perf_counter() - self._began, 1e-9)
        self._bar.update(self._task, advance=count, rate=f"{rate:.1f} images/s")

    def end(self) -> None:
        """Take the bar off the terminal."""
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text)


class Lines:
    """A line at the start, one every ten seconds, and one at the end."""

    def begin(self, what: str, total: int) -> None:
        """Say what is to be done."""
        self._what, self._total, self._done = what, total, 0
        self._began = self._last = time.perf_counter()
        self._first: tuple[float, int] | None = None
        self.say(f"{what}: {total} images")

    def advance(self, count: int) -> None:
        """Say how far it is, if that was long ago."""
        self._done += count
        now = time.perf_counter()
        # The first batch also starts workers, compiles and warms up: it says nothing about the others.
        began, before = self._first = self._first or (now, self._done)
        if now - self._last >= EVERY and self._done > before:
            self._last = now
            rate = (self._done - before) / (now - began)
            left = (self._total - self._done) / rate
            self.say(
                f"{self._what}: {self._done}/{self._total} images, {rate:.1f} images/s, {left:.0f} s left"
            )

    def end(self) -> None:
        """Say how long it took."""
        seconds = time.perf_counter() - self._began
        rate = self._done / max(seconds, 1e-9)
        self.say(f"{self._what}: {self._done} images in {seconds:.1f} s, {rate:.1f} images/s")

    def say(self, text: str) -> None:
        """A line."""
        say(text, error=True)


def print_extractions(extractions: Sequence[Extraction]) -> None:
    """The files that were written, one per line, and what was left out."""
    for item in extractions:
        source = "all from the cache" if not item.computed else f"{item.computed} computed"
        say(f"{item.path}  ({item.images} images, {source})")
    for name, reason in dict.fromkeys(pair for item in extractions for pair in item.skipped):
        say(f"left out: {name}: {reason}")
