"""Similarity of encoders against definitions that we did not write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import cohen_kappa_score
from sklearn.neighbors import NearestNeighbors

import histobench as hb
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.comparison import similarity as module
from histobench.roi.comparison.similarity import neighbors_of, similarity

Floats = NDArray[np.float64]


def _hsic(kernel: Floats, other: Floats) -> float:
    """Song et al. 2012, equation 5, with the matrices written out."""
    n = len(kernel)
    k, m = kernel - np.diag(np.diag(kernel)), other - np.diag(np.diag(other))
    ones = np.ones(n)
    first = np.trace(k @ m)
    second = (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
    third = 2 / (n - 2) * (ones @ k @ m @ ones)
    return float((first + second - third) / (n * (n - 3)))


def _cka(x: Floats, y: Floats) -> float:
    kernel, other = x @ x.T, y @ y.T
    return _hsic(kernel, other) / np.sqrt(_hsic(kernel, kernel) * _hsic(other, other))


def _draw(n: int = 60, p: int = 7, q: int = 5) -> tuple[Floats, Floats]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(n, p)) + 3
    return x, x[:, :3] @ draw.normal(size=(3, q)) + draw.normal(size=(n, q))


def debiased_cka(x: np.ndarray, y: np.ndarray) -> float:
    (found,) = similarity({"x": x, "y": y}, measures=["cka"])
    return found.value


def test_cka_is_that_of_the_definition_and_its_interval_that_of_leaving_groups_out() -> None:
    x, y = _draw()
    groups = np.arange(60) % 6
    without = np.array([_cka(x[groups != g], y[groups != g]) for g in range(6)])
    error = np.sqrt(5 / 6 * ((without - without.mean()) ** 2).sum())
    (found,) = similarity({"x": x, "y": y}, measures=["cka"], groups=[f"p{g}" for g in groups])
    assert found.value == pytest.approx(_cka(x, y), rel=1e-10)
    assert found.value - found.low == pytest.approx(stats.t.ppf(0.975, 5) * error, rel=1e-6)


def test_single_precision_of_large_sets_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _draw(400, 30, 20)
    expected = debiased_cka(x, y)
    monkeypatch.setattr(module, "DOUBLE", 0)
    assert debiased_cka(x, y) == pytest.approx(expected, abs=1e-4)


def test_no_image_is_its_own_neighbor_however_many_copies_it_has() -> None:
    rows = torch.tensor(np.random.default_rng(0).normal(size=(12, 3)))
    rows[4:10] = rows[3]
    near = neighbors_of(rows, 3)
    assert near.shape == (12, 3)
    assert not (near == np.arange(12)[:, None]).any()
    assert set(near[9]) <= set(range(3, 9))


def test_neighbors_and_errors_against_scikit_learn() -> None:
    x, y = _draw()
    draw = np.random.default_rng(2)
    wrong = {"a": draw.random(60) < 0.3, "b": draw.random(60) < 0.4}
    found = {each.measure: each for each in similarity({"a": x, "b": y}, errors=wrong, k=5)}

    def near(rows: Floats) -> NDArray[np.int64]:
        fitted = NearestNeighbors(n_neighbors=6, metric="cosine", algorithm="brute").fit(rows)
        indices: NDArray[np.int64] = fitted.kneighbors(rows, return_distance=False)[:, 1:]
        return indices

    shared = [len(set(one) & set(other)) / 5 for one, other in zip(near(x), near(y), strict=True)]
    assert found["neighbors"].value == pytest.approx(np.mean(shared))
    assert found["errors"].value == pytest.approx(cohen_kappa_score(wrong["a"], wrong["b"]))
    for each in found.values():
        assert each.low is not None
        assert each.high is not None
        assert each.value is not None
        assert each.low < each.value < each.high


@pytest.mark.slow
def test_the_command_and_python_read_a_results_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = _draw()
    names = [f"t{i}.png" for i in range(60)]
    rows = [f"{n},{'ab'[i % 2]},{'train' if i < 30 else 'test'},p{i // 3}" for i, n in enumerate(names)]
    (tmp_path / "labels.csv").write_text("image_path,label,split,group\n" + "\n".join(rows))
    for name, values in (("one", x), ("two", y)):
        np.savez(tmp_path / f"{name}.npz", features=values.astype(np.float32), img_names=np.asarray(names))
    hb.run(
        tmp_path / "labels.csv",
        features=[str(tmp_path / "one.npz"), str(tmp_path / "two.npz")],
        tasks=["KNN"],
        results=tmp_path / "results",
        device="cpu",
    )
    table = hb.similarity(tmp_path / "results", k=5)
    assert set(table["measure"]) == {"cka", "neighbors", "errors"}
    cka = table.query("measure == 'cka'")["value"].item()
    assert cka == pytest.approx(_cka(x[30:], y[30:]), abs=1e-4)
    (grouped,) = similarity({"x": x[30:], "y": y[30:]}, groups=[i // 3 for i in range(30)], measures=["cka"])
    assert table.query("measure == 'cka'")["low"].item() == pytest.approx(grouped.low, abs=1e-4)
    assert main(["similarity", str(tmp_path / "results"), "--k", "5"]) == 0
    assert f"{cka:.3f}" in capsys.readouterr().out
    assert (tmp_path / "results" / "similarity.json").is_file()
    assert main(["similarity", str(tmp_path)]) == 2


def test_encoders_are_ordered_by_average_linkage(tmp_path: Path) -> None:
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    from histobench.roi.comparison.similarity_table import Similarity, clustered, read_similarities

    names = ["a", "b", "c", "d", "e"]
    draw = np.random.default_rng(3)
    values = np.triu(draw.uniform(0, 1, (5, 5)), 1)
    found = [
        Similarity("set", "cka", names[i], names[j], float(values[i, j]))
        for i, j in zip(*np.triu_indices(5, 1), strict=True)
    ]
    order, branches = clustered(found, dataset="set")
    distance = np.where(np.eye(5), 0, 1 - (values + values.T))
    joined = linkage(squareform(distance), "average", optimal_ordering=True)
    assert order == [names[leaf] for leaf in leaves_list(joined)]
    assert sorted(far[1] for _, far in branches) == pytest.approx(sorted(joined[:, 2]))
    assert {place for places, far in branches for place, d in zip(places, far, strict=True) if d == 0} == {
        *range(5)
    }
    assert read_similarities(tmp_path / "similarity.json") == []
    (tmp_path / "similarity.json").write_text('{"similarity": [{"first": 1}]}')
    with pytest.raises(HistobenchError, match="is not a file of `histobench similarity`"):
        read_similarities(tmp_path / "similarity.json")
