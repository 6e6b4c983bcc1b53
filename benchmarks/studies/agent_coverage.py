"""How often the intervals of agents' results hold the truth.

    python benchmarks/studies/agent_coverage.py [--runs 2000] [--workers 16] [--quick] [--seed 0]

A task is solved with a chance of its own (a beta distribution; `icc` is how much of the variance lies between
tasks); an agent plays each task once, four times, or one to six times. Tasks are of one dataset or of three
that differ in difficulty. Measured are the success rate, pass^4, and the gain of a second agent that is a
little better on the same tasks. Each number is the share of simulated runs, in percent, whose 95 % interval
holds the true value; the worst cells come first. `docs/explanation/statistics.md` quotes the outcome.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.mint.results.episode_outcome import EpisodeOutcome
from histobench.mint.results.uncertainty import gain, rate_interval
from histobench.statistics.intervals import clustered_bounds

UNEVEN = 0  # tries of a task: one to six
#: What the second agent adds to each chance of failing.
RAISED = 0.15


@dataclass(frozen=True)
class Setting:
    """A kind of run: tasks, tries of each, success rate, share of the variance between tasks, datasets."""

    tasks: int
    tries: int
    rate: float
    icc: float
    datasets: int

    def __str__(self) -> str:
        tries = "1-6" if self.tries == UNEVEN else str(self.tries)
        return f"{self.tasks} | {tries} | {self.rate:g} | {self.icc:g} | {self.datasets}"


def settings(*, quick: bool) -> list[Setting]:
    """The whole grid, or a corner of it."""
    if quick:
        return [Setting(20, 4, 0.5, 0.5, 1), Setting(50, 4, 0.9, 0.5, 3)]
    grid = itertools.product(
        (10, 20, 30, 50, 100),
        (1, 4, UNEVEN),
        (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95),
        (0.0, 0.2, 0.5, 0.8),
        (1, 3),
    )
    # Of a task that is played once nobody sees how much its chance differs from others.
    return [Setting(*values) for values in grid if values[1] != 1 or values[3] == 0.5]


def coverage(setting: Setting, runs: int, seed: int) -> dict[str, float]:
    """What is measured -> percent of the runs whose interval holds the truth.

    Counts go straight to the function behind `rate_interval`; the first run of each cell checks that the
    interval of whole episodes is the same.
    """
    rng = np.random.default_rng([seed, *(int(1000 * value) for value in astuple(setting))])
    dataset, rates = _datasets(setting)
    held: dict[str, int] = {}
    for number in range(runs):
        chance = _chances(rates[dataset], setting.icc, rng)
        tries = np.full(setting.tasks, setting.tries) if setting.tries else rng.integers(1, 7, setting.tasks)
        truth = float((tries * rates[dataset]).sum() / tries.sum())
        solved = rng.binomial(tries, chance)
        low, high = clustered_bounds(solved, tries, strata=dataset)
        if number == 0:
            assert np.allclose((low, high), _of_episodes(solved, tries, dataset))
        found = {"success rate": low <= truth <= high}
        if setting.tries > 1 and setting.datasets == 1:
            low, high = clustered_bounds(solved == setting.tries, np.ones(setting.tasks))
            true = _all_tries(setting.rate, setting.icc, setting.tries)
            found[f"pass^{setting.tries}"] = low <= true <= high
        if setting.tries == 1:
            second = rng.binomial(1, chance + RAISED * (1 - chance))
            difference = gain(_episodes(second, tries, dataset), _episodes(solved, tries, dataset))
            found["gain"] = difference is not None and difference.interval.contains(RAISED * (1 - truth))
        for name, holds in found.items():
            held[name] = held.get(name, 0) + bool(holds)
    return {name: 100 * count / runs for name, count in held.items()}


def main() -> int:
    """Print every cell, the worst first, and the worst for each number of tasks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs of each cell")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="two cells of 200 runs")
    parser.add_argument("--show", type=int, default=15, help="worst cells to print")
    args = parser.parse_args()
    runs = 200 if args.quick else args.runs
    cells = settings(quick=args.quick)
    with ProcessPoolExecutor(args.workers) as pool:
        found = list(pool.map(coverage, cells, [runs] * len(cells), [args.seed] * len(cells)))
    rows = [
        (share, name, cell)
        for cell, shares in zip(cells, found, strict=True)
        for name, share in shares.items()
    ]
    print(f"{len(rows)} cells, {runs} runs each\n")
    print("| 95 % interval of | tasks | cells | worst | mean | cells below 93 |\n" + "|---" * 6 + "|")
    for name, tasks in sorted({(name, cell.tasks) for _, name, cell in rows}):
        here = [share for share, other, cell in rows if (other, cell.tasks) == (name, tasks)]
        below = sum(share < 93 for share in here)
        print(f"| {name} | {tasks} | {len(here)} | {min(here):.1f} | {np.mean(here):.1f} | {below} |")
    print("\n| holds | 95 % interval of | tasks | tries | rate | ICC | datasets |\n" + "|---" * 7 + "|")
    for share, name, cell in sorted(rows, key=lambda row: row[0])[: args.show]:
        print(f"| {share:.1f} | {name} | {cell} |")
    return 0


def _datasets(setting: Setting) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The dataset of each task and the success rate of each dataset; three have the asked rate on average."""
    if setting.datasets == 1:
        return np.zeros(setting.tasks, dtype=np.int64), np.array([setting.rate])
    spread = 0.6 * min(setting.rate, 1 - setting.rate)
    return np.arange(setting.tasks) % 3, setting.rate + spread * np.array([-1.0, 0.0, 1.0])


def _chances(rates: NDArray[np.float64], icc: float, rng: np.random.Generator) -> NDArray[np.float64]:
    if icc == 0:
        return rates
    scale = (1 - icc) / icc
    return np.asarray(rng.beta(rates * scale, (1 - rates) * scale), dtype=np.float64)


def _all_tries(rate: float, icc: float, tries: int) -> float:
    """The chance that all tries of a task succeed."""
    if icc == 0:
        return rate**tries
    scale = (1 - icc) / icc
    return float(np.prod([(rate * scale + k) / (scale + k) for k in range(tries)]))


def _of_episodes(
    solved: NDArray[np.int64], tries: NDArray[np.int64], dataset: NDArray[np.int64]
) -> tuple[float | None, float | None]:
    interval = rate_interval(_episodes(solved, tries, dataset))
    return interval.low, interval.high


def _episodes(
    solved: NDArray[np.int64], tries: NDArray[np.int64], dataset: NDArray[np.int64]
) -> list[EpisodeOutcome]:
    return [
        EpisodeOutcome("agent", "None", "None", 5, f"set{dataset[task]}", str(task), number < solved[task])
        for task in range(len(solved))
        for number in range(tries[task])
    ]


if __name__ == "__main__":
    sys.exit(main())
