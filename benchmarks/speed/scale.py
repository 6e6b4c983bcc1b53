"""What large plans cost: planning, lists of units, looking at outputs. Network and images are a stub.

    python benchmarks/speed/scale.py [--images 100000 1000000] [--encoders 50] [--outputs 20000]

Keys, paths and outputs are made up; what is timed is the project's own code over them: cutting a dataset into
shards and units and writing them down, reading a unit's images back, `histobench status` (the whole command)
and the outcome of a run over its outputs. Hashing images and building networks are not part of it. Seconds
are those of the processor, so that they mean something on a busy machine too.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from histobench.roi.data.image_table import ImageColumns, ImageTable
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.registry import EncoderRecipe
from histobench.roi.features.cache.content_hashes import KEY_BYTES, Contents, Keys, Refs
from histobench.roi.features.inference.shards import plan_shards, shard_size
from histobench.roi.features.shard_plan import ExtractionPlan, PlannedEncoder
from histobench.roi.plan.plan_run import outcome_of
from histobench.roi.units.extraction import read_images, shard_units, write_images
from histobench.roi.units.roi_run import RoiRun
from histobench.work.run_folder import Unit, write_lines

#: Parameters of each made-up encoder: four of them share a unit.
PARAMETERS = 300_000_000


def plan_of(images: int, encoders: int) -> ExtractionPlan:
    """A plan in which every encoder lacks every image."""
    columns = ImageColumns(Path("/data/set"))
    keys = np.empty((images, KEY_BYTES), np.uint8)
    for row in range(images):
        columns.add(row, 0, f"{row % 1000:03d}/{row}.jpg", str(row % 9), None, {})
        keys[row] = np.frombuffer(hashlib.sha256(str(row).encode()).digest(), np.uint8)
    columns.labels = columns.label_texts.codes
    table = ImageTable(columns, np.arange(images, dtype=np.int32))
    contents = Contents(RoiDataset("set", tuple(map(str, range(9))), {"train": table}), Keys(keys))
    refs = Refs(contents)
    planned = tuple(
        PlannedEncoder(
            EncoderRecipe(f"encoder-{number}"),
            f"encoder-{number}",
            f"encoder-{number}",
            f"encoder-{number}",
            224,
            "",
            {"precision": "fp16"},
            {"batch": 256, "compile": False},
            "jobs/x",
            "224 224 bicubic False",
            PARAMETERS,
        )
        for number in range(encoders)
    )
    units = plan_shards((refs.distinct for _ in range(encoders)), shard_size(256))
    return ExtractionPlan(planned, {}, tuple(units), refs, contents, {}, "cuda:0", 8)


def plan_at(images: int, encoders: int) -> dict[str, float]:
    """Seconds, memory and bytes of planning; in a process of its own, so that the memory is its own."""
    code = "import sys; sys.path.insert(0, sys.argv[3]); import scale; scale.report(*map(int, sys.argv[1:3]))"
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, str(images), str(encoders), here],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: float(value) for name, value in (item.split("=") for item in done.stdout.split())}


def report(images: int, encoders: int) -> None:
    """Plan, and print what it took."""
    with tempfile.TemporaryDirectory(prefix="scale-") as place:
        folder = Path(place)
        began = time.process_time()
        plan = plan_of(images, encoders)
        made = time.process_time()
        begins = write_images(folder / "images.jsonl", (unit.keys for unit in plan.shards), plan.refs)
        (folder / "images.keys").write_bytes(plan.contents.keys.data.data)
        units = shard_units(Unit("prepare", "set", ""), plan, begins)
        write_lines(folder / "units.jsonl", units)
        planned = time.process_time()
        middle = units[len(units) // 2]
        read_images(folder / "images.jsonl", middle.spec["begin"], middle.spec["end"])
        read = time.process_time()
        nbytes = sum(path.stat().st_size for path in folder.iterdir())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    facts = {
        "draw": made - began,
        "plan": planned - made,
        "read": read - planned,
        "units": len(units),
        "gib": peak,
        "bytes": nbytes,
    }
    print(*(f"{name}={value}" for name, value in facts.items()))


def outputs_of(count: int) -> dict[str, float]:
    """Seconds of writing so many outputs, of `status`, and of adding up what a run has done.

    Every output names two files, which are there: it is not done otherwise.
    """
    with tempfile.TemporaryDirectory(prefix="scale-") as place:
        results = Path(place)
        spec = {"preset": "uni", "label": "e"}
        units = [
            Unit(
                "evaluate", f"set-{number % 20}", f"encoder-{number % 59}", {**spec, "task": f"task-{number}"}
            )
            for number in range(count)
        ]
        folder = RoiRun.create(results, {"engine": "ray"}, units)
        shards, own = results / "cache", results / "set"
        for encoder in range(59):
            (shards / str(encoder)).mkdir(parents=True)
        files: list[tuple[Path, Path]] = []
        for number in range(count):  # each names a shard among many others, and a file of its own folder
            (own / str(number)).mkdir(parents=True)
            files.append((shards / str(number % 59) / f"{number}.bin", own / str(number) / "results.json"))
            for path in files[-1]:
                path.touch()
        began = time.process_time()
        for unit, named in zip(units, files, strict=True):
            folder.finish(unit, files=named, outcome="evaluated")
        written = time.process_time()
        command = [sys.executable, "-m", "histobench.cli.main", "status", str(results)]
        asked, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        waited, after = time.perf_counter() - asked, resource.getrusage(resource.RUSAGE_CHILDREN)
        status = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        looked = time.process_time()
        outcome_of(RoiRun(folder.path), results)
        added = time.process_time()
    return {"write": written - began, "status": status, "waited": waited, "outcome": added - looked}


def main() -> int:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--encoders", type=int, default=50)
    parser.add_argument("--outputs", type=int, default=20_000)
    args = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for images in args.images:
        facts = plan_at(images, args.encoders)
        print(
            f"{images:>10,} images x {args.encoders} encoders: planned in {facts['plan']:.1f} s (stub drawn "
            f"in {facts['draw']:.1f} s), {facts['gib']:.2f} GiB at most, {facts['units']:.0f} units, "
            f"{facts['bytes'] / 1e6:.0f} MB on disk; a unit's images read in {1000 * facts['read']:.0f} ms",
            flush=True,
        )
    took = outputs_of(args.outputs)
    print(
        f"{args.outputs:,} outputs: written in {took['write']:.1f} s, status in {took['status']:.1f} s "
        f"({took['waited']:.1f} s on the clock), outcome in {took['outcome']:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
