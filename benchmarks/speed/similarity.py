"""How long the CKA of many encoders on the same images takes.

python benchmarks/speed/similarity.py --encoders 20 --images 100000 --dimension 1024 --measures cka
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from histobench.roi.comparison.similarity import similarity


def main() -> None:
    """Draw features, measure, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoders", type=int, default=20)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=1024)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--measures", nargs="+", default=["cka"])
    chosen = parser.parse_args()
    draw = np.random.default_rng(0)
    shape = (chosen.images, chosen.dimension)
    shared = draw.standard_normal(shape, dtype=np.float32)
    features = {
        f"encoder-{index}": shared + draw.standard_normal(shape, dtype=np.float32)
        for index in range(chosen.encoders)
    }
    groups = [f"p{number}" for number in draw.integers(chosen.groups, size=chosen.images)]
    start = time.perf_counter()
    found = similarity(features, groups=groups, measures=chosen.measures)
    seconds = time.perf_counter() - start
    value = found[0].value
    print(
        f"{chosen.encoders} encoders x {chosen.images} images x {chosen.dimension}, "
        f"{', '.join(chosen.measures)}, {torch.get_num_threads()} threads: {seconds:.1f} s "
        f"(first pair: {value:.3f}, expected for CKA about 0.25 to 0.5)"
    )


if __name__ == "__main__":
    main()
