"""Ten times the images, ten times the work: time and memory per image from 10,000 to 1,000,000 images.

    python benchmarks/speed/growth.py                                   # every part at 10^4 and 10^5
    python benchmarks/speed/growth.py --images 100000 1000000 --only hashing planning
    python benchmarks/speed/growth.py --write                           # also into docs/benchmarks.md

Every part runs in a process of its own, on one core. Time is that of the processor (with that of loading
workers), so that it means something on a busy machine; memory is the most that was held above what the
process had after its imports. Images are 8 x 8 pixels, features are drawn, the network is left out: what is
measured is the project's own work for an image. Growth is the ratio of the cost of an image to that with a
tenth of the images; the goal is less than 1.3.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.roi.data.roi_dataset import RoiDataset, RoiImage

CLASSES = tuple(f"class {number}" for number in range(9))
SIDE, DIM = 8, 32
GOAL = 1.3

#: What a part does after it is set up, which is what is measured.
Work = Callable[[], Any]


def dataset_of(count: int, folder: Path) -> RoiDataset:
    """Images of smooth noise in one array file, four fifths of them for training, twenty to a patient."""
    rng = np.random.default_rng(0)
    file = folder / "pixels.npy"
    images = np.lib.format.open_memmap(file, "w+", np.uint8, (count, SIDE, SIDE, 3))
    for start in range(0, count, 50_000):
        size = min(50_000, count - start)
        coarse = rng.integers(0, 256, (size, 4, 4, 3), dtype=np.uint8)
        images[start : start + size] = coarse.repeat(2, axis=1).repeat(2, axis=2)
    images.flush()
    del images
    rows = [
        RoiImage(
            file / str(row), row % len(CLASSES), f"{row}.png", f"table.csv:{row + 2}", group=f"p{row // 20}"
        )
        for row in range(count)
    ]
    cut = count // 5 * 4 // 20 * 20
    return RoiDataset("growth", CLASSES, {"train": tuple(rows[:cut]), "test": tuple(rows[cut:])})


def reading(count: int, folder: Path) -> Work:
    """A CSV of so many images as typed columns; the images are not opened."""
    from histobench.roi.data.source import load_dataset

    table = folder / "table.csv"
    with table.open("w") as handle:
        handle.write("image_path,label,split,group\n")
        for row in range(count):
            split = "test" if row // 20 % 5 == 4 else "train"
            handle.write(
                f"tiles/{row % 1000:03d}/tile_{row:08d}.jpg,{row % 9},{split},patient_{row // 20:06d}\n"
            )
    return lambda: load_dataset(table)


def check(count: int, folder: Path) -> Work:
    """`histobench data check`: read every image, compare all of them."""
    from histobench.roi.data.check import check_dataset

    data = dataset_of(count, folder)
    return lambda: check_dataset(data, workers=1)


def comparing(count: int, folder: Path) -> Work:
    """Of `data check` what is about pairs of images: the search for near-duplicates."""
    from histobench.roi.data.near_duplicates import SIDE as THUMB
    from histobench.roi.data.near_duplicates import near_duplicates

    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (count, 4, 4), dtype=np.uint8)
    thumbs = coarse.repeat(THUMB // 4, axis=1).repeat(THUMB // 4, axis=2)
    parts = ["train", "train", "train", "train", "test"] * (count // 5)
    contents = [number.to_bytes(4) for number in range(count)]
    return lambda: list(near_duplicates(list(thumbs), parts, contents))


def hashing(count: int, folder: Path) -> Work:
    """The inventory of a dataset that nobody has seen before, with one loading worker."""
    from histobench.roi.features.cache.content_hashes import take_inventory
    from histobench.roi.features.loading.loader import open_pool

    data = dataset_of(count, folder)

    def work() -> None:
        with closing(open_pool(1)) as pool:
            take_inventory(data, pool, folder).close()

    return work


def hashed_before(count: int, folder: Path) -> Work:
    """The same where every hash is remembered."""
    import histobench.roi.features.cache.content_hashes as hashes

    hashes.SETTLED_NS = -(10**18)  # the files are new, and trusted all the same
    work = hashing(count, folder)
    child = os.fork()  # memory that is free again would be taken for none
    if child == 0:
        work()
        os._exit(0)
    os.waitpid(child, 0)
    return work


def planning(count: int, folder: Path) -> Work:
    """Cut into shards and units for four encoders, and written down."""
    import scale

    from histobench.roi.units.extraction import shard_units, write_images
    from histobench.work.run_folder import Unit, write_lines

    def work() -> None:
        plan = scale.plan_of(count, 4)
        begins = write_images(folder / "images.jsonl", (unit.keys for unit in plan.shards), plan.refs)
        write_lines(folder / "units.jsonl", shard_units(Unit("prepare", "set", ""), plan, begins))

    return work


def bookkeeping(count: int, folder: Path) -> Work:
    """What extraction does besides loading and the network: units, shards, the cache, feature files."""
    from histobench.roi.data.roi_dataset import SPLITS
    from histobench.roi.features.cache.content_hashes import KEY_BYTES, Contents, Keys
    from histobench.roi.features.cache.row_cache import RowCache, ShardWriter
    from histobench.roi.features.inference.shards import plan_shards, shard_size
    from histobench.roi.features.shard_plan import PlannedEncoder, problems_of, write_splits
    from histobench.roi.options import Settings

    data = dataset_of(count, folder)
    names = (image.name for split in SPLITS for image in data.splits.get(split, ()))
    hashed = b"".join(hashlib.sha256(name.encode()).digest() for name in names)
    contents = Contents(data, Keys(np.frombuffer(hashed, np.uint8).reshape(-1, KEY_BYTES)))
    description = {"encoder": "stub", "identity": {}, "transform": {}, "dim": DIM, "precision": "fp32"}
    planned = PlannedEncoder(None, "stub", "stub", "stub", 224, "", description, {}, "job", "", 0)
    rows = np.random.default_rng(0).normal(size=(shard_size(256), DIM)).astype(np.float32)

    def work() -> None:
        cache = RowCache(folder, description)
        missing = [key for key in contents.keys if key not in cache]
        writer = ShardWriter()
        for unit in plan_shards([missing], shard_size(256)):
            writer.put(cache, unit.keys, rows[: len(unit.keys)], {})
        writer.close()
        again = RowCache(folder, description)
        assert all(key in again for key in contents.keys)
        problems = problems_of(contents, {}, again.bad)
        write_splits(planned, again, contents, problems, save_dir=folder, settings=Settings())

    return work


def features_of(count: int, seed: int) -> Any:
    """Nine clouds of features, twenty images to a patient."""
    import torch

    from histobench.roi.features.feature_file import FeatureSet

    rng = np.random.default_rng(seed)
    labels: NDArray[np.int64] = np.arange(count) % len(CLASSES)
    centres = np.random.default_rng(9).normal(size=(len(CLASSES), DIM))
    rows = 0.4 * centres[labels] + rng.normal(size=(count, DIM))
    return FeatureSet(
        torch.from_numpy(rows.astype(np.float32)),
        torch.from_numpy(labels),
        tuple(f"{seed}-{row}.png" for row in range(count)),
        tuple(f"{seed}-{row // 20}" for row in range(count)),
        {"dataset": "growth", "encoder": "stub"},
    )


def evaluation(count: int, folder: Path) -> Work:
    """Linear probe, KNN and prototypes of 2,000 training images on so many test images, metrics and files."""
    return evaluate_on(features_of(2_000, 1), features_of(count, 2), folder)


def training(count: int, folder: Path) -> Work:
    """The same of so many training images on 500 test images."""
    return evaluate_on(features_of(count, 1), features_of(500, 2), folder)


def evaluate_on(train: Any, test: Any, folder: Path) -> Work:
    """Three tasks with everything that is written about them."""
    from histobench.roi.evaluation.evaluation_request import EvaluationRequest
    from histobench.roi.evaluation.evaluation_run import evaluate

    tasks = ("Linear-Probe", "KNN", "Proto")

    def work() -> None:
        request = EvaluationRequest(tasks, train, test, folder / "results", classes=CLASSES, device="cpu")
        outcome = evaluate(request)
        assert not outcome.failed, outcome.failed

    return work


def report(count: int, folder: Path) -> Work:
    """The site of two encoders with so many test images."""
    from simulated_results import SimulatedSet, write_folder

    from histobench.report.site import build_site

    data = SimulatedSet.of_size("growth", count, patients=count // 20)
    write_folder(folder / "results", encoders={"a": 2.0, "b": 1.5}, sets=[data], tasks=("Linear-Probe",))
    return lambda: build_site(folder / "results", folder / "site")


PARTS: dict[str, Callable[[int, Path], Work]] = {
    "reading a table": reading,
    "data check": check,
    "data check, near-duplicates": comparing,
    "hashing": hashing,
    "hashes remembered": hashed_before,
    "planning": planning,
    "extraction bookkeeping": bookkeeping,
    "evaluation, test images": evaluation,
    "evaluation, training images": training,
    "report": report,
}


def processor_seconds() -> float:
    """Of this process and of the workers it has ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in usage)


def memory(field: str) -> int:
    """Bytes of this process: `VmRSS` now, `VmHWM` the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def measure_here(part: str, count: int) -> dict[str, float]:
    """One part at one size; the process ends afterwards."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="histobench-growth-") as place:
        work = PARTS[part](count, Path(place))
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before, began = memory("VmRSS"), processor_seconds()
        work()
        seconds, held = processor_seconds() - began, memory("VmHWM") - before
    return {"us": 1e6 * seconds / count, "bytes": max(held, 0) / count}


def measure(part: str, count: int) -> dict[str, float]:
    """The same in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "--one", part, str(count)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(f"{part} at {count:,}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(found: dict[str, dict[int, dict[str, float]]], sizes: list[int]) -> str:
    """Per part the cost of an image at each size, and the largest growth per decade."""
    head = ["part", *(f"{size:,} images" for size in sizes), "growth of time", "of memory", "met"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 2) + "---|"]
    for part, by_size in found.items():
        cells = [
            f"{by_size[size]['us']:,.1f} us, {by_size[size]['bytes'] / 1000:,.2f} kB"
            if size in by_size
            else "not measured"
            for size in sizes
        ]
        pairs = [(a, b) for a, b in pairwise(sizes) if a in by_size and b in by_size]
        growths = [
            max(by_size[b][unit] / max(by_size[a][unit], 1e-9) for a, b in pairs)
            for unit in ("us", "bytes")
            if pairs
        ]
        cells += [f"{growth:.2f}x" for growth in growths] or ["", ""]
        met = "" if not growths else "yes" if max(growths) < GOAL else "no"
        lines.append("| " + " | ".join([part, *cells, met]) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--json", help="keep the numbers here, and measure only what is not there yet")
    parser.add_argument("--write", action="store_true", help="write the section of docs/benchmarks.md")
    parser.add_argument("--one", nargs=2, metavar=("PART", "IMAGES"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure_here(args.one[0], int(args.one[1]))))
        return 0
    kept = Path(args.json) if args.json else None
    known = json.loads(kept.read_text()) if kept and kept.exists() else {}
    for size in args.images:
        for part in args.only:
            if str(size) in known.get(part, {}):
                continue
            began = time.perf_counter()
            known.setdefault(part, {})[str(size)] = measure(part, size)
            took = time.perf_counter() - began
            print(f"{part}, {size:,}: {known[part][str(size)]} in {took:.0f} s", file=sys.stderr, flush=True)
            if kept:
                kept.write_text(json.dumps(known, indent=1))
    found = {
        part: {int(size): value for size, value in known[part].items()} for part in PARTS if part in known
    }
    sizes = sorted({size for by_size in found.values() for size in by_size})
    text = table(found, sizes)
    print(text)
    if args.write:
        from page import write_section

        intro = f"## Growth\n\n`python benchmarks/speed/growth.py`, {date.today()}, one core.\n\n"
        write_section("growth", intro + text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
