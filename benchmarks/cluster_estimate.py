"""On paper: what a large plan takes on many GPUs, from the rates that docs/benchmarks.md has for one.

    python benchmarks/cluster_estimate.py [--images 10000000] [--gpus 64] [--kilobytes 60]

Nothing is measured here. Encoders of one kind are cut into teams as the planner cuts them: what has the same
pixels shares the decoding, up to a number of parameters on a device. A team goes over all images once, and
takes the sum of what its encoders take; the GPUs share the images evenly.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from histobench.roi.work.extraction import PARAMETERS


@dataclass(frozen=True)
class Kind:
    """Encoders that are alike: images per second on one H200 as measured, and how many there are."""

    name: str
    rate: float
    parameters: int
    encoders: int

    @property
    def teams(self) -> int:
        """How often the images are read."""
        return -(-self.encoders // max(1, PARAMETERS // self.parameters))


#: Rates: the column "histobench" of `extract.py`; numbers of encoders: an assumption, 50 in all.
KINDS = (
    Kind("ViT-S/16@224", 8643.4, 22_000_000, 5),
    Kind("ViT-L/16@224", 3164.4, 303_000_000, 25),
    Kind("ViT-L/16@448", 685.3, 303_000_000, 5),
    Kind("ViT-g/14@224", 761.3, 1_134_000_000, 15),
)
#: Seconds until a worker has a team on its device: weights, compilation. An assumption.
START = 60.0


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=10_000_000)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--kilobytes", type=float, default=60.0, help="of one image on disk")
    args = parser.parse_args()
    size = args.kilobytes * 1e3
    print(f"| encoders | times read | TB read | images/s, {args.gpus} GPUs | GB/s from disk | hours |")
    print("|---|---|---|---|---|---|")
    hours = passes = 0.0
    for kind in KINDS:
        each = kind.encoders / kind.teams  # encoders that an image is decoded for
        rate = args.gpus * kind.rate / each  # images per second while a team of so many is computed
        took = (kind.teams * args.images / rate + kind.teams * START) / 3600
        hours, passes = hours + took, passes + kind.teams
        print(
            f"| {kind.encoders} x {kind.name} | {kind.teams} | {kind.teams * args.images * size / 1e12:.1f} "
            f"| {rate:,.0f} | {rate * size / 1e9:.1f} | {took:.1f} |"
        )
    images = sum(kind.encoders for kind in KINDS) * args.images
    print(
        f"| all {sum(kind.encoders for kind in KINDS)}, and hashing | {passes + 1:.0f} | "
        f"{(passes + 1) * args.images * size / 1e12:.1f} | | "
        f"{passes * args.images * size / (hours * 3600) / 1e9:.1f} on average | {hours:.1f} |"
    )
    print(f"\n{images / 1e6:,.0f} million rows; {args.gpus * hours:,.0f} GPU hours")
    return 0


if __name__ == "__main__":
    sys.exit(main())
