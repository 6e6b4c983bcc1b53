"""A whole benchmark from cached features: datasets x encoders x five tasks, in one process and in several.

    python benchmarks/speed/whole_benchmark.py --workers 16 1         # 20 x 20: half an hour on one core
    python benchmarks/speed/whole_benchmark.py --workers 16 1 --datasets 4 --encoders 16

Every dataset names the same tiles with labels of its own; every encoder is a file of features in which the
classes of all datasets overlap. `histobench run` is timed from the first import to the printed tables, once
for each number of workers, then again with nothing left to do. The results must be the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

TASKS = "Linear-Probe, KNN, Proto, Few-shot, Retrieval"
CLASSES = 9
#: The goals: how many times faster 16 workers are than one, and seconds of a run without work.
RATIO, FINISHED = 8.0, 3.0
#: Seconds of a small evaluation.
EVALUATED = 1.0
DATE = re.compile(rb'"\d{4}-\d\d-\d\dT[\d:+.Z-]+"')
#: What holds dates or names of the results folder in a form that is not text.
OTHER = (".parquet", ".pt", ".tmp", ".lock")


def write_plan(
    folder: Path, datasets: int, encoders: int, rows: tuple[int, int], dim: int, episodes: int
) -> Path:
    """The plan file, its tables of labels and its files of features."""
    rng = np.random.default_rng(0)
    count = sum(rows)
    names = np.array([f"tile_{number:06d}" for number in range(count)])
    labels = rng.integers(CLASSES, size=(datasets, count))
    for number, column in enumerate(labels):
        lines = ["image_path,label,split"]
        lines += [
            f"{name},{label},{'train' if place < rows[0] else 'test'}"
            for place, (name, label) in enumerate(zip(names, column, strict=True))
        ]
        (folder / f"set{number:02d}.csv").write_text("\n".join(lines))
    for number in range(encoders):
        features = rng.standard_normal((count, dim), dtype=np.float32)
        for column in labels:
            means = rng.standard_normal((CLASSES, dim), dtype=np.float32) * np.float32(0.12 + 0.01 * number)
            features += means[column]
        np.savez(folder / f"encoder{number:02d}.npz", features=features, img_names=names)
    plan = folder / "plan.yaml"
    tables = ", ".join(f"set{number:02d}.csv" for number in range(datasets))
    files = ", ".join(
        f"encoder{number:02d}={folder / f'encoder{number:02d}.npz'}" for number in range(encoders)
    )
    plan.write_text(
        f"datasets: [{tables}]\nfeatures: [{files}]\ntasks: [{TASKS}]\nn_iter: {episodes}\ndevice: cpu\n"
    )
    time.sleep(3)  # files that were changed a moment ago are looked at again
    return plan


def timed(plan: Path, results: Path, workers: int) -> tuple[float, float]:
    """Seconds of `histobench run` by the clock, and of processor time with all its processes."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(workers))
    source = str(Path(__file__).resolve().parents[2] / "src")
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "histobench.cli.main", "run", str(plan), "--results", str(results)],
        env={**os.environ, **threads, "PYTHONPATH": path, "HISTOBENCH_CACHE": str(plan.parent / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"histobench run failed with exit code {done.returncode}:\n{done.stdout[-4000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def digest_of(results: Path) -> tuple[int, str]:
    """How many files a results folder holds, and a digest of them without their dates and its own name."""
    digest, count = hashlib.sha256(), 0
    for path in sorted(results.rglob("*")):
        inside = path.relative_to(results)
        if not path.is_file() or inside.parts[0] == "work" or path.suffix in OTHER:
            continue
        content = DATE.sub(b'""', path.read_bytes()).replace(str(results).encode(), b"")
        digest.update(f"{inside.as_posix()} {len(content)} ".encode() + content)
        count += 1
    return count, digest.hexdigest()[:16]


def evaluated() -> float:
    """Seconds of `hb.evaluate` on 2,000 x 500 x 384 features, all tasks but few-shot, after imports."""
    from workload import hard

    import histobench as hb

    made = hard(dim=384, n_train=2_000, n_test=500)
    arrays = [part.numpy() for part in (made.train, made.test, made.train_labels, made.test_labels)]
    tasks = ["Linear-Probe", "KNN", "Proto", "Retrieval"]
    spent = []
    for _ in range(4):
        began = time.perf_counter()
        hb.evaluate(*arrays, tasks=tasks)
        spent.append(time.perf_counter() - began)
    return min(spent[1:])


@contextmanager
def place(keep: str | None) -> Iterator[Path]:
    """The folder of everything; removed at the end unless it was given."""
    if keep is not None:
        Path(keep).mkdir(parents=True, exist_ok=True)
        yield Path(keep).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="histobench-") as folder:
        yield Path(folder)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", nargs="+", type=int, default=[1, len(os.sched_getaffinity(0))])
    parser.add_argument("--datasets", type=int, default=20)
    parser.add_argument("--encoders", type=int, default=20)
    parser.add_argument("--train", type=int, default=2_000)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--episodes", type=int, default=100, help="few-shot episodes of each of 9 settings")
    parser.add_argument("--json", help="also write the numbers here")
    parser.add_argument("--keep", help="make everything in this folder and keep it")
    args = parser.parse_args()
    seconds = evaluated()
    print(f"hb.evaluate, 2,000 x 500 x 384, four tasks: {seconds:.2f} s (goal < {EVALUATED:g} s)", flush=True)
    size = f"{args.datasets} datasets x {args.encoders} encoders x 5 tasks"
    with place(args.keep) as folder:
        plan = write_plan(
            folder, args.datasets, args.encoders, (args.train, args.test), args.dim, args.episodes
        )
        print(f"{size}, {args.train:,} x {args.test:,} x {args.dim:,}", flush=True)
        walls, digests = {}, set()
        for workers in args.workers:
            results = folder / f"results-{workers}"
            walls[workers], cpu = timed(plan, results, workers)
            files, digest = digest_of(results)
            digests.add(digest)
            nothing = timed(plan, results, workers)
            print(
                f"{workers:3d} workers: {walls[workers]:.1f} s ({cpu:.1f} s of processor time), "
                f"{files} files; "
                f"with nothing to do: {nothing[0]:.2f} s ({nothing[1]:.2f} s of processor time; "
                f"goal < {FINISHED:g} s: {'met' if nothing[0] < FINISHED else 'missed'})",
                flush=True,
            )
        few, many = min(walls), max(walls)
        ratio = walls[few] / walls[many]
        if args.json:
            numbers = {"size": size, "fewest": few, "most": many, "ratio": ratio, "nothing_to_do": nothing[0]}
            numbers["evaluate"] = seconds
            Path(args.json).write_text(json.dumps(numbers))
        print(f"{many} workers are {ratio:.2f}x as fast as {few} (goal for 16 and 1: >= {RATIO:g}x)")
        print("same bytes" if len(digests) == 1 else "OTHER BYTES with another number of workers")
        return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
