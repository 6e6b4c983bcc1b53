"""Probes and intervals against scikit-learn, croma and new searches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.evaluation.robustness_task import RobustnessOptions, protocols
from histobench.roi.protocols.linear_probe import linear_probe
from histobench.roi.robustness import indices
from histobench.roi.robustness.indices import (
    candidates_for,
    choose_k,
    chosen_without,
    cross_site_margin,
    index_without,
    margin_aware_index,
    margins_without,
    robustness_index,
    sums_without,
)
from histobench.roi.robustness.leaving_out import units_of
from histobench.roi.robustness.site_neighbours import find_neighbours
from histobench.roi.robustness.site_probes import FitWithout, Ints, leave_one_site_out, site_probe


def refitted(fit_predict: Callable[..., Ints]) -> FitWithout:
    """A protocol that is trained anew without each unit, unless that leaves one class only."""

    def fit(
        x: NDArray[np.floating], y: Ints, new: NDArray[np.floating], units: Ints, count: int
    ) -> tuple[Ints, Ints]:
        full = fit_predict(x, y, new)
        left = np.tile(full, (count, 1))
        for unit in np.unique(units[units >= 0]):
            kept = units != unit
            if len(np.unique(y[kept])) > 1:
                left[unit] = fit_predict(x[kept], y[kept], new)
        return full, left

    return fit


def _made(seed: int = 0, *, label_pull: float = 1.0, site_pull: float = 1.0, n: int = 480, d: int = 8):  # type: ignore[no-untyped-def]
    draw = np.random.default_rng(seed)
    group = np.repeat(np.arange(48), n // 48)
    site, label = group % 2, (group // 2) % 2
    x = draw.normal(size=(n, d))
    x[:, 0] += 2 * label_pull * label
    x[:, 1] += 2 * site_pull * site
    return x, label, site, group


@pytest.mark.slow
def test_the_site_is_read_where_it_is_there_and_not_where_it_is_not() -> None:
    x, _, site, group = _made(site_pull=2.0)
    assert site_probe(x, site, group).auroc > 0.95
    x, _, site, group = _made(site_pull=0.0)
    assert abs(site_probe(x, site, group).auroc - 0.5) < 0.12


@pytest.mark.slow
def test_the_site_probe_is_scikit_learns_with_the_scaler_inside_of_the_folds() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, _, site, group = _made(site_pull=0.5)
    judge = cross_val_score(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        x,
        site,
        groups=group,
        cv=StratifiedGroupKFold(5, shuffle=True, random_state=42),
        scoring="roc_auc",
    )
    assert site_probe(x, site, group).per_fold == pytest.approx(list(judge), abs=1e-9)


@pytest.mark.slow
def test_leaving_a_site_out_equals_scikit_learns_leave_one_group_out() -> None:
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.model_selection import LeaveOneGroupOut
    from sklearn.neighbors import KNeighborsClassifier

    x, label, site, group = _made(n=192)
    fit = refitted(lambda a, b, c: KNeighborsClassifier(5).fit(a, b).predict(c))
    found = leave_one_site_out(x, label, site, group, group, fit)
    for train, test in LeaveOneGroupOut().split(x, label, site):
        guess = KNeighborsClassifier(5).fit(x[train], label[train]).predict(x[test])
        assert found.per_site[int(site[test][0])] == pytest.approx(
            balanced_accuracy_score(label[test], guess)
        )
    assert found.worst == min(found.per_site.values())
    both = (np.arange(192) % 4 == 0) & (group < 24)  # so many patients are at both sites, and not trained on
    moved = np.where(both, 1 - site, site)
    train, test = (moved == 0) & (group >= 24), moved == 1
    guess = KNeighborsClassifier(5).fit(x[train], label[train]).predict(x[test])
    apart = leave_one_site_out(x, label, moved, group, group, fit).per_site[1]
    assert apart == pytest.approx(balanced_accuracy_score(label[test], guess))
    for unit in (0, 1, 7):  # a patient that is left out neither trains nor tests
        kept = group != unit
        alone = leave_one_site_out(x[kept], label[kept], site[kept], group[kept], group[kept], fit)
        left = {place: values[unit] for place, values in found.without.items()}
        assert left == pytest.approx(alone.per_site)


def test_a_classifier_without_a_unit_is_that_of_the_other_images() -> None:
    """Centred by the mean of all; class 0 is of one unit alone, and unit 11 has no training image."""
    draw = np.random.default_rng(3)
    units, labels = np.repeat(np.arange(11), 10), draw.integers(1, 3, 110)
    labels[units == 4] = 0
    x, new = (draw.normal(size=(n, 40)).astype(np.float32) for n in (110, 50))
    x += draw.normal(size=(3, 40))[labels].astype(np.float32)
    center = x.astype(np.float64).mean(axis=0)
    near, queries = ((rows - center) / np.linalg.norm(rows - center, axis=1)[:, None] for rows in (x, new))
    cosine, y, ten = queries @ near.T, torch.from_numpy(labels), RobustnessOptions(n_neighbors=10)
    found = {name: fit(x, labels, new, units, 12) for name, fit in protocols(3, ten, []).items()}
    for unit in range(12):
        kept = np.flatnonzero(units != unit)
        places = np.argsort(-cosine[:, kept], axis=1)[:, :10]
        votes = [np.bincount(row, minlength=3).argmax() for row in labels[kept][places]]
        present = np.unique(labels[kept])
        means = np.stack([near[kept][labels[kept] == k].mean(axis=0) for k in present])
        apart = np.linalg.norm(queries[:, None] - means, axis=2)
        given = torch.from_numpy(x[kept]), y[kept], torch.from_numpy(new)
        expected = {"knn": votes, "prototype": present[apart.argmin(axis=1)]}
        expected["linear_probe"] = linear_probe(*given, n_classes=3).predicted
        for name, (full, left) in found.items():
            assert (left[unit] == expected[name]).mean() > 0.97, (name, unit)
            assert (left[11] == full).all()
    assert all((left != full).any() for full, left in found.values())


def test_sets_that_cannot_be_measured_say_why() -> None:
    x, _, site, group = _made()
    with pytest.raises(HistobenchError, match="only one site"):
        site_probe(x, np.zeros_like(site), group)
    with pytest.raises(HistobenchError, match="two groups"):
        site_probe(x, site, site)
    nothing = refitted(lambda a, b, c: np.zeros(len(c), dtype=np.int64))
    with pytest.raises(HistobenchError, match="no site can be left out"):
        leave_one_site_out(x, site, site, group, group, nothing)


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "pull", "k", "most"),
    [("equal", 0.0, 11, 200), ("uneven", 3.0, 21, 200), ("equal", 1.0, 5, 9), ("uneven", 3.0, 71, 200)],
)
def test_a_left_out_group_is_gone_as_query_and_as_neighbour(
    sizes: str, pull: float, k: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every index without a group equals a new search among the other images, however short the lists are."""
    from histobench.roi.robustness import site_neighbours as neighbours

    monkeypatch.setattr(neighbours, "_LISTED", 1)
    draw = np.random.default_rng(k)
    group = np.sort(draw.integers(0, 16, 320)) if sizes == "uneven" else np.repeat(np.arange(16), 20)
    group = np.unique(group, return_inverse=True)[1]
    label, site = group % 2, (group // 2) % 2
    x = draw.normal(size=(320, 6)) + pull * draw.normal(size=(16, 6))[group]
    x = (x + draw.normal(size=(2, 6))[label] + draw.normal(size=(2, 6))[site]).astype(np.float32)
    units = units_of(group, most=most).of_image
    near = find_neighbours(x, label, site, group, k=k, m=3, units=units)
    plain = robustness_index(near, label, site, k=k)
    weighted = margin_aware_index(near, x, label, site, k=k)
    data = (x, label, site, group, units)
    values = [index_without(*sums_without(near, each, *data)) for each in (plain, weighted)]
    margins = margins_without(near, cross_site_margin(near), units)
    for unit in range(int(units.max()) + 1):
        kept = units != unit
        rest = (label[kept], site[kept])
        again = find_neighbours(x[kept], *rest, group[kept], k=k, m=3)
        assert values[0][unit] == pytest.approx(robustness_index(again, *rest, k=k).value)
        judge = margin_aware_index(again, x[kept], *rest, k=k, tau=weighted.tau)
        assert values[1][unit] == pytest.approx(judge.value, abs=1e-5)
        alone = cross_site_margin(again)
        assert margins["median"][unit] == pytest.approx(alone.median, abs=1e-5)
        assert margins["tail"][unit] == pytest.approx(alone.tail_mean, abs=1e-5)
        assert margins["below"][unit] == pytest.approx(alone.share_below, abs=2 / 320)


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "patients", "classes", "most"),
    [("crossed", 12, 2, 200), ("confounded", 12, 3, 200), ("mixed", 60, 4, 200), ("mixed", 60, 3, 7)],
)
def test_k_without_a_group_is_the_one_chosen_from_the_other_images(
    kind: str, patients: int, classes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few and many patients, large and small, in blocks of few images."""
    monkeypatch.setattr(indices, "_VOTES_AT_ONCE", 1 << 14)
    draw = np.random.default_rng(patients + classes)
    group = np.unique(np.minimum(draw.geometric(3 / patients, 180), patients), return_inverse=True)[1]
    label = draw.integers(0, classes, 180) if kind == "mixed" else group % classes
    site = label % 2 if kind == "confounded" else group // classes % 2
    x = draw.normal(size=(180, 6)) + 0.5 * draw.normal(size=(classes, 6))[label]
    x = (x + draw.normal(size=(2, 6))[site]).astype(np.float32)
    units, sizes = units_of(group, most=most).of_image, candidates_for(120)
    near = find_neighbours(x, label, site, group, k=max(sizes), m=1, units=units)
    found = chosen_without(near, label, sizes, units)
    assert len(set(found.tolist())) > 1
    for unit, k in enumerate(found):
        kept = units != unit
        rest = (label[kept], site[kept], group[kept])
        again = find_neighbours(x[kept], *rest, k=max(sizes), m=1)
        assert k == choose_k(again, label[kept], sizes)[0]
