"""RI, MaRI and CRoMa on 20,400 x 1,024 features against the package croma, in one run, with their memory.

python benchmarks/speed/robustness.py                              # k = 61, types mixed, 6 sites
python benchmarks/speed/robustness.py --k 591 --alone              # as many neighbours as the pack; ours only
python benchmarks/speed/robustness.py --kind alike --sites 30  # features that are nearly the same
python benchmarks/speed/robustness.py --kind clustered --unequal   # half of the images from one site
python benchmarks/speed/robustness.py --images 2040                # a tenth, to try it out

Each side runs in a process of its own, so that its peak memory is its own. Seconds are by the wall clock and
by the processor; on a machine that does other things as well only the second say something.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np

IMAGES, DIMENSIONS, CLASSES, GROUPS, M = 20_400, 1_024, 4, 340, 5
KINDS = ("mixed", "clustered", "alike")


@dataclass(frozen=True)
class Setup:
    """The features to search, and how far."""

    images: int
    k: int
    kind: str
    sites: int
    unequal: bool


def made(setup: Setup) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels, sites and groups: every group has one class and one site, which all are crossed.

    mixed: classes and sites pull weakly; clustered: groups are clusters; alike: all features are nearly the
    same (cosines above .99), and every twentieth is an exact copy of another one.
    """
    draw = np.random.default_rng(0)
    group = np.arange(setup.images) % max(GROUPS * setup.images // IMAGES, CLASSES * setup.sites * 4)
    label, site = group % CLASSES, (group // CLASSES) % setup.sites
    if setup.unequal:
        moved = draw.random(group.max() + 1) < 0.5
        site = np.where(moved[group], 0, site)
    features = draw.normal(size=(setup.images, DIMENSIONS)).astype(np.float32)
    pull = {"mixed": 0.1, "clustered": 0.3, "alike": 0.1}[setup.kind]
    features += draw.normal(size=(CLASSES, DIMENSIONS)).astype(np.float32)[label] * pull
    features += draw.normal(size=(setup.sites, DIMENSIONS)).astype(np.float32)[site] * pull
    if setup.kind == "clustered":
        features += draw.normal(size=(group.max() + 1, DIMENSIONS)).astype(np.float32)[group]
    if setup.kind == "alike":
        features += 12 * draw.normal(size=DIMENSIONS).astype(np.float32)
        features[20::20] = features[1 : setup.images - 19 : 20]
    return features, label, site, group


def ours(setup: Setup) -> list[float]:
    """One search of neighbours, then the three measures."""
    from histobench.roi.robustness.indices import cross_site_margin, margin_aware_index, robustness_index
    from histobench.roi.robustness.site_neighbours import find_neighbours

    x, label, site, group = made(setup)
    near = find_neighbours(x, label, site, group, k=setup.k, m=M)
    index = robustness_index(near, label, site, k=setup.k).value
    margin_aware = margin_aware_index(near, x, label, site, k=setup.k).value
    return [index, margin_aware, cross_site_margin(near).median]


def theirs(setup: Setup) -> list[float]:
    """The three measures of croma, as its documentation calls them."""
    import croma
    import pandas as pd

    x, label, site, group = made(setup)
    manifest = pd.DataFrame(
        {
            "dataset": "d",
            "sample_id": [str(row) for row in range(setup.images)],
            "image_path": [f"{row}.png" for row in range(setup.images)],
            "label": label,
            "center": site,
            "group_id": group,
            "slide_id": group,
        }
    )
    column = {"confounder_column": "center"}
    tau = croma.MaRI.recommend_tau(x, manifest, k=setup.k, **column)
    found = [
        croma.RI.compute(x, manifest, k_candidates=[setup.k], **column),
        croma.MaRI.compute(x, manifest, k_candidates=[setup.k], tau=tau, **column),
        croma.CRoMa.compute(x, manifest, m=M, **column),
    ]
    return [_number(item) for item in found]


def _number(result: object) -> float:
    """The value that a result of croma carries, by the name it has there."""
    for name in ("value", "median", "score"):
        if hasattr(result, name):
            return float(getattr(result, name))
    return float("nan")


def _measured(side: str, setup: Setup, threads: int) -> dict[str, float]:
    """Run one side in a process of its own: seconds, peak memory in MB, values."""
    done = subprocess.run(
        [
            sys.executable,
            __file__,
            "--side",
            side,
            "--setup",
            json.dumps(asdict(setup)),
            "--threads",
            str(threads),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _run_side(side: str, setup: Setup, threads: int) -> None:
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    jobs = {"ours": ours, "theirs": theirs, "nothing": lambda setup: made(setup) and []}
    with threadpool_limits(threads):
        start, before = time.perf_counter(), time.process_time()
        values = jobs[side](setup)
        found = {
            "seconds": time.perf_counter() - start,
            "cpu": time.process_time() - before,
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "values": values,
        }
    print(json.dumps(found))


def main() -> None:
    """Both sides after one another, and the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--k", type=int, default=61)
    parser.add_argument("--kind", choices=KINDS, default="mixed")
    parser.add_argument("--sites", type=int, default=6)
    parser.add_argument("--unequal", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="without croma")
    parser.add_argument("--side", choices=("ours", "theirs", "nothing"), help=argparse.SUPPRESS)
    parser.add_argument("--setup", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        _run_side(args.side, Setup(**json.loads(args.setup)), args.threads)
        return
    setup = Setup(args.images, args.k, args.kind, args.sites, args.unequal)
    features = setup.images * DIMENSIONS * 4 / 2**20
    floor = _measured("nothing", setup, args.threads)
    sides = {"histobench": _measured("ours", setup, args.threads)}
    if not args.alone:
        sides["croma"] = _measured("theirs", setup, args.threads)
    print(f"{setup}, {DIMENSIONS:,} dimensions ({features:.0f} MB), m = {M}, {args.threads} threads")
    for name, found in sides.items():
        wall, cpu, memory = (found[key] - floor[key] for key in ("seconds", "cpu", "megabytes"))
        times = f"{name:<11} {wall:7.1f} s wall  {cpu:7.1f} s processor"
        print(f"{times}  {memory:6.0f} MB above the features  {found['values']}")
    if len(sides) == 2:
        mine, other = ({key: each[key] - floor[key] for key in ("seconds", "cpu")} for each in sides.values())
        wall, cpu = (other[key] / mine[key] for key in ("seconds", "cpu"))
        print(f"ratio {wall:.1f} by the wall clock, {cpu:.1f} by the processor")
    print("goals: ratio 5; ours < 20 s on 2 free cores, < 3 times the features in memory")


if __name__ == "__main__":
    main()
