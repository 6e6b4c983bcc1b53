"""Hyper-parameters are chosen on patients that were not fitted on, wherever patients are known."""

from __future__ import annotations

import numpy as np
import pytest

from histobench.roi.evaluation.context import Choosing, choosing
from histobench.roi.protocols.linear_probe import folds, held_out


def patients(n_patients: int, *, images: int = 6, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, list]:
    """Labels and groups of patients of one class each, as in a set of tumour types."""
    labels = np.repeat(np.arange(n_patients) % classes, images)
    order = np.random.default_rng(seed).permutation(len(labels))
    groups = np.repeat([f"p{number}" for number in range(n_patients)], images)
    return labels[order], groups[order].tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n_patients", [6, 9, 41])
def test_no_patient_is_both_fitted_on_and_chosen_by(n_patients: int, seed: int) -> None:
    labels, groups = patients(n_patients, seed=seed)
    parts = [held_out(labels, groups, seed=seed), *folds(labels, groups, seed=seed)]
    for fit, rest in parts:
        assert not {groups[row] for row in fit} & {groups[row] for row in rest}
        assert sorted([*fit, *rest]) == list(range(len(labels)))
        assert len(rest) > 0
    fit, rest = parts[0]
    assert set(labels[fit]) == {0, 1, 2}
    if n_patients >= 9:
        assert 0.1 < len(rest) / len(labels) < 0.4
    assert sorted(np.concatenate([rest for _, rest in parts[1:]])) == list(range(len(labels)))
    np.testing.assert_array_equal(held_out(labels, groups, seed=seed)[1], rest)


def test_a_class_of_one_patient_stays_in_training() -> None:
    labels = np.array([0] * 12 + [1] * 12 + [2] * 3)
    groups = [*(f"a{k // 3}" for k in range(12)), *(f"b{k // 3}" for k in range(12)), "c", "c", "c"]
    for seed in range(10):
        fit, rest = held_out(labels, groups, seed=seed)
        assert set(labels[fit]) == {0, 1, 2}
        assert set(labels[rest]) == {0, 1}


def test_images_without_a_group_are_groups_of_their_own() -> None:
    labels = np.repeat([0, 1], 10)
    _, rest = held_out(labels, [""] * 20)
    assert np.bincount(labels[rest]).tolist() == [2, 2]


def test_groups_that_cannot_be_divided_are_said_and_images_are_held_out_where_no_class_can_be() -> None:
    labels, two = [0, 0, 1, 1, 2, 2], ("p", "q", "r", "s", "t", "u")
    one_each, one = ("p", "p", "q", "q", "r", "r"), ("p", "q", "r", "r", "", "")
    assert choosing(labels, two, "group", "abc") == Choosing(two)
    for groups, choose_by in ((two, "image"), (None, "group"), (("",) * 6, "group")):
        assert choosing(labels, groups, choose_by, "abc") == Choosing(None)
    found = choosing(labels, one, "group", "abc")
    assert (found.groups, found.chosen_by) == (one, "group")
    assert found.warning.startswith("class b: the training images come from one group")
    found = choosing(labels, one_each, "group", "abc")
    assert (found.groups, found.chosen_by) == (None, "image")
    assert "no group can be held out" in found.warning
