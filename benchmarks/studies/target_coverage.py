"""How often 95% intervals of targets that are not classes hold the true value.

    python benchmarks/studies/target_coverage.py [--draws 1000]

A hidden score of each patient makes the truth, and a noisy copy of it the prediction; tiles, where a case has
them, share most of both with their patient. The true value is that of 20,000 patients under the same training
patients, on whom the weights of Uno's C depend. `docs/how-to/targets.md` quotes the outcome.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.roi.comparison.left_out_table import TargetTable
from histobench.roi.metrics.target_metrics import target_metrics, uno_weights
from histobench.roi.predictions import TargetPredictions

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A kind of test set. `noise` is that of the prediction beside a score of spread 1."""

    kind: str
    patients: int
    tiles: int = 1  # of each patient
    noise: float = 1.0
    rare: float = 0.3  # share of patients that are censored, or that have the rarest label

    @property
    def name(self) -> str:
        """For the table."""
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


def coverage(case: Case, draws: int, *, seed: int = 0, many: int = MANY) -> dict[str, tuple[float, float]]:
    """Metric -> the share of intervals that hold the true value, and the share of draws that have one."""
    rng = np.random.default_rng([seed, case.patients, case.tiles, round(100 * case.noise)])
    train = lives(rng.normal(size=TRAINING), case.rare, rng)
    whole = target_metrics(draw(case, many // case.tiles, rng, train))
    held = {name: [0, 0] for name in whole}
    for _ in range(draws):
        table = TargetTable.of({"a": draw(case, case.patients, rng, train)})
        for name, score in whole.items():
            interval = table.intervals(name)["a"] if name in table.found else None
            if interval is not None and interval.low is not None:
                assert score.value is not None
                held[name][0] += interval.contains(score.value)
                held[name][1] += 1
    return {
        name: (hits / tries if tries else float("nan"), tries / draws) for name, (hits, tries) in held.items()
    }


def main() -> int:
    """Print the coverage of every case, and the least and the mean of each metric."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--kind", default="")
    args = parser.parse_args()
    every: dict[tuple[str, str], list[float]] = {}
    for case in CASES:
        if args.kind in ("", case.kind):
            shares = coverage(case, args.draws)
            print(
                f"{case.name}: "
                + ", ".join(
                    f"{name} {100 * held:.1f}" + (f" ({100 * known:.0f}% have one)" if known < 1 else "")
                    for name, (held, known) in shares.items()
                ),
                flush=True,
            )
            for name, (held, _) in shares.items():
                every.setdefault((case.kind, name.partition("@")[0]), []).append(held)
    print("\n| target | metric | worst | mean |\n|---|---|---|---|")
    for (kind, name), shares in every.items():
        print(f"| {kind} | {name} | {100 * np.nanmin(shares):.1f} | {100 * np.nanmean(shares):.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
