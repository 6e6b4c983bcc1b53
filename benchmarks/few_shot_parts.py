"""What it costs to play a few-shot evaluation in parts, one per setting, and to put its results together.

    python benchmarks/few_shot_parts.py [--train 20000] [--test 7180]

One thread; seconds of the processor. In one piece: the task as it is without parts, files included. A part:
what one unit does with loaded features. Together: the task again, which finds every setting played.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from workload import workload

from histobench.roi.evaluation.few_shot import play
from histobench.roi.evaluation.request import EvaluationRequest
from histobench.roi.evaluation.run import context_of, evaluate
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.options import Options
from histobench.roi.task_catalogue import FEW_SHOT
from histobench.roi.work.episodes import EPISODE_SECONDS, SCORE_SECONDS

SHOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds of the processor."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> int:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=int, default=20_000)
    parser.add_argument("--test", type=int, default=7_180)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    w = workload("easy", n_train=args.train, n_test=args.test)
    sets = [
        FeatureSet(features, labels, tuple(f"{name}-{row}" for row in range(len(labels))))
        for name, features, labels in (("a", w.train, w.train_labels), ("b", w.test, w.test_labels))
    ]
    with tempfile.TemporaryDirectory(prefix="parts-") as place:
        folder = Path(place)
        options = Options(n_way=(), n_shot=SHOTS)
        whole = EvaluationRequest(
            (FEW_SHOT,), *sets, folder / "whole", dataset="d", encoder="e", device="cpu", options=options
        )
        parts = replace(whole, results_dir=folder / "parts", played_in=folder / "played")
        one_piece = seconds_of(lambda: evaluate(whole))
        each = [
            seconds_of(lambda shot=shot: play(context_of(parts), [(w.n_classes, shot)])) for shot in SHOTS
        ]
        nbytes = sum(path.stat().st_size for path in (folder / "played").rglob("*.npz"))
        together = seconds_of(lambda: evaluate(parts))
    episode = EPISODE_SECONDS + SCORE_SECONDS * args.test * w.n_classes
    print(
        f"{args.train:,} x {args.test:,}, {w.n_classes} classes, {len(SHOTS)} settings: in one piece "
        f"{one_piece:.1f} s (its episodes are estimated at {options.n_iter * len(SHOTS) * episode:.1f} s); "
        f"parts {min(each):.1f} to {max(each):.1f} s, {sum(each):.1f} s in all, {nbytes / 1e6:.1f} MB; "
        f"together {together:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
