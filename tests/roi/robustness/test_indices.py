"""Indices of robustness against croma, the published implementation, and against slow loops."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.robustness import site_neighbours as neighbours
from histobench.roi.robustness.indices import (
    candidates_for,
    choose_k,
    cross_site_margin,
    margin_aware_index,
    robustness_index,
)
from histobench.roi.robustness.site_neighbours import find_neighbours, norms_of, pair_distances

croma = pytest.importorskip("croma", reason="croma is not installed")
logging.getLogger("croma").setLevel(logging.ERROR)


def _made(seed: int, n: int = 240, d: int = 16, labels: int = 3, sites: int = 3, groups: int = 24):  # type: ignore[no-untyped-def]
    draw = np.random.default_rng(seed)
    group = draw.integers(0, groups, n)
    site = group % sites
    label = draw.integers(0, labels, n)
    centres = draw.normal(size=(labels, d)), draw.normal(size=(sites, d)), draw.normal(size=(groups, d))
    x = centres[0][label] + 1.2 * centres[1][site] + 0.5 * centres[2][group] + draw.normal(size=(n, d))
    return x, label, site, group


def _manifest(label: np.ndarray, site: np.ndarray, group: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "dataset": "d",
            "sample_id": [str(i) for i in range(len(label))],
            "image_path": [f"{i}.png" for i in range(len(label))],
            "label": label,
            "center": site,
            "group_id": group,
            "slide_id": group,
        }
    )


def _judged(
    kind: type, x: np.ndarray, label: np.ndarray, site: np.ndarray, group: np.ndarray, **more: object
):  # type: ignore[no-untyped-def]
    return kind.compute(x, _manifest(label, site, group), confounder_column="center", **more)  # type: ignore[attr-defined]


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [5, 11, 30])
def test_ri_and_mari_equal_croma(seed: int, k: int) -> None:
    x, label, site, group = _made(seed)
    near = find_neighbours(x, label, site, group, k=k, m=5)
    judge = _judged(croma.RI, x, label, site, group, k_candidates=[k])
    assert robustness_index(near, label, site, k=k).value == pytest.approx(judge.value, abs=1e-9)
    tau = croma.MaRI.recommend_tau(x, _manifest(label, site, group), confounder_column="center", k=k)
    ours = margin_aware_index(near, x, label, site, k=k)
    assert ours.tau == pytest.approx(tau, abs=1e-12)
    judge = _judged(croma.MaRI, x, label, site, group, k_candidates=[k], tau=tau)
    assert ours.value == pytest.approx(judge.value, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_chosen_k_is_cromas(seed: int) -> None:
    x, label, site, group = _made(seed)
    candidates = [k for k in candidates_for(len(x)) if k <= 101]
    near = find_neighbours(x, label, site, group, k=101, m=5)
    k, _ = choose_k(near, label, candidates)
    judge = _judged(croma.RI, x, label, site, group, k_candidates=candidates)
    assert robustness_index(near, label, site, k=k).value == pytest.approx(judge.value, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("m", [1, 5])
def test_croma_equals_croma(seed: int, m: int) -> None:
    x, label, site, group = _made(seed)
    ours = cross_site_margin(find_neighbours(x, label, site, group, k=5, m=m))
    judge = _judged(croma.CRoMa, x, label, site, group, m=m)
    assert [ours.median, ours.tail_mean, ours.share_below] == pytest.approx(
        [judge.value, judge.ltm_alpha, judge.f0], abs=1e-9
    )


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, label, site, group = _made(7)
    whole = find_neighbours(x, label, site, group, k=20, m=5)
    monkeypatch.setattr(neighbours, "_PRODUCTS", 17 * len(x))
    parts = find_neighbours(x, label, site, group, k=20, m=5)
    assert (whole.index == parts.index).all()
    assert np.array_equal(whole.so.distance, parts.so.distance)


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 40])
def test_neighbours_equal_a_slow_loop_even_among_copies(copies: int) -> None:
    x, label, site, group = _made(3, n=120)
    x = np.repeat(x[: len(x) // copies], copies, axis=0)[:120].astype(np.float32)
    label, site, group = label[: len(x)], site[: len(x)], group[: len(x)]
    near = find_neighbours(x, label, site, group, k=9, m=3)
    norms = norms_of(x)
    unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    for i in range(len(x)):
        others = [j for j in range(len(x)) if group[j] != group[i]]
        distance = {j: min(max(1 - float(unit[i] @ unit[j]), 0), 2) for j in others}
        ranked = sorted(others, key=lambda j: distance[j])[:9]
        apart = pair_distances(x, norms, np.full(9, i), near.index[i].astype(np.int64))
        assert np.allclose(apart, [distance[j] for j in ranked], atol=1e-12)
        for name, same_label in (("so", True), ("os", False)):
            kind = [
                j
                for j in others
                if (label[j] == label[i]) == same_label and (site[j] == site[i]) != same_label
            ]
            nearest = sorted(distance[j] for j in kind)[:3]
            assert np.allclose(getattr(near, name).distance[i][: len(nearest)], nearest, atol=1e-12)


def test_a_set_without_crossed_sites_has_no_margin() -> None:
    x, label, _, group = _made(1)
    near = find_neighbours(x, label, label.copy(), group, k=5, m=5)
    with pytest.raises(HistobenchError, match="crossed"):
        cross_site_margin(near)
