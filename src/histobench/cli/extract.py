"""`histobench extract`: compute features of images and write feature files."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from histobench.cli.entry import USER_ERROR, Command
from histobench.cli.flags import DATA, SKIP_FAILED, WEIGHTS, out_option
from histobench.cli.terminal import Busy, open_terminal, say
from histobench.core.progress import Progress
from histobench.core.records import option, options_of, record
from histobench.roi.options import LoadOptions, Settings

_MODEL = "encoder"


@record
class ExtractFlags(LoadOptions, Settings):
    data: str = option(DATA, default="", old=("--dataset_split_csv",), required=True)
    encoders: tuple[str, ...] = option(
        "encoders; also timm:NAME, hf:OWNER/NAME, my_file.py:MyEncoder or name=my_file.py:MyEncoder",
        default=(),
        old=("--model_name", "--models"),
        metavar="NAME,...",
        required=True,
    )
    out: str = option("output folder", default="./ROI_Features", also=("-o",), old=("--save_dir",))
    size: int | None = option(
        "image size in pixels",
        default=None,
        least=1,
        old=("--resize_size",),
        default_text="the encoder's own; 448 in 00-ROI_Feature_Extract.py",
        group=_MODEL,
    )
    weights: str | None = option(WEIGHTS, default=None, metavar="PATH", group=_MODEL)
    allow_revision: bool = option(
        "use weights in the hub's cache even if their revision is not the pinned one",
        default=False,
        group=_MODEL,
    )
    skip_failed: bool = option(SKIP_FAILED, default=False, old=("--keep-going",), group=_MODEL)


def extract_command(args: ExtractFlags) -> int:
    """Compute features of images with one or more encoders and write feature files.

    Features that were computed before come from the cache. Repeat the command to
    continue after an interruption.

    Examples:
      histobench extract --data crc.csv --encoders uni_v1,virchow2 --out features
      histobench extract --data tiles/ --split 0.7/0.1/0.2 --encoders efficientnet-lite0
    """
    from histobench.roi.data.source import DatasetSource
    from histobench.roi.data.split import check_learnt
    from histobench.roi.encoders.registry import EncoderRecipe, require_encoders
    from histobench.roi.features.feature_extraction import extract

    with Busy(f"reading {args.data}"):
        dataset = DatasetSource.asked(args.data, args).load()
        check_learnt(dataset)
    recipes = [
        EncoderRecipe(name, args.size, args.weights, args.allow_revision)
        for name in dict.fromkeys(args.encoders)
    ]
    reasons = {recipe.name: recipe.unresolved() for recipe in recipes}
    require_encoders(reasons, keep_going=args.skip_failed)
    recipes = [recipe for recipe in recipes if not reasons[recipe.name]]
    settings = {each.name: getattr(args, each.name) for each in options_of(Settings)}
    extractions = extract(dataset, recipes, args.out, **settings, progress=display())
    for item in extractions:
        source = "all from the cache" if not item.computed else f"{item.computed} computed"
        say(f"{item.path}  ({item.images} images, {source})")
    for name, reason in dict.fromkeys(pair for item in extractions for pair in item.skipped):
        say(f"left out: {name}: {reason}")
    for name, why in reasons.items():
        if why:
            say(f"FAILED: {name}: {why}")
    return USER_ERROR if any(reasons.values()) else 0


@record
class ExportFlags:
    files: tuple[str, ...] = option(
        "feature files of one encoder (.pt), one per split",
        default=(),
        positional=True,
        required=True,
        metavar="FILE",
    )
    to: str = option("format", default="", choices=("h5ad", "parquet", "npz"), required=True)
    out: str | None = out_option("file to write", default_text="as the first, without the split")


FEATURES_COMMANDS = {"export": Command("extract:export", "write feature files as h5ad, parquet or npz")}


def features_command() -> None:
    """Write feature files in a format of other tools, with names, labels, groups
    and splits; `histobench run --features` reads them again.

    Example:
      histobench features export results/features/*uni_v1*.pt --to h5ad
    """


def export_command(args: ExportFlags) -> int:
    """Write the feature files of one encoder as h5ad, parquet or npz.

    Example:
      histobench features export results/features/*uni_v1*.pt --to h5ad
    """
    from histobench.roi.features.elsewhere import export_features
    from histobench.roi.features.feature_file import load

    files = [Path(file) for file in args.files]
    stem = re.sub("_(train|val|test)$", "", files[0].stem)
    target = Path(args.out) if args.out else files[0].with_name(f"{stem}.{args.to}")
    say(f"written: {export_features(list(map(load, files)), target, args.to)}")
    return 0


#: Seconds between two lines where there is no terminal.
EVERY = 10.0


def display() -> Progress:
    """A bar for a terminal, lines for anything else; both go to standard error."""
    return Bar() if sys.stderr.isatty() else Lines()


class Bar(Progress):
    """A rich progress bar with images per second and the time left."""

    def __init__(self) -> None:
        self._console = open_terminal(error=True)

    def begin(self, what: str, total: int) -> None:
        from rich import progress
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        self._bar = progress.Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        room = max(10, self._console.width - 44 - 2 * len(str(total)))  # the rest of the line comes first
        short = what if len(what) <= room else f"{what[: room - 1]}…"
        self._task = self._bar.add_task(short, total=total, rate="")
        self._began = time.perf_counter()
        self._done = 0
        self._bar.start()

    def advance(self, count: int) -> None:
        self._done += count
        rate = self._done / max(time.perf_counter() - self._began, 1e-9)
        self._bar.update(self._task, advance=count, rate=f"{rate:.1f} images/s")

    def end(self) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._console.print(text)


class Lines(Progress):
    """A line at the start, one every ten seconds, and one at the end."""

    def begin(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._began = self._last = time.perf_counter()
        self._first: tuple[float, int] | None = None
        self.say(f"{what}: {total} images")

    def advance(self, count: int) -> None:
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
        seconds = time.perf_counter() - self._began
        rate = self._done / max(seconds, 1e-9)
        self.say(f"{self._what}: {self._done} images in {seconds:.1f} s, {rate:.1f} images/s")

    def say(self, text: str) -> None:
        say(text, error=True)
