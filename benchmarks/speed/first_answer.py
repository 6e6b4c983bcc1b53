"""What a person waits for: `histobench run` from empty caches, with cached features, again, and what follows.

    python benchmarks/speed/first_answer.py --device cuda:0
    python benchmarks/speed/first_answer.py --images 300 --rounds 1

Every line is a command in a process of its own, with the seconds of every round by the clock. Images are
noise in nine colors. `import torch` is timed beside them: no command that
evaluates can be faster.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES, PATIENTS = 9, 60


def draw(folder: Path, images: int) -> Path:
    """Write the images and their table; a patient is in one split."""
    rng = np.random.default_rng(0)
    colors = rng.integers(120, 220, (CLASSES, 1, 1, 3))
    rows = ["image_path,label,group,split"]
    (folder / "tiles").mkdir()
    for i in range(images):
        kind, patient = int(rng.integers(CLASSES)), int(rng.integers(PATIENTS))
        pixels = colors[kind] + 40 * rng.standard_normal((28, 28, 3)) + 15 * rng.standard_normal(3)
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).resize((224, 224))
        image.save(folder / f"tiles/{i}.jpg", quality=90)
        rows.append(f"tiles/{i}.jpg,class-{kind},{patient},{'test' if patient % 3 == 0 else 'train'}")
    table = folder / "data.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


def main() -> int:
    """Draw, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=4500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--encoders", default="efficientnet-lite0,random-vit,tiny-vl")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--show", action="store_true", help="print what the commands print")
    args = parser.parse_args()
    failed = 0
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = draw(folder, args.images)
        for round_ in range(args.rounds):
            environment = {**os.environ, "HISTOBENCH_CACHE": str(folder / f"cache{round_}")}
            results = [str(folder / f"{name}{round_}") for name in ("first", "second")]
            run = [
                "run",
                "--data",
                str(data),
                "--encoders",
                args.encoders,
                "--device",
                args.device,
                "--results",
            ]
            for what, command in {
                "import torch": ["-c", "import torch"],
                "run, empty caches": ["-m", "histobench", *run, results[0]],
                "run, cached features": ["-m", "histobench", *run, results[1]],
                "the finished run again": ["-m", "histobench", *run, results[1]],
                "compare": ["-m", "histobench", "compare", results[1]],
                "choose": ["-m", "histobench", "choose", results[1]],
                "report": ["-m", "histobench", "report", results[1], "--out", str(folder / f"site{round_}")],
            }.items():
                began = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, *command], env=environment, capture_output=True, text=True
                )
                seconds.setdefault(what, []).append(time.perf_counter() - began)
                if done.returncode or args.show:
                    print(f"{what}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
                failed += done.returncode != 0
    print(f"{args.images:,} images, {args.encoders}, {args.device}, {os.cpu_count()} cores")
    for what, each in seconds.items():
        print(f"{what:24}{'  '.join(f'{x:6.1f}' for x in each)} s")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
