"""How often a 95% interval of the accuracy over patients holds the truth, by the number of patients.

    python benchmarks/coverage.py [--sets 4000]

Patients with 10 images each; how often a patient's images are right differs between patients (a beta
distribution with mean 0.8). 1,000 resamples of patients. `docs/statistics.md` quotes the outcome.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from histobench.core.statistics.intervals import bca_interval, percentile_bounds
from histobench.core.statistics.resampling import draw_counts, sampling_design

IMAGES, RESAMPLES, ACCURACY = 10, 1000, 0.8


def main() -> int:
    """Print the coverage of percentile and BCa intervals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=4000)
    args = parser.parse_args()
    generator = np.random.default_rng(11)
    for patients in (5, 10, 20, 40):
        design = sampling_design(patients)
        held = {"percentile": 0, "BCa": 0}
        for _ in range(args.sets):
            right = generator.binomial(IMAGES, generator.beta(4, 1, patients)) / IMAGES
            drawn = draw_counts(design, RESAMPLES, generator) @ right / patients
            low, high = percentile_bounds(drawn[None])
            held["percentile"] += bool(low[0] <= ACCURACY <= high[0])
            without = (right.sum() - right) / (patients - 1)
            held["BCa"] += bca_interval(drawn, float(right.mean()), without).contains(ACCURACY)
        shares = ", ".join(f"{name} {count / args.sets:.1%}" for name, count in held.items())
        print(f"{patients} patients: {shares}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
