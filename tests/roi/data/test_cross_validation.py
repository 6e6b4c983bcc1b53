"""Folds: whole groups, balanced classes, every image tested once, drawn again in every repeat."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from histobench.core.errors import HistobenchError
from histobench.roi.data.cross_validation import splits_of
from histobench.roi.data.split import imbalance
from histobench.roi.options import Scheme, scheme_of

NAMES = [f"{k:04d}.png" for k in range(300)]


def patients(seed: int = 0, n: int = 300, groups: int = 40) -> tuple[np.ndarray, list[str]]:
    """Patients of unequal size who have mostly one class."""
    rng = np.random.default_rng(seed)
    own = np.sort(rng.choice(groups, size=n, p=rng.dirichlet(np.full(groups, 3.0))))
    usual = rng.choice(3, size=groups, p=[0.5, 0.3, 0.2])
    labels = np.where(rng.random(n) < 0.8, usual[own], rng.integers(3, size=n))
    return labels, [f"p{k}" for k in own]


def fold_table(labels: np.ndarray, tests: list[np.ndarray]) -> np.ndarray:
    return np.stack([np.bincount(labels[test], minlength=3) for test in tests]).astype(float)


@pytest.mark.parametrize("groups", [False, True])
def test_every_image_is_tested_once_in_every_repeat_and_no_group_is_torn_apart(groups: bool) -> None:
    labels, of = patients()
    splits = splits_of(labels, of if groups else None, NAMES, Scheme(3, 5), seed=1)
    assert [(split.repeat, split.fold) for split in splits] == [
        (r, f) for r in (1, 2, 3) for f in range(1, 6)
    ]
    for repeat in (1, 2, 3):
        tested = np.concatenate([split.test for split in splits if split.repeat == repeat])
        assert sorted(tested) == list(range(300))
    for split in splits:
        assert sorted([*split.train, *split.test]) == list(range(300))
        if groups:
            assert not {of[k] for k in split.train} & {of[k] for k in split.test}


def test_single_images_are_as_balanced_as_scikit_learns_folds() -> None:
    labels, _ = patients()
    ours = fold_table(labels, [s.test for s in splits_of(labels, None, NAMES, Scheme(1, 5))])
    theirs = fold_table(labels, [test for _, test in StratifiedKFold(5).split(labels, labels)])
    assert (np.ptp(ours, axis=0) <= np.maximum(np.ptp(theirs, axis=0), 1)).all()
    assert np.ptp(ours.sum(axis=1)) <= 1


@pytest.mark.slow
def test_groups_are_about_as_balanced_as_scikit_learns_folds() -> None:
    worse = []
    for seed in range(8):
        labels, of = patients(seed)
        shares = np.full(5, 0.2)
        ours = fold_table(labels, [s.test for s in splits_of(labels, of, NAMES, Scheme(1, 5), seed=seed)])
        folds = StratifiedGroupKFold(5, shuffle=True, random_state=seed).split(labels, labels, of)
        theirs = fold_table(labels, [test for _, test in folds])
        worse.append(float(imbalance(ours, shares)) - float(imbalance(theirs, shares)))
    assert np.median(worse) < 0.02


def test_repeats_are_other_folds_and_the_seed_decides() -> None:
    labels, of = patients()
    first, again, other = (splits_of(labels, of, NAMES, Scheme(2, 2), seed=seed) for seed in (0, 0, 1))
    assert all((a.test == b.test).all() for a, b in zip(first, again, strict=True))
    assert {of[k] for k in first[0].test} not in ({of[k] for k in split.test} for split in first[1:])
    assert sorted(first[0].test) != sorted(other[0].test)


def test_the_order_of_the_images_does_not_matter() -> None:
    labels, of = patients()
    turn = np.random.default_rng(3).permutation(300)
    straight = splits_of(labels, of, NAMES, Scheme(2, 3), seed=4)
    turned = splits_of(labels[turn], [of[k] for k in turn], [NAMES[k] for k in turn], Scheme(2, 3), seed=4)
    for a, b in zip(straight, turned, strict=True):
        assert {NAMES[k] for k in a.test} == {NAMES[turn[k]] for k in b.test}


def test_leaving_out_one_group_tests_every_group_alone() -> None:
    labels, of = patients()
    splits = splits_of(labels, of, NAMES, Scheme(1, 0))
    assert sorted({of[k] for k in split.test}.pop() for split in splits) == sorted(set(of))
    assert all(len({of[k] for k in split.test}) == 1 for split in splits)


def test_an_image_without_a_group_is_a_group_of_its_own() -> None:
    splits = splits_of(np.array([0, 1, 0, 1]), ["a", "a", "", ""], NAMES[:4], Scheme(1, 0))
    assert sorted(len(split.test) for split in splits) == [1, 1, 2]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("five", None, None), "repeats x folds such as 5x2"),
        (("5x1", None, None), "1x2 or more"),
        (("5x2", 5, None), "not both"),
        ((None, None, 3), "`repeats` needs `folds`"),
    ],
)
def test_a_scheme_that_is_none_says_what_is_expected(
    flags: tuple[str | None, int | None, int | None], message: str
) -> None:
    with pytest.raises(HistobenchError, match=message):
        scheme_of(*flags)


def test_more_folds_than_patients_are_refused() -> None:
    with pytest.raises(HistobenchError, match=r"2 groups .* do not make 5 folds"):
        splits_of(np.array([0, 1, 0, 1]), ["a", "a", "b", "b"], NAMES[:4], Scheme(1, 5))
