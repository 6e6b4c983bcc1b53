"""Results of agents, simulated: cases of `statistics_study.py`.

A task is solved with a chance of its own (a beta distribution; `icc` is how much of the variance lies between
tasks); an agent plays each task once, four times, or one to six times. Tasks are of one dataset or of three
that differ in difficulty. Measured are the success rate, pass^4, and the gain of a second agent that is a
little better on the same tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.mint.results.episode_outcome import EpisodeOutcome
from histobench.mint.results.uncertainty import gain, pass_hat, pass_hat_interval, rate_interval
from histobench.statistics.intervals import Interval

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


def samples(setting: Setting, draws: int, seed: int) -> Iterator[tuple[str, float, Interval, float]]:
    """Of each run and measure: its name, estimate, interval and true value."""
    rng = np.random.default_rng([seed, *(int(1000 * value) for value in astuple(setting))])
    dataset, rates = _datasets(setting)
    for _ in range(draws):
        chance = _chances(rates[dataset], setting.icc, rng)
        tries = np.full(setting.tasks, setting.tries) if setting.tries else rng.integers(1, 7, setting.tasks)
        truth = float((tries * rates[dataset]).sum() / tries.sum())
        solved = rng.binomial(tries, chance)
        played = _episodes(solved, tries, dataset)
        yield "success rate", solved.sum() / tries.sum(), rate_interval(played), truth
        if setting.tries > 1 and setting.datasets == 1:
            name = f"pass^{setting.tries}"
            true = _all_tries(setting.rate, setting.icc, setting.tries)
            value, interval = pass_hat(played, setting.tries), pass_hat_interval(played, setting.tries)
            if value is not None and interval is not None:
                yield name, value, interval, true
        if setting.tries == 1:
            second = rng.binomial(1, chance + RAISED * (1 - chance))
            difference = gain(_episodes(second, tries, dataset), played)
            if difference is not None:
                yield "gain", difference.difference, difference.interval, RAISED * (1 - truth)


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


def _episodes(
    solved: NDArray[np.int64], tries: NDArray[np.int64], dataset: NDArray[np.int64]
) -> list[EpisodeOutcome]:
    return [
        EpisodeOutcome("agent", "None", "None", 5, f"set{dataset[task]}", str(task), number < solved[task])
        for task in range(len(solved))
        for number in range(tries[task])
    ]
