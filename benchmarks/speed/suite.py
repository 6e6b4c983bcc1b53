"""Minutes of a whole suite with one large encoder: 12 datasets of the sizes of the open suite nanopath.

    python benchmarks/speed/suite.py --device cuda:0                  # on a GPU; 45 GB of drawn files
    python benchmarks/speed/suite.py --scale 0.002 --encoder tiny-vl --device cpu

Tile classification (linear, KNN, few-shot), segmentation, slides (mean and attention), survival and
robustness: each part is one `histobench run` in a process of its own with empty caches, followed by one
`choose` and one `report` of everything. Images are noise, a few hundred of each kind under many names:
every file has bytes of its own, so that each is decoded, hashed and encoded. The network has random weights
and, on a GPU, computes in bf16. Sizes are those of nanopath at 33c9da9 (`benchmarking/README.md`); the
36,000 tiles of the 90 slides of UCLA Lung are an estimate, and its three folds are one split here. nanopath
computes MaskTransformer heads for segmentation, histobench a linear and a KNN readout with their
references.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

GOAL = 10.0  # minutes
PARTS = ("tiles", "segmentation", "slides", "survival", "robustness")
ENCODER = """
import torch
from histobench.roi.encoders.registry import create_encoder


def network():
    torch.manual_seed(0)
    return create_encoder({name!r}, allow_random=True)
"""


@dataclass(frozen=True)
class Made:
    """One dataset: its part, images in training and test, width and height in pixels, classes, and more."""

    name: str
    part: str
    train: int
    test: int
    size: tuple[int, int]
    classes: int
    groups: int = 0  # patients or slides; 0: every ten images are a patient
    sites: int = 0
    format: str = "JPEG"


SETS = (
    Made("bracs", "tiles", 3657, 312, (1400, 1400), 7, format="PNG"),
    Made("break_his", "tiles", 936, 196, (700, 460), 4, format="PNG"),
    Made("mhist", "tiles", 1743, 432, (224, 224), 2, format="PNG"),
    Made("pcam", "tiles", 3072, 768, (96, 96), 2, format="PNG"),
    Made("pannuke", "segmentation", 2656, 2523, (224, 224), 6, format="PNG"),
    Made("monusac", "segmentation", 139, 70, (448, 448), 5, format="PNG"),
    Made("consep", "segmentation", 18, 9, (1000, 1000), 5, format="PNG"),
    Made("ucla_lung", "slides", 24_000, 12_000, (512, 512), 2, groups=90),
    Made("surgen", "slides", 146_337, 73_168, (512, 512), 2, groups=311),
    Made("leopard_bcr", "survival", 89_088, 44_544, (512, 512), 2, groups=174),
    Made("cptac_pda_os", "survival", 87_424, 43_712, (512, 512), 2, groups=77),
    Made("camelyon", "robustness", 14_935, 7_467, (256, 256), 2, groups=20, sites=5),
    Made("tolkach_esca", "robustness", 9_200, 4_600, (256, 256), 6, groups=30, sites=3),
)
DRAWN = 128  # different pictures of a dataset


def pictures(made: Made, count: int) -> list[bytes]:
    """Blurred noise with some grain, as the bytes of image files."""
    rng = np.random.default_rng(made.train)
    width, height = made.size
    found = []
    for _ in range(count):
        coarse = rng.integers(90, 235, (max(height // 12, 2), max(width // 12, 2), 3)).astype(np.uint8)
        image = np.asarray(
            Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.int16
        )
        grain = rng.integers(-6, 7, (height, width, 1), dtype=np.int16)
        held = io.BytesIO()
        options = {"quality": 80} if made.format == "JPEG" else {"compress_level": 1}
        Image.fromarray((image + grain).clip(0, 255).astype(np.uint8)).save(held, made.format, **options)
        found.append(held.getvalue())
    return found


def write_images(job: tuple[Made, Path, list[bytes], range]) -> None:
    """Write some images; the number behind the end of the file makes each one different."""
    made, folder, drawn, numbers = job
    for number in numbers:
        (folder / f"{number}.{made.format.lower()}").write_bytes(drawn[number % len(drawn)] + b"%d" % number)


def write_set(made: Made, folder: Path, scale: float, pool: ProcessPoolExecutor) -> Path:
    """Write the images and the table of one dataset; a group is in one split and has one label."""
    images = folder / made.name / "images"
    images.mkdir(parents=True)
    rng = np.random.default_rng(len(made.name))
    train, test = (max(int(count * scale), 60) for count in (made.train, made.test))
    drawn = pictures(made, min(DRAWN, train))
    parts = [range(start, min(start + 2000, train + test)) for start in range(0, train + test, 2000)]
    list(pool.map(write_images, [(made, images, drawn, part) for part in parts]))
    groups = min(made.groups or (train + test) // 10, (train + test) // 4)
    of = np.sort(np.arange(train + test) % groups)
    first_test = groups * train // (train + test)
    head = ["image_path", "group", "split"]
    extra: Callable[[int, int], list[str]]
    if made.part == "segmentation":
        masks = folder / made.name / "masks"
        masks.mkdir()
        width, height = made.size
        for number in range(train + test):
            coarse = rng.integers(made.classes, size=(height // 28, width // 28)).astype(np.uint8)
            Image.fromarray(coarse).resize((width, height), Image.Resampling.NEAREST).save(
                masks / f"{number}.png"
            )
        codes = {str(code): "background" if code == 0 else f"type-{code}" for code in range(made.classes)}
        (folder / made.name / "classes.json").write_text(json.dumps(codes))
        head, extra = [*head, "mask_path"], lambda number, _: [f"masks/{number}.png"]
    elif made.part == "survival":
        times, events = rng.exponential(900, groups) + 1, rng.integers(2, size=groups)
        head, extra = [*head, "time", "event"], lambda _, group: [f"{times[group]:.1f}", str(events[group])]
    elif made.part == "slides":
        head, extra = [*head, "label"], lambda _, group: [f"class-{group % made.classes}"]
    else:
        head = [*head, "label", "site"]
        extra = lambda number, group: [f"class-{number % made.classes}", f"site-{group % max(made.sites, 1)}"]  # noqa: E731
    rows = [",".join(head)]
    for number, group in enumerate(of):
        split = "test" if group >= first_test else "train"
        name = f"images/{number}.{made.format.lower()}"
        rows.append(",".join([name, f"{made.name}-{group}", split, *extra(number, int(group))]))
    table = folder / made.name / f"{made.name}.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


def flags(part: str) -> list[str]:
    """What `histobench run` is told for one part."""
    return {
        "tiles": ["--tasks", "Linear-Probe,KNN,Few-shot", "--n-shot", "16", "--n-iter", "1000"],
        "segmentation": ["--target", "mask", "--tasks", "Segmentation"],
        "slides": ["--tasks", "Patient"],
        "survival": ["--target", "survival"],
        "robustness": ["--tasks", "Robustness"],
    }[part]


def command(words: list[str], environment: dict[str, str], *, show: bool) -> float:
    """Seconds of one `histobench` command; a command that fails ends the benchmark."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "histobench", *words], env=environment, capture_output=True, text=True
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(
            f"histobench {words[0]} failed ({done.returncode}):\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    if show:
        print(done.stdout[-3000:])
    return seconds


def measured(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, int, float]]:
    """Draw, run and time each part, then `choose` and `report`; the drawing does not count."""
    environment = {**os.environ, "HISTOBENCH_CACHE": str(folder / "cache")}
    encoder = args.encoder
    if encoder not in ("tiny-vl", "random-vit"):
        (folder / "own.py").write_text(ENCODER.format(name=encoder))
        encoder = f"untrained={folder}/own.py:network"
    results = str(folder / "results")
    with ProcessPoolExecutor() as pool:
        for part in args.parts:
            tables = [write_set(made, folder, args.scale, pool) for made in SETS if made.part == part]
            images = sum(table.read_text().count("\n") - 1 for table in tables)
            where = ["--results", f"{results}/{part}", "--encoders", encoder, "--device", args.device]
            where += ["--precision", "bf16" if args.device.startswith("cuda") else "fp32"]
            data = ["--data", ",".join(map(str, tables))]
            yield part, images, command(["run", *data, *flags(part), *where], environment, show=args.show)
    if "tiles" in args.parts:
        yield "choose", 0, command(["choose", f"{results}/tiles"], environment, show=args.show)
    yield (
        "report",
        0,
        command(["report", results, "--out", str(folder / "site")], environment, show=args.show),
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default="uni_v1", help="its architecture, with random weights")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the images (at least 60 of a split)"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--place", help="folder for the drawn files (default: a temporary folder)")
    parser.add_argument("--show", action="store_true", help="print what the commands print")
    args = parser.parse_args()
    total = 0.0
    print(f"{args.encoder}, {args.device}, {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory(dir=args.place) as place:
        for part, images, seconds in measured(args, Path(place)):
            total += seconds
            speed = f"{images / seconds:9,.0f} images/s" if images else ""
            print(f"{part:14}{images or '':>9}{seconds / 60:7.2f} min{speed}", flush=True)
    goal = f" (goal < {GOAL:g})" if args.scale == 1 and len(args.parts) == len(PARTS) else ""
    print(f"{'all':23}{total / 60:7.2f} min{goal}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
