"""How often a table of equal encoders makes a false claim: corrected for all pairs, or those with the best.

    python benchmarks/false_claims.py [--tables 6000]

Five encoders that are equally good on 240 images (classes of 120, 80 and 40), balanced accuracy, paired
bootstrap with Holm's correction at 5%. `docs/statistics.md` quotes the outcome.
"""

from __future__ import annotations

import argparse
import sys
from itertools import combinations

import numpy as np

from histobench.core.statistics.multiplicity import holm
from histobench.core.statistics.paired import bootstrap_p_value
from histobench.core.statistics.resampling import draw_counts, sampling_design

MODELS, ALPHA = 5, 0.05


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=6000)
    args = parser.parse_args()
    generator = np.random.default_rng(9)
    labels = np.repeat([0, 1, 2], [120, 80, 40])
    design = sampling_design(len(labels), strata=labels)
    weights = 1 / (3 * np.bincount(labels)[labels])  # balanced accuracy is a weighted sum of correctness
    counts = draw_counts(design, 1999, np.random.default_rng(10)).astype(float)
    pairs = list(combinations(range(MODELS), 2))
    false_claims = {"all pairs": 0, "the comparisons with the best": 0}
    for _ in range(args.tables):
        # Images differ in difficulty, encoders do not.
        correct = generator.random((MODELS, len(labels))) < generator.beta(3, 1, len(labels))
        resampled = counts @ (correct * weights).T
        p_values = [bootstrap_p_value(resampled[:, a] - resampled[:, b], design) for a, b in pairs]
        best = int((correct @ weights).argmax())
        with_best = [p for p, pair in zip(p_values, pairs, strict=True) if best in pair]
        false_claims["all pairs"] += bool((holm(p_values) <= ALPHA).any())
        false_claims["the comparisons with the best"] += bool((holm(with_best) <= ALPHA).any())
    for family, number in false_claims.items():
        print(f"corrected for {family}: a false claim in {number / args.tables:.1%} of {args.tables} tables")
    return 0


if __name__ == "__main__":
    sys.exit(main())
