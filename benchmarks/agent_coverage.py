"""How often the intervals of agents' results hold the truth, at 10, 30 and 100 tasks.

    python benchmarks/agent_coverage.py [--runs 1000]

Tasks differ in difficulty (a beta distribution); an agent plays each once, or four times. Success rates
near the middle and near 1; the gain of a second agent that is a little better on the same tasks; and
pass^4, the share of tasks solved in all four tries. Each number is the share of simulated runs, in percent,
whose 95% interval holds the true value of all such tasks. `docs/statistics.md` quotes the outcome.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from numpy.typing import NDArray

from histobench.mint.results.outcome import EpisodeOutcome
from histobench.mint.results.reliability import pass_hat_interval
from histobench.mint.results.uncertainty import gain, rate_interval

TASKS, TRIES = (10, 30, 100), 4
#: Alpha and beta of the chance that a task is solved; the second agent's chance is raised towards 1.
MIDDLE, HIGH, RAISED = (1.2, 1.2), (9.0, 1.0), 0.15


def main() -> int:
    """Print one row for each result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    args = parser.parse_args()
    print("| 95% interval of | " + " | ".join(f"{n} tasks" for n in TASKS) + " |\n" + "|---" * 4 + "|")
    for name, shares in rows(args.runs).items():
        print(f"| {name} | " + " | ".join(f"{share:.1f}" for share in shares) + " |", flush=True)
    return 0


def rows(runs: int) -> dict[str, list[float]]:
    """Coverage in percent for each number of tasks."""
    found: dict[str, list[float]] = {}
    for n in TASKS:
        generator = np.random.default_rng(n)
        held: dict[str, list[bool]] = {}
        for _ in range(runs):
            for word, (a, b) in (("near 0.5", MIDDLE), ("near 0.9", HIGH)):
                chance = generator.beta(a, b, n)
                truth = a / (a + b)
                for tries in (1, TRIES):
                    played = _episodes(chance, tries, generator)
                    key = f"success rate {word}, {'one try' if tries == 1 else f'{tries} tries'}"
                    held.setdefault(key, []).append(rate_interval(played, n_resamples=500).contains(truth))
                    if tries > 1:
                        true_all = np.prod([(a + k) / (a + b + k) for k in range(tries)])
                        interval = pass_hat_interval(played, tries)
                        held.setdefault(f"pass^{tries}, rate {word}", []).append(
                            interval is not None and interval.contains(float(true_all))
                        )
                second = _episodes(chance + RAISED * (1 - chance), 1, generator)
                difference = gain(second, _episodes(chance, 1, generator))
                assert difference is not None
                held.setdefault(f"gain, rate {word}", []).append(
                    difference.interval.contains(RAISED * (1 - truth))
                )
        for key, flags in held.items():
            found.setdefault(key, []).append(100 * float(np.mean(flags)))
    return found


def _episodes(
    chance: NDArray[np.float64], tries: int, generator: np.random.Generator
) -> list[EpisodeOutcome]:
    solved = generator.random((len(chance), tries)) < chance[:, None]
    return [
        EpisodeOutcome("agent", "None", "None", 5, "gsm8k", str(task), bool(success))
        for task, row in enumerate(solved)
        for success in row
    ]


if __name__ == "__main__":
    sys.exit(main())
