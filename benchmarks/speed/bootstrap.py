"""Bootstrap of all metrics, 1,000 resamples, against a loop over scikit-learn."""

from __future__ import annotations

import numpy as np
from few_shot import sklearn_metrics
from measure import Row, Seconds, Setup, clock, part

from histobench.roi.metrics.batched import evaluate_left_out, evaluate_resamples

RESAMPLES = 1000
LOOP_RESAMPLES = 10


def predictions(n: int, c: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a classifier that is right most of the time."""
    labels = rng.integers(0, c, n)
    logits = rng.normal(size=(n, c)) + 2.5 * np.eye(c)[labels]
    p = np.exp(logits)
    return p / p.sum(1, keepdims=True), labels


@part("bootstrap")
def run(setup: Setup) -> list[Row]:
    """Every metric of every resample of the test set."""
    n, c = len(setup.workload.test), setup.workload.n_classes
    rng = np.random.default_rng(0)
    p, labels = predictions(n, c, rng)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    ours, scores = clock(lambda: evaluate_resamples(p, labels, counts, threads=setup.threads), repeat=3)
    metrics = sklearn_metrics()

    def loop() -> float:
        worst = 0.0
        for k in range(LOOP_RESAMPLES):
            rows = np.repeat(np.arange(n), counts[k])
            expected = metrics(p[rows], labels[rows])
            worst = max(worst, *(abs(value - scores[name][k]) for name, value in expected.items()))
        return worst

    theirs, worst = clock(loop)
    note = (
        f"{len(scores)} metrics; the loop timed on {LOOP_RESAMPLES} resamples; metrics differ by {worst:.0e}"
    )
    name = f"Bootstrap, {RESAMPLES} resamples, all metrics"
    row = Row.against(
        name, "loop over scikit-learn", ours, theirs * (RESAMPLES / LOOP_RESAMPLES), at_least=100, note=note
    )
    return [row, left_out(p, labels, ours), *growth()]


def left_out(p: np.ndarray, labels: np.ndarray, resampled: Seconds) -> Row:
    """Every metric without each image in turn: what the default intervals are made of."""
    seconds, _ = clock(lambda: evaluate_left_out(p, labels), repeat=3)
    name = f"Every image of {len(labels):,} left out, all metrics"
    return Row.against(name, f"{RESAMPLES} resamples", seconds, resampled, at_least=0.5, note="closed form")


def growth() -> list[Row]:
    """Four times the images in less than five times the time."""
    times = []
    for n in (5_000, 20_000):
        rng = np.random.default_rng(1)
        p, labels = predictions(n, 9, rng)
        counts = rng.multinomial(n, np.full(n, 1 / n), size=200)
        times.append(clock(lambda p=p, y=labels, w=counts: evaluate_resamples(p, y, w), repeat=3)[0])
    return [Row.growth("Bootstrap, growth in test images", times)]
