"""Features of efficientnet-lite0 on drawn tiles, for the workload `real`.

    python benchmarks/speed/drawn_features.py FILE [--device cuda]

Any machine gives the same features but for rounding; copy the file into the cache folder of another.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from workload import REAL_TEST, REAL_TRAIN

from histobench.core.devices import resolve_device
from histobench.core.files import atomic_path
from histobench.roi.data.demo import CLASSES, render_tile
from histobench.roi.encoders.registry import create_encoder


def tile(index: int) -> np.ndarray:
    """The pixels of the tile with that number, its class by turns."""
    return render_tile(CLASSES[index % len(CLASSES)], seed=0, index=index)


def main() -> None:
    """Draw, encode, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--device")
    args = parser.parse_args()
    device = resolve_device(args.device)
    encoder = create_encoder("efficientnet-lite0").to(device).eval()
    transform = encoder.eval_transforms
    mean, std = (
        torch.tensor(values, device=device).view(3, 1, 1) for values in (transform.mean, transform.std)
    )
    count = REAL_TRAIN + REAL_TEST
    features = []
    with ProcessPoolExecutor(os.cpu_count()) as pool, torch.inference_mode():
        for start in range(0, count, 512):
            tiles = np.stack(list(pool.map(tile, range(start, min(start + 512, count)), chunksize=16)))
            pixels = torch.from_numpy(tiles).to(device).permute(0, 3, 1, 2).float() / 255
            features.append(encoder((pixels - mean) / std).float().cpu().numpy())
            print(f"{min(start + 512, count):,} of {count:,} tiles", flush=True)
    args.file.parent.mkdir(parents=True, exist_ok=True)
    labels = (np.arange(count) % len(CLASSES)).astype(np.uint8)
    with atomic_path(args.file) as temporary, temporary.open("wb") as handle:
        np.savez(handle, features=np.concatenate(features), labels=labels)


if __name__ == "__main__":
    main()
