"""RI, MaRI and CRoMa on 20,400 x 1,024 features against the package croma, in one run, with their memory.

python benchmarks/robustness.py                    # 2 threads
python benchmarks/robustness.py --images 2040      # a tenth, to try it out

Each side runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

IMAGES, DIMENSIONS, CLASSES, SITES, GROUPS, K, M = 20_400, 1_024, 4, 6, 340, 61, 5


def made(images: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels, sites and groups: every group has one class and one site, which all are crossed."""
    draw = np.random.default_rng(0)
    group = np.arange(images) % max(GROUPS * images // IMAGES, CLASSES * SITES * 4)
    label, site = group % CLASSES, (group // CLASSES) % SITES
    features = draw.normal(size=(images, DIMENSIONS)).astype(np.float32)
    features += draw.normal(size=(CLASSES, DIMENSIONS)).astype(np.float32)[label] * 0.5
    features += draw.normal(size=(SITES, DIMENSIONS)).astype(np.float32)[site] * 0.5
    return features, label, site, group


def ours(images: int) -> list[float]:
    """One search of neighbours, then the three measures."""
    from histobench.roi.robustness.indices import cross_site_margin, margin_aware_index, robustness_index
    from histobench.roi.robustness.neighbours import find_neighbours

    x, label, site, group = made(images)
    near = find_neighbours(x, label, site, group, k=K, m=M)
    index = robustness_index(near, label, site, k=K).value
    margin_aware = margin_aware_index(near, x, label, site, k=K).value
    return [index, margin_aware, cross_site_margin(near).median]


def theirs(images: int) -> list[float]:
    """The three measures of croma, as its documentation calls them."""
    import croma
    import pandas as pd

    x, label, site, group = made(images)
    manifest = pd.DataFrame(
        {
            "dataset": "d",
            "sample_id": [str(row) for row in range(images)],
            "image_path": [f"{row}.png" for row in range(images)],
            "label": label,
            "center": site,
            "group_id": group,
            "slide_id": group,
        }
    )
    column = {"confounder_column": "center"}
    tau = croma.MaRI.recommend_tau(x, manifest, k=K, **column)
    found = [
        croma.RI.compute(x, manifest, k_candidates=[K], **column),
        croma.MaRI.compute(x, manifest, k_candidates=[K], tau=tau, **column),
        croma.CRoMa.compute(x, manifest, m=M, **column),
    ]
    return [_number(item) for item in found]


def _number(result: object) -> float:
    """The value that a result of croma carries, by the name it has there."""
    for name in ("value", "median", "score"):
        if hasattr(result, name):
            return float(getattr(result, name))
    return float("nan")


def _measured(side: str, images: int) -> dict[str, float]:
    """Run one side in a process of its own: seconds, peak memory in MB, values."""
    done = subprocess.run(
        [sys.executable, __file__, "--side", side, "--images", str(images)],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Both sides after one another, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=("ours", "theirs", "nothing"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        import torch

        torch.set_num_threads(args.threads)
        jobs = {"ours": ours, "theirs": theirs, "nothing": lambda images: made(images) and []}
        start = time.perf_counter()
        values = jobs[args.side](args.images)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": time.perf_counter() - start, "megabytes": peak, "values": values}))
        return
    features = args.images * DIMENSIONS * 4 / 2**20
    floor = _measured("nothing", args.images)["megabytes"]
    mine, other = _measured("ours", args.images), _measured("theirs", args.images)
    print(f"{args.images:,} x {DIMENSIONS:,} features ({features:.0f} MB), k = {K}, m = {M}")
    for name, found in (("histobench", mine), ("croma", other)):
        print(
            f"{name:<11} {found['seconds']:8.1f} s   {found['megabytes'] - floor:8.0f} MB above the features"
            f"   {found['values']}"
        )
    print(f"ratio {other['seconds'] / mine['seconds']:.1f}; goals: 5, and ours < 20 s on 2 free cores")


if __name__ == "__main__":
    main()
