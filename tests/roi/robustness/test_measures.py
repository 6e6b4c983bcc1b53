"""Probes, clusters, confounding and intervals against scikit-learn, croma and plain resampling."""

from __future__ import annotations

import numpy as np
import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.robustness import confounding
from histobench.roi.robustness.clustering import clustering_score
from histobench.roi.robustness.confounding import apd, confounding_schedule, nipd
from histobench.roi.robustness.indices import Evidence, Margins
from histobench.roi.robustness.intervals import (
    difference,
    draw_groups,
    interval,
    of_evidence,
    of_mean,
    of_quantile,
    tail_of,
)
from histobench.roi.robustness.probes import leave_one_site_out, site_probe
from histobench.roi.robustness.redrawn import of_clustering, of_schedule


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


def test_leaving_a_site_out_equals_scikit_learns_leave_one_group_out() -> None:
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.model_selection import LeaveOneGroupOut
    from sklearn.neighbors import KNeighborsClassifier

    x, label, site, group = _made()
    found = leave_one_site_out(
        x, label, site, group, lambda a, b, c: KNeighborsClassifier(5).fit(a, b).predict(c)
    )
    for train, test in LeaveOneGroupOut().split(x, label, site):
        guess = KNeighborsClassifier(5).fit(x[train], label[train]).predict(x[test])
        assert found.per_site[int(site[test][0])] == pytest.approx(
            balanced_accuracy_score(label[test], guess)
        )
    assert found.worst == min(found.per_site.values())


def test_clusters_follow_what_pulls_harder() -> None:
    x, label, site, _ = _made(label_pull=4.0, site_pull=0.0, n=96)
    assert clustering_score(x, label, site, runs=3, most_clusters=4).value > 0.3
    x, label, site, _ = _made(label_pull=0.0, site_pull=4.0, n=96)
    assert clustering_score(x, label, site, runs=3, most_clusters=4).value < -0.3


def test_apd_and_nipd_equal_croma() -> None:
    croma = pytest.importorskip("croma")
    accuracies = np.random.default_rng(3).uniform(0.6, 0.9, (5, 7))
    steps = np.linspace(0, 1, 5)
    assert nipd(accuracies, steps, chance=0.5) == pytest.approx(croma.nipd(accuracies, steps, 0.5), abs=1e-12)
    assert apd(accuracies) == pytest.approx(croma.apd(accuracies), abs=1e-12)


@pytest.mark.slow
def test_confounded_training_costs_accuracy_only_where_the_site_pulls() -> None:
    x, label, site, group = _made(label_pull=0.6, site_pull=3.0)
    pulled = confounding_schedule(x, label, site, group, repeats=2)
    assert pulled.cramers_v[0] == 0
    assert pulled.cramers_v[-1] == 1
    assert nipd(pulled.accuracies, pulled.cramers_v, chance=0.5) < -0.1
    x, label, site, group = _made(label_pull=3.0, site_pull=0.0)
    free = confounding_schedule(x, label, site, group, repeats=2)
    assert abs(nipd(free.accuracies, free.cramers_v, chance=0.5)) < 0.1


def test_sets_that_cannot_be_measured_say_why() -> None:
    x, label, site, group = _made()
    with pytest.raises(HistobenchError, match="one site only"):
        site_probe(x, np.zeros_like(site), group)
    with pytest.raises(HistobenchError, match="two groups"):
        site_probe(x, site, site)
    with pytest.raises(HistobenchError, match="no site can be left out"):
        leave_one_site_out(x, site, site, group, lambda a, b, c: np.zeros(len(c), dtype=np.int64))
    with pytest.raises(HistobenchError, match="share two sites"):
        clustering_score(x, label, label)
    with pytest.raises(HistobenchError, match=r"cannot be staged|smallest of the four"):
        confounding_schedule(x, label, label, group)
    with pytest.raises(HistobenchError, match="not above chance"):
        nipd(np.full((3, 2), 0.4), np.array([0.0, 0.5, 1.0]), chance=0.5)


def test_intervals_equal_resampling_the_images_themselves() -> None:
    draw = np.random.default_rng(5)
    groups = draw.integers(0, 9, 200)
    evidence = Evidence(draw.integers(0, 5, 200).astype(float), draw.integers(0, 5, 200).astype(float), k=5)
    margins = Margins(draw.normal(size=200), m=5)
    times = draw_groups(groups, draws=40, seed=1)
    names = np.unique(groups)
    for row, counts in enumerate(times):
        rows = np.concatenate(
            [
                np.flatnonzero(groups == name)
                for name, count in zip(names, counts, strict=True)
                for _ in range(count)
            ]
        )
        again = Evidence(evidence.so[rows], evidence.os[rows], k=5)
        drawn = Margins(margins.values[rows], m=5)
        assert of_evidence(evidence, groups)(times[row : row + 1])[0] == pytest.approx(again.value)
        for redrawn, judge in (
            (of_quantile(margins.values, groups, 0.5), drawn.median),
            (tail_of(margins.values, groups), drawn.tail_mean),
            (of_mean((margins.values <= 0).astype(float), groups), drawn.share_below),
        ):
            assert redrawn(times[row : row + 1])[0] == pytest.approx(judge, abs=1e-12)


def test_a_difference_is_paired() -> None:
    draw = np.random.default_rng(6)
    groups = np.repeat(np.arange(20), 10)
    base = draw.normal(size=20)[groups]
    times = draw_groups(groups, draws=500)
    one, other = of_mean(base + 0.3, groups), of_mean(base, groups)
    found, p = difference([float(base.mean() + 0.3), float(base.mean())], [one, other], times)
    assert found.low == pytest.approx(0.3)
    assert found.high == pytest.approx(0.3)
    assert p < 0.01
    same, p = difference([1.0, 1.0], [one, one], times)
    assert (same.low, same.high, p) == (0.0, 0.0, 1.0)
    alone = interval(0.4, other, draw_groups(np.zeros(5, dtype=np.int64), draws=3))
    assert alone.low is None


def test_the_clustering_score_in_a_draw_is_that_of_repeated_images() -> None:
    from sklearn.metrics import adjusted_rand_score

    x, label, site, group = _made(label_pull=1.0, site_pull=1.0, n=96)
    found = clustering_score(x, label, site, runs=3, most_clusters=4)
    (combination,) = found.per_combination.values()
    times = draw_groups(group, draws=12, seed=2)
    values = of_clustering(found, label, site, group)(times)
    for row, value in zip(times, values, strict=True):
        drawn = np.repeat(np.arange(96), row[group])
        judge = [
            adjusted_rand_score(label[drawn], clusters[drawn])
            - adjusted_rand_score(site[drawn], clusters[drawn])
            for clusters in combination.clusters
        ]
        assert value == pytest.approx(np.mean(judge), abs=1e-12)
    # Without groups of one class the combination says nothing.
    assert np.isnan(of_clustering(found, label, site, group)(times * ((np.arange(48) // 2) % 2))).all()


@pytest.mark.slow
def test_apd_and_nipd_in_a_draw_are_those_of_repeated_test_images() -> None:
    from functools import partial

    from sklearn.metrics import balanced_accuracy_score

    x, label, site, group = _made(label_pull=0.8, site_pull=1.5, n=240)
    found = confounding_schedule(x, label, site, group, repeats=3)
    times = draw_groups(group, draws=12, seed=2)
    area = partial(nipd, cramers_v=found.cramers_v, chance=0.5)
    redrawn = {value: of_schedule(found, label, site, group, value)(times) for value in (apd, area)}
    for k, row in enumerate(times):
        columns = []
        for each in found.tested:
            drawn = np.repeat(np.arange(len(each.rows)), row[group[each.rows]])
            truth, place = label[each.rows], site[each.rows]
            if len(set(zip(truth[drawn], place[drawn], strict=True))) < 4:
                continue
            # Every drawn image weighs so much that its class and site keep their share of the test images.
            weights = [
                ((truth == truth[k]) & (place == place[k])).sum()
                / ((truth[drawn] == truth[k]) & (place[drawn] == place[k])).sum()
                for k in drawn
            ]
            guesses = [np.where(right, truth, 1 - truth)[drawn] for right in each.right]
            columns.append([balanced_accuracy_score(truth[drawn], g, sample_weight=weights) for g in guesses])
        for value, values in redrawn.items():
            assert values[k] == pytest.approx(value(np.array(columns).T), abs=1e-12)


def test_a_patient_with_both_classes_is_never_trained_and_tested_on(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, site, group = _made(n=480)
    label = np.tile([0, 1], 240)  # every patient has both classes
    seen = []
    probe = confounding._best_probe

    def watched(features, labels, train, val):  # type: ignore[no-untyped-def]
        seen.append((set(group[train]), set(group[val])))
        return probe(features, labels, train, val)

    monkeypatch.setattr(confounding, "_best_probe", watched)
    monkeypatch.setattr(confounding, "_PENALTIES", (1.0,))
    found = confounding_schedule(x, label, site, group, repeats=2)
    steps = len(found.cramers_v)
    for k, (train, val) in enumerate(seen):
        test = set(group[found.tested[k // steps].rows])
        assert not train & test
        assert not val & (train | test)
    assert found.slides_per_cell == 12  # 48 patients in four cells


def test_a_drop_from_nothing_is_no_drop() -> None:
    with pytest.raises(HistobenchError, match="relative drop"):
        apd(np.array([[0.0, 0.8], [0.4, 0.4]]))
