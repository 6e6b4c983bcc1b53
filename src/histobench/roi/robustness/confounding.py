"""How much accuracy is lost when the label goes along with the site in training: APD and nIPD.

Two labels and two sites are trained on with cells of (n - s, n + s / n + s, n - s) slides, s = 0 ... n, so
that label and site become more and more the same thing; the test set stays balanced and is never moved.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.robustness.clustering import crossed_pairs
from histobench.roi.robustness.site_neighbours import Floats, Ints

#: Penalties to choose from, by the balanced accuracy on validation slides.
_PENALTIES = tuple(10.0 ** np.linspace(-8, 4, 15))
_REPEATS, _SEED, _SEED_RANGE = 20, 1000, 10_000
#: Slides per cell that only test, at the least.
_TEST_SLIDES = 2


@dataclass(frozen=True)
class Tested:
    """The test images of one repeat (rows of the features); which are right after each step [steps, n]."""

    rows: Ints
    right: NDArray[np.bool_]


@dataclass(frozen=True)
class Schedule:
    """Balanced accuracies [steps, repeats] and Cramer's V of each step; row 0 is the balanced training."""

    accuracies: Floats
    tested: tuple[Tested, ...]  # per repeat
    cramers_v: Floats
    labels: tuple[int, int]
    sites: tuple[int, int]
    slides_per_cell: int


def apd(accuracies: Floats) -> float:
    """Average performance drop: mean over steps and repeats of acc_s / acc_0, minus 1.

    >>> apd(np.array([[0.8, 0.8], [0.4, 0.4]]))
    -0.5
    """
    if not (accuracies[0] > 0).all():
        raise HistobenchError(
            "trained without confounding the probe gets no test image right in some repeat;"
            " a relative drop cannot be measured"
        )
    return float((accuracies[1:] / accuracies[0]).mean() - 1)


def nipd(accuracies: Floats, cramers_v: Floats, *, chance: float) -> float:
    """Area under the loss of skill over Cramer's V from 0 to 1: 0 is no loss, -.5 a straight fall to chance.

    Repeats are averaged before the ratio: one repeat near chance would flip the sign of the other order.

    >>> nipd(np.array([[1.0], [0.5]]), np.array([0.0, 1.0]), chance=0.5)
    -0.5
    """
    mean = accuracies.mean(axis=1)
    skill = mean[0] - chance
    if skill <= 0:
        raise HistobenchError(
            f"trained without confounding the probe scores {mean[0]:.3f}, which is not above chance"
            f" ({chance:.3f}); a loss of skill cannot be measured"
        )
    loss = (mean - mean[0]) / skill
    return float(np.sum(np.diff(cramers_v) * (loss[:-1] + loss[1:]) / 2))


def confounding_schedule(
    features: NDArray[np.floating],
    labels: Ints,
    sites: Ints,
    groups: Ints,
    *,
    repeats: int = _REPEATS,
) -> Schedule:
    """Train on the schedule for two labels and two sites (those with the most slides), `repeats` times.

    Slides (groups) are shuffled anew in each repeat. This schedule is a proposal for own data; the published
    benchmarks fix theirs per dataset.
    """
    chosen_labels, chosen_sites = _fullest(labels, sites, groups)
    cells = _cells(labels, sites, groups, chosen_labels, chosen_sites)
    size = min(len(slides) for slides in cells.values())
    test = max(_TEST_SLIDES, size // 5)
    # One slide per cell validates; the others are divided between the two sides of the schedule.
    half = (size - test - 1) // 2
    if half < 1:
        raise HistobenchError(
            f"the smallest of the four cells (two classes at two sites) has {size} groups;"
            f" the schedule needs at least {2 + _TEST_SLIDES + 1}"
        )
    draw = random.Random(_SEED)
    seeds = draw.sample(range(_SEED_RANGE), repeats)
    accuracies = np.empty((half + 1, repeats))
    tested = []
    for column, seed in enumerate(seeds):
        order = {key: slides.tolist() for key, slides in cells.items()}
        for slides in order.values():
            random.Random(seed).shuffle(slides)
        found = [
            _trained(features, labels, sites, groups, order, step, half, test) for step in range(half + 1)
        ]
        held = found[0][0]  # the same in every step
        tested.append(Tested(held, np.array([right for _, right in found])))
        accuracies[:, column] = [balanced(labels[held], right) for _, right in found]
    steps = np.arange(half + 1) / half
    return Schedule(accuracies, tuple(tested), steps, chosen_labels, chosen_sites, size)


def _cells(
    labels: Ints, sites: Ints, groups: Ints, two_labels: tuple[int, int], two_sites: tuple[int, int]
) -> dict[tuple[int, int], Ints]:
    """The groups of each label at each site; one that is in several cells counts in the emptiest alone.

    Otherwise a slide with both classes could be trained on in one cell and tested on in another.
    """
    homes: dict[int, list[tuple[int, int]]] = {}
    cells: dict[tuple[int, int], list[int]] = {}
    for key in ((label, site) for label in two_labels for site in two_sites):
        cells[key] = []
        for group in np.unique(groups[(labels == key[0]) & (sites == key[1])]):
            homes.setdefault(int(group), []).append(key)
    for group, keys in sorted(homes.items(), key=lambda item: (len(item[1]), item[0])):
        cells[min(keys, key=lambda key: len(cells[key]))].append(group)
    return {key: np.array(sorted(found), dtype=np.int64) for key, found in cells.items()}


def _fullest(labels: Ints, sites: Ints, groups: Ints) -> tuple[tuple[int, int], tuple[int, int]]:
    """The two labels and two sites whose smallest cell has the most groups; ties: the first."""
    crossed = crossed_pairs(labels, sites)
    smallest = [min(map(len, _cells(labels, sites, groups, *pair).values())) for pair in crossed]
    if not any(smallest):
        raise HistobenchError("no two classes share two sites; confounding cannot be staged")
    return crossed[int(np.argmax(smallest))]


def _trained(
    features: NDArray[np.floating],
    labels: Ints,
    sites: Ints,
    groups: Ints,
    order: dict[tuple[int, int], list[int]],
    step: int,
    half: int,
    test: int,
) -> tuple[Ints, NDArray[np.bool_]]:
    """The fixed test images, and which are right after training with cells of half -/+ step slides."""
    parts: dict[str, list[NDArray[np.int64]]] = {"train": [], "val": [], "test": []}
    keys = list(order)
    for position, (label, site) in enumerate(keys):
        slides = order[label, site]
        # The diagonal of the 2 x 2 design loses what the other diagonal gains.
        count = half - step if position in (0, 3) else half + step
        pieces = {"test": slides[:test], "val": slides[test : test + 1], "train": slides[test + 1 :][:count]}
        for name, piece in pieces.items():
            rows = (labels == label) & (sites == site) & np.isin(groups, piece)
            parts[name].append(np.flatnonzero(rows))
    train, val, held = (np.concatenate(parts[name]) for name in ("train", "val", "test"))
    model = _best_probe(features, labels, train, val)
    return held, model.predict(features[held]) == labels[held]


def _best_probe(features: NDArray[np.floating], labels: Ints, train: Ints, val: Ints):  # type: ignore[no-untyped-def]
    from sklearn.linear_model import LogisticRegression

    best, chosen = -1.0, None
    for penalty in _PENALTIES:
        model = LogisticRegression(C=penalty, max_iter=1000).fit(features[train], labels[train])
        score = balanced(labels[val], model.predict(features[val]) == labels[val])
        if score > best:
            best, chosen = score, model
    assert chosen is not None
    return chosen


def balanced(truth: Ints, right: NDArray[np.bool_]) -> float:
    """Balanced accuracy of images of class `truth` [n] of which `right` [n] are right."""
    return float(np.mean([right[truth == label].mean() for label in np.unique(truth)]))
