"""Targets that are not classes, simulated: cases of `statistics_study.py`.

A hidden score of each patient makes the truth, and a noisy copy of it the prediction; tiles, where a case has
them, share most of both with their patient. The true value is that of 20,000 patients under the same training
patients, on whom the weights of Uno's C depend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.roi.comparison.left_out_table import TargetTable
from histobench.roi.metrics.target_metrics import target_metrics, uno_weights
from histobench.roi.predictions import TargetPredictions
from histobench.statistics.intervals import Interval

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A kind of test set. `noise` is that of the prediction beside a score of spread 1."""

    kind: str
    patients: int
    tiles: int = 1  # of each patient
    noise: float = 1.0
    rare: float = 0.3  # share of patients that are censored, or that have the rarest label

    def __str__(self) -> str:
        tiles = f" x {self.tiles} tiles" if self.tiles > 1 else ""
        what = {"survival": "censored", "multilabel": "with the rarest label"}.get(self.kind)
        return f"{self.kind}, {self.patients} patients{tiles}, noise {self.noise:g}" + (
            f", {self.rare:.0%} {what}" if what else ""
        )


CASES = (
    *(Case("regression", n, t, s) for n, t in ((40, 1), (80, 1), (40, 5)) for s in (0.3, 1.0, 3.0)),
    *(Case("survival", n, 1, s, c) for n in (40, 80) for s in (0.3, 1.0, 3.0) for c in (0.3, 0.7)),
    *(Case("ordinal", n, t, s) for n, t in ((40, 1), (80, 1), (40, 5)) for s in (0.3, 1.0, 3.0)),
    *(
        Case("multilabel", n, t, s, r)
        for n, t in ((40, 1), (80, 1), (40, 5))
        for s in (0.3, 1.0, 3.0)
        for r in (0.15, 0.3)
    ),
)
LEVELS, LABELS, TRAINING, MANY = 4, 4, 100, 20_000


def draw(case: Case, patients: int, rng: np.random.Generator, train: Floats) -> TargetPredictions:
    """A test set with predictions; `train` are times and events of the training patients."""
    owner = np.repeat(np.arange(patients), case.tiles)

    def shared(columns: int) -> Floats:
        own = rng.normal(size=(patients, columns))[owner]
        return own if case.tiles == 1 else np.sqrt(0.7) * own + np.sqrt(0.3) * rng.normal(size=own.shape)

    names = tuple(map(str, range(len(owner))))
    groups = tuple(map(str, owner))
    score, noise = shared(LABELS), shared(LABELS)
    said = score + case.noise * noise
    if case.kind == "regression":
        truth, columns = score[:, :1] + 0.3 * shared(1), ("y",)
        said = said[:, :1] / (1 + case.noise**2)  # as ridge would shrink it
        return TargetPredictions(case.kind, columns, truth, columns, said, names, groups)
    if case.kind == "survival":
        truth = lives(score[:, 0], case.rare, rng)
        weights = uno_weights(train, truth)
        return TargetPredictions(
            case.kind, ("time", "event"), truth, ("risk",), said[:, :1], names, groups, weights
        )
    if case.kind == "ordinal":
        edges = np.array([-0.8, 0.2, 1.0])
        truth = np.digitize(score[:, 0], edges).astype(float)[:, None]
        below = 1 / (1 + np.exp(-3 * (edges - said[:, :1])))
        steps = np.diff(np.column_stack([np.zeros(len(owner)), below, np.ones(len(owner))]), axis=1)
        levels = tuple(map(str, range(LEVELS)))
        return TargetPredictions(case.kind, ("grade",), truth, levels, steps, names, groups)
    shares = np.linspace(0.5, case.rare, LABELS)
    common = shared(1)
    latent = np.sqrt(0.5) * (score + common)
    cut = np.quantile(np.random.default_rng(0).normal(size=200_000), 1 - shares)
    truth = (latent > cut).astype(float)
    said = 1 / (1 + np.exp(-(latent + case.noise * noise - cut)))
    columns = tuple(f"label{k}" for k in range(LABELS))
    return TargetPredictions(case.kind, columns, truth, columns, said, names, groups)


def lives(score: Floats, censored: float, rng: np.random.Generator) -> Floats:
    """Times and events: exponential lives, and censoring such that about this share is censored."""
    lived = rng.exponential(np.exp(-score))
    end = rng.exponential((1 - censored) / censored, size=len(score))
    return np.stack([np.minimum(lived, end), lived <= end], axis=1).astype(float)


def samples(
    case: Case, draws: int, seed: int, *, many: int = MANY
) -> Iterator[tuple[str, float, Interval, float]]:
    """Of each draw and metric: its name, estimate, interval and true value."""
    rng = np.random.default_rng([seed, case.patients, case.tiles, round(100 * case.noise)])
    train = lives(rng.normal(size=TRAINING), case.rare, rng)
    whole = target_metrics(draw(case, many // case.tiles, rng, train))
    for _ in range(draws):
        table = TargetTable.of({"a": draw(case, case.patients, rng, train)})
        for name, score in whole.items():
            if name in table.found and score.value is not None:
                yield name, float(table.found[name].values[0]), table.intervals(name)["a"], score.value
