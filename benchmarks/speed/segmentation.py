"""The task Segmentation with a network of random weights: seconds, images per second and peak memory.

usage: python benchmarks/speed/segmentation.py [--encoder uni_v1] [--images 10000] [--size 224]
       [--token-store 20] [--device cuda:0]

Images and masks are copies of 54 drawn tiles; four fifths are training images. The time is that of one
`hb.run`: three networks (the encoder, its random twin, mean colors), both readouts, metrics and files.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import torch

import histobench as hb
from histobench.roi.data.demo_masks import draw_mask_tiles

ENCODER = """
from histobench.roi.encoders.registry import create_encoder


def network():
    return create_encoder({name!r}, allow_random=True)
"""


def write_data(folder: Path, n_images: int, size: int) -> Path:
    """Write a table of links to a few drawn tiles; a patient has ten images."""
    drawn = sorted((draw_mask_tiles(folder / "drawn", size=size).parent / "images").iterdir())
    rows = ["image_path,mask_path,group,split"]
    for part in ("images", "masks"):
        (folder / part).mkdir()
    for number in range(n_images):
        name = f"{number:06d}.png"
        for part in ("images", "masks"):
            os.link(folder / "drawn" / part / drawn[number % len(drawn)].name, folder / part / name)
        patient = number // 10
        split = "train" if patient < int(0.08 * n_images) else "test"
        rows.append(f"images/{name},masks/{name},p{patient},{split}")
    (folder / "drawn" / "classes.json").rename(folder / "classes.json")
    (folder / "tiles.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / "tiles.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", default="uni_v1")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--token-store", type=float, default=20.0)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["HISTOBENCH_CACHE"] = str(folder / "cache")
        data = write_data(folder, args.images, args.size)
        (folder / "own.py").write_text(ENCODER.format(name=args.encoder), encoding="utf-8")
        began = time.perf_counter()
        found = hb.run(
            data,
            f"untrained={folder}/own.py:network",
            tasks="Segmentation",
            results=folder / "results",
            device=args.device,
            token_store=args.token_store,
        )
        seconds = time.perf_counter() - began
        dice = found.to_frame().query("metric == 'dice'")[["setting", "value"]]
    print(dice.to_string(index=False))
    print(f"{args.images} images: {seconds:.1f} s, {args.images / seconds:.0f} images/s")
    print(f"memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB at most")
    if args.device.startswith("cuda"):
        print(f"memory of the GPU: {torch.cuda.max_memory_allocated(args.device) / 1e9:.1f} GB at most")


if __name__ == "__main__":
    main()
