"""Random faults on a real cluster of two nodes on this machine: is anything lost, doubled or different?

A small plan runs once with `--engine local`, and then on Ray or Slurm while workers, daemons and drivers are
killed with SIGKILL, jobs are requeued, and a second driver starts. When the faults are over the plan is run
again where something is missing, as a user would, and the results must be those of the local run, byte for
byte except dates.

  python tests/cluster_faults.py --engine ray --faults 30
  python tests/cluster_faults.py --engine slurm --faults 30
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from histobench.roi.comparison.tidy_rows import read_rows
from two_nodes import LIMIT, RayCluster, SlurmCluster, command, opened, wait_for

#: Encoders that take their time, so that there is something to kill.
ENCODERS = """
import time, torch
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec


class Colour(BasePatchEncoder):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.eval_transforms = TransformSpec(resize=24, crop=24)
        self.embed_dim = 12
        self.net = torch.nn.Conv2d(3, 12, 5, stride=3)

    def forward(self, images):
        time.sleep({pause})
        return self.net(images).relu().mean(dim=(2, 3))


class Edge(Colour):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Conv2d(3, 12, 3, stride=2)
"""
DATE = re.compile(rb'"\d{4}-\d\d-\d\dT[\d:+.Z-]+"')
#: Seconds that a fault waits for something to happen to.
PATIENCE = 30.0


def write_plan(folder: Path, *, images: int, pause: float) -> Path:
    """Draw small images, write two encoders and a plan whose results go to `folder/results`."""
    rng = np.random.default_rng(images)
    (folder / "images").mkdir(parents=True)
    lines = ["image_path,label,split"]
    for number in range(images):
        label = number % 3
        pixels = rng.integers(0, 120, (20, 20, 3)) + np.array([label == 0, label == 1, label == 2]) * 90
        path = folder / "images" / f"{number}.png"
        Image.fromarray(pixels.astype(np.uint8)).save(path)
        lines.append(f"{path},{label},{'test' if number % 5 < 2 else 'train'}")
    (folder / "tiles.csv").write_text("\n".join(lines))
    own = folder / "own.py"
    own.write_text(ENCODERS.format(pause=pause))
    plan = folder / "plan.yaml"
    plan.write_text(
        f"datasets: [{folder / 'tiles.csv'}]\nencoders: ['{own}:Colour', '{own}:Edge']\n"
        f"results: {folder / 'results'}\nn_bootstrap: 20\nn_neighbors: 3\ncompile: 'off'\nnum_workers: 0\n"
        "tasks: [KNN, Few-shot]\nn_shot: [1, 2, 4]\nn_way: [2]\n"
    )
    return plan


def differences(one: Path, other: Path) -> list[str]:
    """Files that two results folders do not share, or not with the same bytes but for dates."""
    ours, theirs = _files(one), _files(other)
    found = sorted(ours.keys() ^ theirs.keys())
    for name in sorted(ours.keys() & theirs.keys()):
        if name.endswith("results.parquet"):
            tables = [
                [
                    {key: value for key, value in row.items() if key != "date"}
                    for row in read_rows(folder[name])
                ]
                for folder in (ours, theirs)
            ]
            same = tables[0] == tables[1]
        else:
            first, second = (DATE.sub(b"", folder[name].read_bytes()) for folder in (ours, theirs))
            same = first == second or name.endswith("speeds.json")  # seconds
        found += [] if same else [name]
    return found


def _files(folder: Path) -> dict[str, Path]:
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: path for name, path in found.items() if not name.startswith("work/") and path.suffix != ".tmp"
    }


def run_local(plan: Path, folder: Path) -> Path:
    """The results that all others must have."""
    environment = {**os.environ, "HISTOBENCH_CACHE": str(folder / "cache-local")}
    subprocess.run(command(plan), env=environment, check=True, capture_output=True, timeout=LIMIT)
    return (folder / "results").rename(folder / "local")


def run_through(made: RayCluster | SlurmCluster, plan: Path) -> None:
    """As a user would: run, and run again until there is nothing to be done."""
    made.submit(plan)
    wait_for(made.is_done, LIMIT, "the run does not end")


def suffer(
    made: RayCluster | SlurmCluster, plan: Path, rng: random.Random, faults: list[str]
) -> Counter[str]:
    """One run with these faults at random moments; how many of each kind hit something."""
    done: Counter[str] = Counter()
    made.submit(plan)
    for fault in faults:
        time.sleep(rng.uniform(0.2, 3.0))
        deadline = time.monotonic() + PATIENCE
        while not (hit := made.inject(fault, plan)) and not made.is_done() and time.monotonic() < deadline:
            time.sleep(0.2)  # there may be something to harm in a moment
        done[fault] += hit
    wait_for(made.is_done, LIMIT, "the run does not end")
    return done


def main() -> int:
    """Runs with three faults each, until there were as many as asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=("ray", "slurm"), required=True)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of each forward pass")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        folder = Path(place)
        plan = write_plan(folder, images=args.images, pause=args.pause)
        local = run_local(plan, folder)
        while total.total() < args.faults:
            made = opened(args.engine, folder)
            try:
                made.start()
                hit = suffer(made, plan, rng, [rng.choice(made.faults) for _ in range(3)])
                if differences(local, folder / "results"):
                    run_through(made, plan)
            finally:
                made.stop()
            total += hit
            apart = differences(local, folder / "results")
            print(f"{dict(hit)}: {'same bytes' if not apart else f'DIFFERENT: {apart}'}", flush=True)
            if apart:
                return 1
            shutil.rmtree(folder / "results")
            shutil.rmtree(folder / "cache-cluster")
            shutil.rmtree(folder / "slurm", ignore_errors=True)
    print(f"{total.total()} faults on {args.engine}: {dict(total)}; nothing lost, nothing different")
    return 0


if __name__ == "__main__":
    sys.exit(main())
