"""The power that studies really have which were planned for 0.8 from a small pilot.

    python benchmarks/studies/planned_power.py [--pilots 400]

Two encoders on patients of unequal size that differ in difficulty, for both alike and for each on its own;
the accuracy of one is to be shown better than the other's by 0.05. The noise of each pilot is measured as
`histobench power` does (leaving out one patient at a time), and three sizes are planned from it: by the
normal formula, by Student's t with the pilot's noise taken as exact, and by assurance. The real power of a
size is that of the t test with the true noise, from 20,000 patients. The outcome is in
`docs/explanation/statistics.md`.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from scipy import special

from histobench.statistics.jackknife import LeaveOneOut
from histobench.statistics.power import Pilot, effective_number, planned_units, t_power, units_for_error

DELTA, WANTED = 0.05, 0.8


def main() -> int:
    """Print the average real power for pilots of 8, 12 and 30 patients."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pilots", type=int, default=400)
    args = parser.parse_args()
    generator = np.random.default_rng(1)
    many = 20_000
    unit = float(_study(many, generator)[0].variance[0] * many) ** 0.5  # noise that one patient brings
    print("| pilot | normal formula | t, noise as exact | assurance | sizes (middle) |\n" + "|---" * 5 + "|")
    for patients in (8, 12, 30):
        powers, sizes = [], []
        for _ in range(args.pilots):
            found, freedom = _study(patients, generator)
            pilot = Pilot(float(found.variance[0]) ** 0.5, patients, freedom)
            plan = planned_units(pilot, DELTA, power=WANTED)
            normal = units_for_error(pilot.standard_error, patients, DELTA, power=WANTED)
            planned = (normal, plan.at_pilot, plan.assured)
            true = Pilot(unit / patients**0.5, patients, freedom)
            powers.append([float(t_power(true, true.standard_error, size, DELTA)) for size in planned])
            sizes.append(planned)
        real, middle = np.mean(powers, axis=0), np.median(sizes, axis=0)
        print(
            f"| {patients} patients | {real[0]:.2f} | {real[1]:.2f} | {real[2]:.2f} "
            f"| {middle[0]:.0f}, {middle[1]:.0f}, {middle[2]:.0f} |",
            flush=True,
        )
    return 0


def _study(patients: int, generator: np.random.Generator) -> tuple[LeaveOneOut, float]:
    """The difference of the accuracies with each patient left out, and the degrees of freedom."""
    sizes = np.maximum(2, generator.poisson(generator.gamma(2, 10, patients)))
    unit_of = np.repeat(np.arange(patients), sizes)
    logits = 1.2 + generator.normal(0, 1, (len(unit_of), 1)) + generator.normal(0, 1, (patients, 1))[unit_of]
    logits = logits + generator.normal(0, 0.5, (patients, 2))[unit_of]
    right = generator.random(logits.shape) < special.expit(logits)
    parts = np.zeros((patients, 2))
    np.add.at(parts, unit_of, np.column_stack([right[:, 0].astype(float) - right[:, 1], np.ones(len(right))]))
    total, left = parts.sum(axis=0), parts.sum(axis=0) - parts
    found = LeaveOneOut(("difference",), total[:1] / total[1:], left[:, :1] / left[:, 1:])
    return found, effective_number(sizes) - 1


if __name__ == "__main__":
    sys.exit(main())
