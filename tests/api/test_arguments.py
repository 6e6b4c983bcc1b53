"""What Python users give by mistake: it works as they meant it, or one sentence names the parameter."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import histobench as hb
from histobench.roi.data.sites import SITE_COLUMNS
from histobench.roi.data.tables import COLUMNS

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own, and no warning goes unseen."""
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    paths = [folder / f"p{number // 4}_{number}.png" for number in range(24)]
    for path in paths:
        Image.fromarray(draw.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(path)
    return list(map(str, paths))


@pytest.fixture
def frame(pictures: list[str]) -> pd.DataFrame:
    return pd.DataFrame({"path": pictures, "label": ["a", "b"] * 12, "split": ["train"] * 16 + ["test"] * 8})


@pytest.fixture
def undivided(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns="split")


def test_what_is_given_reaches_the_evaluation_and_the_run(tmp_path: Path, monkeypatch: Any) -> None:
    asked: list[Any] = []
    for place in ("evaluation.evaluation_run.evaluate", "plan.whole_benchmark.run_benchmark"):
        monkeypatch.setattr(f"histobench.roi.{place}", lambda *a, **how: asked.append((a, how)) or exit())
    monkeypatch.setattr("histobench.report.site.build_site", lambda *a, **how: asked.append((a, how)))
    draw, parts = np.random.default_rng(0), {}
    for split, n in (("train", 12), ("val", 8), ("test", 10)):
        groups = [f"{split}-{k // 3}" for k in range(n)]
        parts[split] = draw.normal(size=(n, 3)).astype(np.float32), np.roll(np.arange(n) % 2, n // 8), groups
    (train, y, groups), val, (test, test_y, test_groups) = parts.values()
    names = {"preset": "sklearn", "seed": 7, "dataset": "d", "encoder": "e"}
    with pytest.raises(SystemExit):
        hb.evaluate(
            train, test, y, test_y, val=val, groups=test_groups, train_groups=groups, tasks="KNN",
            n_neighbors=3, results=tmp_path, **names,
        )  # fmt: skip
    ((request,), _) = asked.pop()
    for split, (rows, labels, groups) in parts.items():
        part = getattr(request, split)
        assert (part.labels.tolist(), list(part.groups)) == (labels.tolist(), groups)
        np.testing.assert_array_equal(part.embeddings, rows)
    assert {name: getattr(request, name) for name in names} == names
    assert (request.tasks, request.options.n_neighbors, request.results_dir) == (("KNN",), 3, tmp_path)
    splits = hb.FeatureSplits(dict.fromkeys(("train", "val", "test"), hb.Features(request.train)))
    with pytest.raises(SystemExit):  # what is named goes before what belongs to the training images
        hb.evaluate(splits, val=hb.Features(request.val))
    ((own,), _) = asked.pop()
    assert (own.train, own.val, own.test) == (request.train, request.val, request.train)
    told = {"images": "i", "title": "t", "thorough": True, "workers": 2}
    hb.Benchmark(tmp_path, ()).report("site", **told)
    assert asked.pop() == ((tmp_path, Path("site")), told)
    with pytest.raises(SystemExit):
        hb.run(tmp_path, "e", results=tmp_path, retry_failed=True)
    assert (asked[0][1]["keep_going"], asked[0][1]["retry_failed"]) == (False, True)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> hb.Benchmark:
    """Two encoders on three classes, from arrays."""
    results = tmp_path_factory.mktemp("results") / "r"
    draw = np.random.default_rng(0)
    y = np.arange(60) % 3
    for encoder in ("one", "two"):
        X = draw.normal(size=(60, 8)) + y[:, None]
        tasks = ["KNN", "Few-shot"] if encoder == "one" else ["KNN"]
        hb.evaluate(
            X[:40], X[40:], y[:40], y[40:],
            tasks=tasks, encoder=encoder, results=results, n_iter=3, n_shot=(1, 2), n_way=(),
        )  # fmt: skip
    return hb.open_results(results)


@pytest.mark.parametrize("seed", [-1, "x", 1.5, True, 2**70])
def test_a_seed_is_a_whole_number(undivided: pd.DataFrame, seed: Any) -> None:
    with pytest.raises(hb.HistobenchError, match=r"^seed: expected a whole number"):
        hb.load_dataset(undivided, split="0.7/0.3", seed=seed)


@pytest.mark.parametrize("split", [0.7, (0.7, "a"), {"train": 0.7, "test": 0.3}, (0.1,) * 10, (0.5,) * 3])
def test_other_shares_are_refused(undivided: pd.DataFrame, split: Any) -> None:
    with pytest.raises(hb.HistobenchError, match=r"^`?split`?:? .*(0\.7/0\.1/0\.2|add up to 1\.5)"):
        hb.load_dataset(undivided, split=split)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.iloc[:0], "data: the DataFrame has no rows"),
        (
            lambda f: f.rename(columns={"path": "where"}),
            r"no column 'image_path' \(nor path, .*it has: where",
        ),
        (lambda f: pd.concat([f, f["label"]], axis=1), "data: the DataFrame has 2 columns 'label'"),
        (lambda f: f.assign(path=f["path"].where(f.index != 3)), "row 3 of the DataFrame: no path"),
        (lambda f: f.assign(path=""), r"row 0 of the DataFrame: no path \(and 23 more"),
        (lambda f: f.assign(path=1.5), "row 0 .*: path: expected a path, found 1.5"),
        (lambda f: f.assign(label=f["label"].where(f.index > 0)), "row 0 of the DataFrame: .* has no label"),
        (
            lambda f: f.set_axis(list("abcdefghijklmnopqrstuvwx")).assign(split="foo"),
            r"data: row 0 \(index 'a'\) of the DataFrame: split 'foo' is not train",
        ),
        (lambda f: f.drop(columns="split"), "data: the DataFrame has no split column"),
        (
            lambda f: f.assign(label=pd.Series(["\udc80", "b"] * 12, dtype=object)),
            r"row 0 .*: label '\\udc80' is not valid Unicode",
        ),
    ],
)
def test_what_is_wrong_with_a_dataframe_is_said_by_its_rows(
    frame: pd.DataFrame, change: Any, message: str
) -> None:
    with pytest.raises(hb.HistobenchError, match=message) as caught:
        hb.load_dataset(change(frame))
    assert "frames" not in str(caught.value)  # the CSV in the cache is nobody's business
    assert len(str(caught.value).splitlines()) <= 4


@pytest.mark.parametrize(
    "change",
    [
        {"label": "category", "split": "category"},
        {"label": "string", "path": "string"},
        {"path": object, "label": object},
    ],
)
def test_columns_of_any_kind_are_read(frame: pd.DataFrame, change: Any) -> None:
    frame = frame.assign(scanner=[*"ab"] * 12)
    expected = hb.load_dataset(frame).to_frame()
    assert list(expected["scanner"]) == list(frame["scanner"])
    pd.testing.assert_frame_equal(hb.load_dataset(frame.astype(change)).to_frame(), expected)
    doubled = frame.astype(change).set_axis([0] * 24)
    doubled["path"] = [Path(path).name for path in frame["path"]]
    root = Path(frame["path"][0]).parent
    pd.testing.assert_frame_equal(hb.load_dataset(doubled, root=root).to_frame(), expected)


@pytest.mark.slow
def test_a_missing_file_is_named_by_its_row(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.loc[5, "path"] = str(tmp_path / "gone.png")
    (finding,) = hb.load_dataset(frame).check().errors
    assert str(finding).startswith("row 5 of the DataFrame: ")
    with pytest.raises(hb.HistobenchError, match="row 5 of the DataFrame") as caught:
        hb.run(frame, "tiny-vl", tasks="Proto", results=tmp_path / "r", num_workers=0)
    assert "frames" not in str(caught.value)


def test_the_names_of_columns_stand_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs/how-to/python.md").read_text(encoding="utf-8")
    for column, names in COLUMNS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{column}` |"))
        assert row.split("|")[2].strip() == ", ".join(f"`{name}`" for name in names)
    assert f"| {', '.join(f'`{name}`' for name in SITE_COLUMNS)} |" in text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": []}, "^data: give at least one"),
        ({"data": pd.Series(["a.png"])}, "^data: expected a"),
        ({"encoders": []}, "^encoders: give at least one"),
        ({"tasks": []}, "^tasks: give at least one"),
        ({"tasks": "Prot"}, "unknown task 'Prot'; did you mean Proto"),
        ({"results": None}, "^results: expected a path"),
    ],
)
def test_a_run_names_the_parameter_that_is_wrong(frame: pd.DataFrame, given: Any, message: str) -> None:
    with pytest.raises(hb.HistobenchError, match=message):
        hb.run(**{"data": frame, "encoders": "tiny-vl", "tasks": "proto", **given})


@pytest.mark.parametrize("ask", [hb.run, hb.extract])
def test_what_load_dataset_decides_is_said_to_be_its_parameter(tmp_path: Path, ask: Any) -> None:
    for label in "ab":
        (tmp_path / "tiles" / label).mkdir(parents=True)
    advice = rf"`split` 0\.7/0\.1/0\.2.* In {ask.__name__}, pass load_dataset\(\.\.\., split=.*\) as `data`$"
    with pytest.raises(hb.HistobenchError, match=advice):
        ask(tmp_path / "tiles", "tiny-vl")
    with pytest.raises(hb.HistobenchError, match=r"`split` 0\.7/0\.1/0\.2$"):
        hb.load_dataset(tmp_path / "tiles")


@pytest.mark.slow
def test_a_run_takes_dataframes_and_an_encoder(frame: pd.DataFrame, tmp_path: Path) -> None:
    asked = {"tasks": "proto", "results": tmp_path / "r", "n_bootstrap": 20, "num_workers": 0}
    bench = hb.run([frame], "tiny-vl", **asked)  # type: ignore[arg-type]
    assert (bench.datasets, bench.encoders) == (("data",), ("tiny-vl",))
    again = hb.run(frame, hb.create_encoder("tiny-vl", device="cpu"), **asked)  # type: ignore[arg-type]
    assert again.encoders == ("tiny-vl",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda b: b.predictions("one", "KNN", dataset="nope"), "of the dataset 'nope'.*known: data"),
        (lambda b: b.predictions("one", "KNN", setting="x"), "setting 'x' here; they are of no setting"),
        (lambda b: b.predictions(None, "KNN"), "^encoder: choose one of one, two$"),
        (lambda b: b.compare(encoders="ono", task="KNN"), "encoder 'ono' here; did you mean one"),
        (lambda b: b.compare(task="KNN", alpha="x"), "^alpha: expected a number above 0 and below 1, found"),
        (lambda b: b.compare(task="KNN", metric="foo"), "unknown metric 'foo'; known: accuracy"),
        (lambda b: b.plot.few_shot(metric="foo"), "^metric: there are no few-shot results of 'foo'; known"),
        (lambda b: b.plot.confusion("oen", "KNN"), "no results of the encoder 'oen' here; did you mean one"),
        (lambda b: b.plot.embedding("one", split="tst"), "^`split` 'tst' is unknown; did you mean test"),
        (lambda b: b.plot.embedding("one"), "hb.run keeps them there"),
        (lambda b: b.compare(task="KNN", dataset="nope"), "no results of the dataset .nope."),
        (lambda b: b.plot.similarity(k=0), "^`k`: expected a whole number of at least 1, found 0"),
        (lambda b: b.report(None), "^folder: expected a path"),
    ],
)  # fmt: skip
def test_an_unknown_choice_is_refused_with_the_choices(bench: hb.Benchmark, ask: Any, message: str) -> None:
    with pytest.raises(hb.HistobenchError, match=message):
        ask(bench)


@pytest.mark.slow
def test_one_encoder_may_be_a_string_and_a_task_in_any_case(bench: hb.Benchmark) -> None:
    assert bench.compare(encoders="one", task="knn").ranked()["encoder"].tolist() == ["one"]
    axes = bench.plot.confusion("one", "knn")
    assert axes.get_title() == "one, KNN"
    matplotlib.pyplot.close(axes.figure)


@pytest.mark.slow
def test_what_takes_a_folder_takes_a_benchmark(bench: hb.Benchmark) -> None:
    assert bench.compare("accuracy", task="KNN").ranked().dtypes["low"].kind == "f"
    assert len(hb.power(bench, encoders=["one", "two"], task="KNN", n_bootstrap=100)) == 1
    assert hb.verify(bench).empty
    choice = hb.choose(bench, task="KNN")
    assert repr(choice).startswith("shortlist by KNN")
    assert set(choice.to_frame()["encoder"]) == {"one", "two"}


@pytest.mark.slow
def test_splits_that_cannot_be_made_are_named_and_the_rest_is_there(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    frame["patient"] = np.arange(24) // 8
    asked: dict[str, Any] = {"tasks": "Proto", "results": tmp_path / "r", "num_workers": 0}
    bench = hb.run(frame, "tiny-vl", splits="5x5", **asked)
    assert bench.encoders == ("tiny-vl",)
    assert any("do not make 5 folds" in reason for reason in bench.skipped.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "columns"),
    [
        (("benign", "tumour"), ["benign", "tumour"]),
        (("label", "tumour"), ["probability of label", "tumour"]),
        (("group", "image"), ["probability of group", "probability of image"]),
    ],
)  # fmt: skip
def test_every_class_has_its_column_of_probabilities(classes: tuple[str, ...], columns: list[str]) -> None:
    labels = np.array(classes * 2)
    X = (labels[:, None] == np.array(classes)).astype(float)
    frame = hb.evaluate(X, X, labels, labels, tasks="Proto").predictions()
    assert frame.columns.tolist() == ["image", "label", "group", "predicted", *columns]
    assert frame["label"].tolist() == labels.tolist()
    assert np.allclose(frame[columns].sum(axis=1), 1)


def test_a_folder_without_results_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "results.jsonl").write_text("")
    (tmp_path / "empty").mkdir()
    for folder, message in (
        (tmp_path / "file", "it is a file; give the folder"),
        (agents, "holds episodes of agents; open it with hb.mint.open_runs"),
        (tmp_path / "empty", "make some first"),
        (tmp_path / "nothing", "no results folder at"),
        (None, "^folder: expected a path"),
    ):
        with pytest.raises(hb.HistobenchError, match=message):
            hb.open_results(folder)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "x" * 500}, "^name: .* at most 150 bytes"),
        ({"name": "half \udc80"}, "^name: expected a text"),
        ({"name": ".."}, "^name: .* does not end in a dot"),
        ({"site_columns": [3]}, "^site_columns: expected a text, found 3"),
        ({"group_regex": re.compile("p")}, "^group_regex: expected a text, found re.compile"),
    ],
)
def test_other_parameters_of_a_dataset_are_checked(frame: pd.DataFrame, given: Any, message: str) -> None:
    with pytest.raises(hb.HistobenchError, match=message):
        hb.load_dataset(frame, **given)


@pytest.mark.slow
def test_opened_results_stay_where_they_were(
    bench: hb.Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.folder.parent)
    opened = hb.open_results(bench.folder.name)
    monkeypatch.chdir(tmp_path)
    pd.testing.assert_frame_equal(opened.predictions("one", "KNN"), bench.predictions("one", "KNN"))
