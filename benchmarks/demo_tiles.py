"""Synthetic tiles per second on one core, by class, beside decoding the same tiles from PNG with Pillow.

    python benchmarks/demo_tiles.py

CPU time is counted, so other work on the machine disturbs the numbers less; the best of the rounds is given.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from PIL import Image

from histobench.roi.data.demo import CLASSES, render_tile


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiles", type=int, default=60, help="tiles per class and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()

    start = time.process_time()
    for name in CLASSES:
        render_tile(name, seed=0, index=0, size=args.size)
    print(
        f"first tile of each class, with the noise fields and the nuclei: {time.process_time() - start:.2f} s"
    )

    total = 0.0
    print(f"{'class':<8}{'ms/tile':>9}{'tiles/s':>9}")
    for name in CLASSES:
        seconds = best(args.rounds, lambda name=name: [tile(name, i, args.size) for i in range(args.tiles)])
        total += seconds
        print(f"{name:<8}{1e3 * seconds / args.tiles:>9.2f}{args.tiles / seconds:>9.0f}")
    count = args.tiles * len(CLASSES)
    print(f"{'all':<8}{1e3 * total / count:>9.2f}{count / total:>9.0f}")

    files = [as_png(tile(name, i, args.size)) for name in CLASSES for i in range(10)]
    seconds = best(args.rounds, lambda: [np.asarray(Image.open(io.BytesIO(file))) for file in files])
    print(f"Pillow, PNG from memory: {len(files) / seconds:.0f} tiles/s")


def tile(name: str, index: int, size: int) -> np.ndarray:
    return render_tile(name, seed=0, index=index, size=size)


def best(rounds: int, job: Callable[[], Sequence[object]]) -> float:
    """The least CPU time of the rounds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        job()
        times.append(time.process_time() - start)
    return min(times)


def as_png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


if __name__ == "__main__":
    main()
