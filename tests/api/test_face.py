"""The Python face: what a notebook user writes works as written, and gives what the command line gives."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import cohen_kappa_score

import histobench as hb
from builders import MEAN_ENCODER
from histobench.api.features import TemporaryResults
from histobench.roi.data.demo import write_demo_dataset

DATE = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.+Z]*")
matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiles")
    table = write_demo_dataset(folder, name="demo", train_per_class=6, test_per_class=4, size=64, seed=0)
    # The few tiles of the demo come from one patient each side; without patients, images are the units.
    pd.read_csv(table).drop(columns="group").to_csv(table, index=False)
    return table


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An encoder that is over in no time, with a name."""
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(MEAN_ENCODER)
    return f"colors={file}:Mean"


@pytest.fixture(scope="module")
def bench(tiles: Path, own: str, tmp_path_factory: pytest.TempPathFactory) -> hb.Benchmark:
    results = tmp_path_factory.mktemp("results") / "r"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HISTOBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        return hb.run(
            hb.load_dataset(tiles),
            [own, "tiny-vl"],
            tasks=["KNN", "Proto", "Few-shot"],
            results=results,
            n_shot=[1, 2],
            n_iter=5,
            n_neighbors=3,
            n_bootstrap=50,
            num_workers=0,
        )


@pytest.mark.slow
def test_a_dataset_shows_and_checks_itself(tiles: Path) -> None:
    data = hb.load_dataset(tiles)
    assert "9 classes" in repr(data)
    assert "<table" in data._repr_html_()
    assert data.check().errors == ()
    assert list(data.to_frame().columns) == ["image", "label", "class", "split", "group"]
    assert len(data.to_frame()) == len(data)


@pytest.mark.slow
def test_pairs_are_compared_and_printed(bench: hb.Benchmark) -> None:
    compared = bench.compare(metric="balanced_accuracy", task="KNN")
    frame = compared.to_frame()
    assert list(frame.columns[-2:]) == ["p (Holm)", "holds"]
    assert len(frame) == 1
    ranked = compared.ranked()
    assert frame["difference"].item() == pytest.approx(ranked["value"].iloc[0] - ranked["value"].iloc[1])
    assert "tiny-vl" in repr(compared)
    shown = bench._repr_html_()
    assert "demo: balanced accuracy [95 % interval], preset uni" in shown
    assert f"{compared.ranked()['value'].iloc[0]:.3f}" in shown


@pytest.mark.slow
def test_predictions_of_several_settings_need_one(bench: hb.Benchmark) -> None:
    with pytest.raises(hb.HistobenchError, match="setting: choose one of"):
        bench.predictions("tiny-vl", task="Few-shot")


@pytest.mark.slow
def test_mistakes_are_the_wrong_images_the_surest_first(bench: hb.Benchmark) -> None:
    found, every = bench.mistakes("tiny-vl", "KNN"), bench.predictions("tiny-vl", task="KNN")
    wrong = every[every["label"] != every["predicted"]].set_index("image")
    excess = {name: row[row["predicted"]] - row[row["label"]] for name, row in wrong.iterrows()}
    assert found.frame.set_index("image")["excess"].to_dict() == pytest.approx(excess)
    assert found.frame["excess"].is_monotonic_decreasing
    assert found._repr_html_().count("<img") == min(24, len(wrong))
    assert repr(found).startswith(f"{len(wrong)} of {len(every)} test images are wrong\n")


@pytest.mark.slow
def test_figures_are_drawn(bench: hb.Benchmark) -> None:
    figures = (
        bench.plot().axes[0],
        bench.plot.leaderboard(task="KNN"),
        bench.plot.confusion("tiny-vl", "KNN", normalize=False),
        bench.plot.few_shot(),
        bench.plot.embedding("tiny-vl"),
    )
    ranked, said = bench.compare(task="KNN").ranked()[::-1], bench.predictions("tiny-vl", task="KNN")
    assert [label.get_text() for label in figures[1].get_yticklabels()] == ranked["encoder"].tolist()
    bars, points = figures[1].collections[:2]
    np.testing.assert_allclose(points.get_offsets()[:, 0], ranked["value"])
    ends = [segment[:, 0] for segment in bars.get_segments()]
    np.testing.assert_allclose(ends, ranked[["low", "high"]])
    names = [label.get_text() for label in figures[2].get_yticklabels()]
    counts = pd.crosstab(said["label"], said["predicted"]).reindex(index=names, columns=names, fill_value=0)
    np.testing.assert_array_equal(figures[2].images[0].get_array(), counts)
    for axes in figures:
        assert axes.has_data()
        of_values = axes.get_xlabel() not in ("predicted", "first component")
        assert of_values == any(line.get_label() == "chance" for line in axes.lines)
        matplotlib.pyplot.close(axes.figure)


@pytest.mark.slow
def test_the_figure_of_similarity_shows_what_the_table_says(bench: hb.Benchmark) -> None:
    axes = bench.plot.similarity("neighbors", k=3)
    (value,) = hb.similarity(bench.folder, measures="neighbors", k=3)["value"]
    assert sorted(text.get_text() for text in axes.texts) == sorted(["1.00", "1.00", *[f"{value:.2f}"] * 2])
    assert {label.get_text() for label in axes.get_yticklabels()} == {"colors", "tiny-vl"}
    matplotlib.pyplot.close(axes.figure)
    draw = np.random.default_rng(0)
    rows = dict(zip("ab", draw.normal(size=(2, 60, 4)), strict=True))
    wrong = dict(zip("ab", draw.random((2, 60)) < 0.4, strict=True))
    alone, grouped = (
        hb.similarity(rows, groups=groups, errors=wrong, k=3).set_index("measure")
        for groups in (None, [str(k // 6) for k in range(60)])
    )
    assert alone.loc["errors", "value"] == pytest.approx(cohen_kappa_score(*wrong.values()))
    assert alone.loc["cka", "low"] != grouped.loc["cka", "low"]


@pytest.mark.slow
def test_features_are_arrays_and_are_evaluated_without_a_trace(
    tiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: hb.Benchmark
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    features = hb.extract(hb.load_dataset(tiles), "tiny-vl", num_workers=0)
    assert features.train.X.shape == (54, hb.create_encoder("tiny-vl").dim)
    assert len(features.test.y) == len(features.test.names) == 36
    before = sorted(tmp_path.rglob("*"))
    result = hb.evaluate(features.train, features.test, tasks=["KNN"], n_neighbors=3)
    assert sorted(tmp_path.rglob("*")) == before
    arrays = features.train.X, features.test.X, features.train.y, features.test.y
    stored = bench.get_run("tiny-vl", "KNN").metrics
    for found in (result, hb.evaluate(*arrays, tasks=["KNN"], n_neighbors=3)):
        assert found.get_run().metrics == stored


@pytest.mark.slow
def test_results_that_nobody_keeps_go_with_the_last_who_holds_them() -> None:
    held = TemporaryResults()
    folder = held.folder
    (folder / "file").write_text("x")
    del held
    gc.collect()
    assert not folder.exists()


@pytest.fixture
def undivided(tiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """The tiles without splits, of thirty patients with two slides each."""
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    frame = pd.read_csv(tiles)[["image_path", "label"]]
    frame["image_path"] = [str(tiles.parent / path) for path in frame["image_path"]]
    number = np.arange(len(frame)) // 9
    frame["slide"] = [f"{n}-{row % 2}" for row, n in enumerate(number)]
    frame["patient"] = number
    return frame


@pytest.mark.slow
def test_a_run_has_the_split_that_was_looked_at(undivided: pd.DataFrame, tmp_path: Path) -> None:
    data = hb.load_dataset(undivided, split="0.6/0.4", seed=7)
    bench = hb.run(data, "tiny-vl", tasks="Proto", results=tmp_path / "r", n_bootstrap=20, num_workers=0)
    frame = data.to_frame()
    tested = {Path(path).name for path in frame[frame["split"] == "test"]["image"]}
    shown = bench.predictions("tiny-vl", task="Proto")["image"]
    assert {Path(path).name for path in shown} == tested
    with pytest.raises(hb.HistobenchError, match="seed: datasets were split with 7, the run is asked for 3"):
        hb.run(data, "tiny-vl", tasks="Proto", results=tmp_path / "other", seed=3)
    assert not (tmp_path / "other").exists()


def test_encoders_are_a_frame() -> None:
    shown = hb.list_encoders(open=True)
    assert shown.to_frame()["name"].tolist() == [spec.name for spec in shown]
    assert "<table" in shown[:2]._repr_html_()


@pytest.mark.slow
def test_another_seed_draws_other_demo_tiles(tmp_path: Path) -> None:
    asked = {"train_per_class": 1, "test_per_class": 1, "size": 32}
    drawn = [hb.demo_dataset(tmp_path / str(seed), seed=seed, **asked).to_frame() for seed in (0, 1)]
    zero, one = ({Path(path).read_bytes() for path in frame["image"]} for frame in drawn)
    assert not zero & one
