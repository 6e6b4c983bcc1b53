"""Seconds of gated-attention MIL: 200 patients with 2,000 tiles each, five runs, every epoch.

python benchmarks/speed/attention_mil.py --threads 16
python benchmarks/speed/attention_mil.py --device cuda
"""

from __future__ import annotations

import argparse
import time
from unittest import mock

import numpy as np
import torch

from histobench.roi.protocols import attention_mil

TILES = 2_000
DIMENSIONS = 1_024


def bags(patients: int, generator: torch.Generator) -> attention_mil.Bags:
    """Patients of two classes that differ a little in every tenth tile."""
    labels = np.arange(patients) % 2
    tiles = torch.randn(patients * TILES, DIMENSIONS, generator=generator)
    tiles[::10] += torch.from_numpy(np.repeat(labels, TILES)[::10, None].astype(np.float32)) * 0.1
    return attention_mil.Bags(tiles, np.repeat(np.arange(patients), TILES), labels.astype(np.int64))


def main() -> None:
    """Print the seconds of one call."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="default: as torch chooses")
    parser.add_argument("--patients", type=int, default=200)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    generator = torch.Generator().manual_seed(0)
    train, test = bags(args.patients, generator), bags(50, generator)
    torch.zeros(1, device=args.device)
    with mock.patch.object(attention_mil, "PATIENCE", attention_mil.EPOCHS):  # no early end
        start = time.perf_counter()
        attention_mil.attention_mil(train, test, n_classes=2, device=args.device)
        seconds = time.perf_counter() - start
    print(
        f"{args.patients} patients x {TILES} tiles x {DIMENSIONS}, {attention_mil.EPOCHS} epochs, "
        f"{args.device}, {torch.get_num_threads()} threads: {seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
