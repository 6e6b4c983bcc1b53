"""A second opinion on the coverage of the default intervals, from exported predictions and NumPy alone.

    python benchmarks/coverage.py --sets 200 --only "12 patients, 3" --export /tmp/sets.csv
    python benchmarks/coverage_check.py /tmp/sets.csv

Metrics, the jackknife and Student's quantiles are written out here from their definitions
(docs/statistics.md); nothing of the package is imported.
"""

from __future__ import annotations

import csv
import math
import sys

import numpy as np


def accuracy(labels, p):
    return np.mean(p.argmax(1) == labels)


def balanced_accuracy(labels, p):
    return np.mean([np.mean(p[labels == k].argmax(1) == k) for k in np.unique(labels)])


def auroc(labels, p):
    """Mean over classes of the chance that an image of the class scores higher than another."""
    areas = []
    for k in [1] if p.shape[1] == 2 else range(p.shape[1]):
        own, other = p[labels == k, k], p[labels != k, k]
        if len(own) * len(other) == 0:
            return math.nan
        if len(own) * len(other) < 10**6:
            gaps = own[:, None] - other[None]
            areas.append(np.mean((gaps > 0) + 0.5 * (gaps == 0)))
        else:  # the same by ranks, for the population; scores are continuous
            ranks = np.argsort(np.argsort(np.concatenate([own, other])))[: len(own)]
            areas.append((ranks.sum() - len(own) * (len(own) - 1) / 2) / (len(own) * len(other)))
    return np.mean(areas)


def log_loss(labels, p):
    return -np.mean(np.log(p[np.arange(len(labels)), labels]))


def student(freedom, share=0.975):
    """The quantile of Student's t by bisection of its integrated density."""
    x = np.linspace(0, 200, 400_001)
    density = (1 + x * x / freedom) ** (-(freedom + 1) / 2)
    density /= 2 * np.trapezoid(density, x)
    below = 0.5 + np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(x))])
    return float(np.interp(share, below, x))


_QUANTILES = {}


def t(freedom):
    key = round(freedom, 2)
    if key not in _QUANTILES:
        _QUANTILES[key] = student(key)
    return _QUANTILES[key]


def interval(metric, labels, p, patient):
    forward = (lambda v: math.log(v)) if metric is log_loss else (
        lambda v: math.log(min(max(v, 0.5 / n), 1 - 0.5 / n) / (1 - min(max(v, 0.5 / n), 1 - 0.5 / n)))
    )  # fmt: skip
    back = math.exp if metric is log_loss else (lambda g: 1 / (1 + math.exp(-g)))
    n, names = len(labels), np.unique(patient)
    whole = forward(metric(labels, p))
    left = np.array([forward(metric(labels[patient != u], p[patient != u])) for u in names])
    pull = left.mean() - left
    units = len(names)
    error = math.sqrt((units - 1) / units * (pull**2).sum())
    rarest = min(len(np.unique(patient[labels == k])) for k in np.unique(labels))
    loss = metric is log_loss  # a few patients carry most of it: one degree less, more for the skewness
    base = t(max(min(units - 1, rarest - 1), 3) - loss)
    moments = 2 / ((pull**4).sum() / (pull**2).sum() ** 2 - 1 / units)
    both = max(base, t(min(max(moments, 3), units - 1)))
    skewness = (pull**3).sum() / (pull**2).sum() ** 1.5
    long = max(both, base + (1.5 if loss else 1) * abs(skewness) * (1 + 2 * t(units - 1) ** 2) / 6)
    low = whole - error * (long if skewness < 0 else both)
    high = whole + error * (long if skewness > 0 else both)
    return back(low), back(high)


def main() -> int:
    sets: dict[str, list[list[float]]] = {}
    with open(sys.argv[1]) as file:
        rows = csv.reader(file)
        next(rows)
        for name, *values in rows:
            sets.setdefault(name, []).append([float(value) for value in values])
    arrays = {name: np.array(values) for name, values in sets.items()}
    split = {name: (a[:, 1].astype(int), a[:, 2:], a[:, 0]) for name, a in arrays.items()}
    labels, p, _ = split.pop("population")
    for metric in (accuracy, balanced_accuracy, auroc, log_loss):
        truth = metric(labels, p)
        held = []
        for y, q, patient in split.values():
            found = [interval(metric, y, q, patient)] if min(
                len(np.unique(patient[y == k])) for k in range(p.shape[1])
            ) >= 3 or metric in (accuracy, log_loss) else []  # fmt: skip
            held += [low <= truth <= high for low, high in found]
        share = 100 * np.mean(held)
        print(f"{metric.__name__}: truth {truth:.4f}, in {share:.1f} % of {len(held)} intervals")
    return 0


if __name__ == "__main__":
    sys.exit(main())
