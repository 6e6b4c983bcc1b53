"""Features that other tools computed: their layouts, the match with the labels, and the way back."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import histobench as hb
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.tidy_rows import read_rows
from histobench.roi.encoders.own_name import COMPUTED_ELSEWHERE
from histobench.roi.features.elsewhere import combine_features, find_parts
from histobench.roi.features.feature_file import load, save
from histobench.roi.protocols import attention_mil

DIM = 12


def _table(path: Path, rows: list[tuple[str, ...]]) -> Path:
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["image_path", "label", "split", "group"])
        writer.writerows(rows)
    return path


def trident_folder(root: Path, slides: int = 16) -> tuple[Path, Path]:
    """Files as TRIDENT writes them: resizable features in chunks of a row, coordinates, attributes."""
    draw = np.random.default_rng(0)
    folder = root / "features_uni_v1"
    folder.mkdir(parents=True)
    rows = []
    for number in range(slides):
        label, tiles, name = number % 2, int(draw.integers(4, 9)), f"TCGA-{number:02d}.abc"
        with h5py.File(folder / f"{name}.h5", "w") as file:
            values = (draw.normal(size=(tiles, DIM)) + 2.0 * label).astype(np.float32)
            features = file.create_dataset("features", data=values, chunks=(1, DIM), maxshape=(None, DIM))
            features.attrs.update({"name": name, "savetodir": str(folder), "encoder": "uni_v1"})
            places = np.stack([512 * np.arange(tiles), np.full(tiles, 1024)], axis=1).astype(np.int64)
            coords = file.create_dataset("coords", data=places, maxshape=(None, 2))
            scales = {"patch_size": 256, "patch_size_level0": 512, "overlap": 0}
            scales |= {"level0_magnification": 40, "target_magnification": 20}
            scales |= {"level0_width": 40_000, "level0_height": 30_000}
            coords.attrs.update({**scales, "name": name, "savetodir": str(folder)})
        split = "train" if number < slides // 2 else "test"
        rows.append((f"{name}.svs", ("no", "yes")[label], split, f"P{number // 2}"))
    return folder, _table(root / "labels.csv", rows)


def test_tiles_of_trident_have_the_label_of_their_slide(tmp_path: Path) -> None:
    folder, labels = trident_folder(tmp_path)
    sets = hb.load_features(folder, labels)
    train = sets.train
    with h5py.File(folder / "TCGA-00.abc.h5") as file:
        expected = file["features"][:]
    np.testing.assert_array_equal(train.X[: len(expected)], expected)
    assert train.names[1] == "TCGA-00.abc_512_1024"
    assert set(train.y[: len(expected)]) == {0}
    assert train.groups is not None
    assert train.groups[0] == "P0"
    assert train.features.metadata["provenance"] == COMPUTED_ELSEWHERE
    assert train.features.metadata["encoder"] == "uni_v1@elsewhere"
    done = hb.evaluate(sets.train, sets.test, tasks=["KNN"], results=tmp_path / "r")
    assert set(done.to_frame()["encoder"]) == {"uni_v1@elsewhere"}
    (file,) = (tmp_path / "r").rglob("*_complete_results.json")
    assert json.loads(file.read_text())["additional_info"]["provenance"] == COMPUTED_ELSEWHERE
    assert {row["provenance"] for row in read_rows(file.parents[1] / "results.parquet")} == {
        COMPUTED_ELSEWHERE
    }


def test_clam_tensors_take_their_coordinates_from_the_h5_files_beside_them(tmp_path: Path) -> None:
    folder, labels = trident_folder(tmp_path)
    folder.rename(tmp_path / "h5_files")
    (tmp_path / "pt_files").mkdir()
    for file in (tmp_path / "h5_files").iterdir():
        with h5py.File(file) as box:
            values = torch.from_numpy(box["features"][:])
        torch.save(values[None] if "01" in file.stem else values, tmp_path / "pt_files" / f"{file.stem}.pt")
    one = hb.load_features(tmp_path / "h5_files", labels, name="uni")
    two = hb.load_features(tmp_path / "pt_files", labels, name="uni")
    np.testing.assert_array_equal(one.test.X, two.test.X)
    assert list(one.test.names) == list(two.test.names)
    shutil.rmtree(tmp_path / "h5_files")  # many keep the tensors only: their tiles are numbered
    alone = hb.load_features(tmp_path / "pt_files", labels, name="uni")
    np.testing.assert_array_equal(one.test.X, alone.test.X)
    assert list(alone.test.names)[:2] == ["TCGA-08.abc_0", "TCGA-08.abc_1"]
    with pytest.raises(HistobenchError, match=r"did you mean .*pt_files"):
        hb.load_features(tmp_path, labels)


def test_one_vector_per_slide_and_a_slide_without_tissue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, labels = trident_folder(tmp_path)
    with h5py.File(folder / "TCGA-03.abc.h5", "w") as file:
        file.create_dataset("features", data=np.zeros((0, DIM), np.float32))
        file.create_dataset("coords", data=np.zeros((0, 2), np.int64))
    with h5py.File(folder / "TCGA-04.abc.h5", "w") as file:  # one tile is a slide, too
        file.create_dataset("features", data=np.ones((1, DIM), np.float32))
        file.create_dataset("coords", data=np.asarray([[7, 9]], np.int64))
    names = set(hb.load_features(folder, labels).train.names)
    assert "TCGA-03.abc_0_1024" not in names
    assert "TCGA-04.abc_7_9" in names
    assert "1 of the train images of labels have no tiles and are left out" in caplog.text
    slides = tmp_path / "slide_features_titan"
    slides.mkdir()
    for number in range(16):
        with h5py.File(slides / f"TCGA-{number:02d}.abc.h5", "w") as file:
            file.create_dataset("features", data=np.full(5, number, np.float32))
    sets = hb.load_features(slides, labels)
    assert sets.train.X[:, 0].tolist() == list(range(8))
    assert sets.train.features.metadata["encoder"] == "titan@elsewhere"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("short coords", "coordinates of shape"),
        ("same coords", "TCGA-00.abc_512_1024 occurs twice"),
        ("nan", "NaN or infinite features in 1 rows"),
        ("no features", "has no features: expected one of features"),
        ("text", "TCGA-00.abc.h5 cannot be read"),
        ("width", "must have features of one length, found: 12, 13"),
        ("other", "16 of 16 images of labels are not in"),
        ("gone", "1 of 16 images of labels are not in"),
        ("twice", "is listed twice, also at"),
    ],
)
def test_bad_input_is_one_clear_line(damage: str, words: str, tmp_path: Path) -> None:
    folder, labels = trident_folder(tmp_path)
    file = folder / "TCGA-00.abc.h5"
    with h5py.File(file, "r+") as box:
        count = len(box["coords"])
        if damage == "short coords":
            box["coords"].resize((count - 1, 2))
        elif damage == "same coords":
            box["coords"][0] = box["coords"][1]
        elif damage == "nan":
            box["features"][0, 0] = np.nan
        elif damage == "no features":
            box.move("features", "other")
        elif damage == "width":
            del box["features"]
            box.create_dataset("features", data=np.zeros((count, DIM + 1), np.float32))
    if damage == "text":
        file.write_text("not HDF5")
    elif damage == "gone":
        file.unlink()
    elif damage == "other":
        _table(labels, [(f"x{i}", "ab"[i % 2], "train" if i < 8 else "test", "") for i in range(16)])
    elif damage == "twice":
        labels.write_text(labels.read_text() + "TCGA-00.abc,no,train,P0\n")
    with pytest.raises(HistobenchError) as caught:
        hb.load_features(folder, labels)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def _images(root: Path) -> tuple[Path, np.ndarray, list[str]]:
    draw = np.random.default_rng(1)
    names = [f"tile_{number}.png" for number in range(40)]
    rows = (draw.normal(size=(40, DIM)) + 2.0 * (np.arange(40) % 2)[:, None]).astype(np.float32)
    table = [
        (f"tiles/{name}", "ab"[i % 2], "train" if i < 20 else "test", f"p{i % 10 + (i // 20) * 10}")
        for i, name in enumerate(names)
    ]
    return _table(root / "labels.csv", table), rows, names


def test_npz_pt_and_parquet_are_matched_by_image_name(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    labels, rows, names = _images(tmp_path)
    order = np.random.default_rng(2).permutation(40)
    mixed = [names[i] for i in order]
    np.savez(tmp_path / "a.npz", features=rows[order], img_names=np.asarray(mixed))
    torch.save({"embeddings": rows[order], "labels": order % 2, "img_names": mixed}, tmp_path / "b.pt")
    pq.write_table(pa.table({"name": mixed, "embedding": list(rows[order])}), tmp_path / "c.parquet")
    flat = {"path": [f"/elsewhere/{name}" for name in mixed]}
    flat |= {f"f{k}": rows[order, k] for k in range(DIM)}
    pq.write_table(pa.table(flat), tmp_path / "d.parquet")
    for file in ("a.npz", "b.pt", "c.parquet", "d.parquet"):
        sets = hb.load_features(tmp_path / file, labels)
        np.testing.assert_array_equal(sets.train.X, rows[:20])
        np.testing.assert_array_equal(sets.test.X, rows[20:])
        assert sets.test.groups is not None
    torch.save({"embeddings": rows}, tmp_path / "bare.pt")
    with pytest.raises(HistobenchError, match="does not name its rows"):
        hb.load_features(tmp_path / "bare.pt", labels)
    np.savez(tmp_path / "twice.npz", features=rows, img_names=np.asarray([names[0]] * 40))
    with pytest.raises(HistobenchError, match="occurs twice"):
        hb.load_features(tmp_path / "twice.npz", labels)


@pytest.mark.slow
def test_a_run_of_the_command_line_and_the_way_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, rows, names = _images(tmp_path)
    np.savez(tmp_path / "mine.npz", features=rows, img_names=np.asarray(names))
    noise = np.random.default_rng(3).normal(size=rows.shape).astype(np.float32)
    np.savez(tmp_path / "noise.npz", features=noise, img_names=np.asarray(names))
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "datasets: [labels.csv]\nfeatures: [mine.npz, other=noise.npz]\n"
        "combine: [[mine@elsewhere, other@elsewhere]]\ntasks: [KNN, Zero-shot]\ndevice: cpu\n"
    )
    assert main(["run", str(plan)]) == 0
    shown = capsys.readouterr().out
    assert "@elsewhere: features computed elsewhere" in shown
    assert "mine@elsewhere+other@elsewhere is not shown to beat the better of its parts" in " ".join(
        shown.split()
    )
    results = tmp_path / "results"
    assert "computed elsewhere" in (results / "summary.md").read_text()
    encoders = set(hb.open_results(results).to_frame()["encoder"])
    assert encoders == {"mine@elsewhere", "other@elsewhere", "mine@elsewhere+other@elsewhere"}

    assert main(["report", str(results), "-o", str(tmp_path / "site")]) == 0
    boards = "".join(file.read_text() for file in (tmp_path / "site" / "data" / "board").glob("*.js"))
    assert "mine@elsewhere+other@elsewhere is not shown to beat the better of its parts" in boards
    assert "features computed elsewhere" in boards

    folder, names = results / "features", ("mine@elsewhere", "other@elsewhere")
    joined = load(next(folder.glob("*mine@elsewhere+other@elsewhere*train.pt")))
    both = np.concatenate([rows[:20], noise[:20]], axis=1).astype(np.float64)
    np.testing.assert_allclose(joined.embeddings, (both - both.mean(0)) / both.std(0), rtol=1e-4, atol=1e-5)
    parts = [next(folder.glob(f"*[[]{name}[]]*train.pt")) for name in names]
    other = load(parts[1])
    save(replace(other, metadata={**other.metadata, "fingerprint": "of other rows"}), parts[1])
    (again,) = combine_features("+".join(names), [{"train": part} for part in parts], tmp_path)
    assert again.fingerprint != joined.metadata["fingerprint"]

    assert main(["run", "--data", str(labels), "--features", str(tmp_path / "nothing")]) == 2
    assert "nothing does not exist" in capsys.readouterr().err


@pytest.mark.slow
def test_h5ad_is_anndata_s_own_in_both_directions(tmp_path: Path) -> None:
    import anndata
    import pandas as pd
    from scipy.sparse import csr_matrix

    labels, rows, names = _images(tmp_path)
    # The text of pandas 3 is written only where that is allowed, as values with a mask.
    with anndata.settings.override(allow_write_nullable_strings=True):
        obs = pd.DataFrame({"number": np.arange(40)}, index=pd.Index(names, dtype=object))
        dense = anndata.AnnData(X=rows, obs=obs)
        dense.write_h5ad(tmp_path / "dense.h5ad")
        anndata.AnnData(X=csr_matrix(rows), obs=obs).write_h5ad(tmp_path / "sparse.h5ad")
        layered = anndata.AnnData(obs=obs.copy())
        layered.obsm["X_uni"] = rows
        layered.write_h5ad(tmp_path / "layered.h5ad")
        categories = pd.Categorical(names)
        index = pd.Index([str(row) for row in range(40)], dtype=object)
        named = anndata.AnnData(X=rows, obs=pd.DataFrame({"image": categories}, index=index))
        named.write_h5ad(tmp_path / "named.h5ad")
    for file in ("dense", "sparse", "layered", "named"):
        np.testing.assert_array_equal(hb.load_features(tmp_path / f"{file}.h5ad", labels).train.X, rows[:20])

    folder, slides = trident_folder(tmp_path / "t")
    results = tmp_path / "results"
    hb.run(slides, features=[str(folder)], tasks=["KNN"], results=results, device="cpu")
    files = [str(file) for file in sorted((results / "features").glob("*.pt"))]
    assert main(["features", "export", *files, "--to", "h5ad", "-o", str(tmp_path / "out.h5ad")]) == 0
    back = anndata.read_h5ad(tmp_path / "out.h5ad")
    expected = hb.load_features(folder, slides)
    np.testing.assert_array_equal(back[back.obs["split"] == "train"].X, expected.train.X)
    assert set(back.obs["class"]) == {"no", "yes"}
    assert back.obsm["spatial"].shape == (back.n_obs, 2)
    assert "computed elsewhere" in back.uns["histobench"]


def test_a_folder_of_several_kinds_or_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HistobenchError, match="has no feature files"):
        find_parts(tmp_path)
    (tmp_path / "a.h5").touch()
    (tmp_path / "a.pt").touch()
    with pytest.raises(HistobenchError, match="several kinds"):
        find_parts(tmp_path)


def test_a_file_that_anndata_wrote(tmp_path: Path) -> None:
    """Written by anndata 0.12 under pandas 3: text as values with a mask, names in a categorical column."""
    rows = [f"x/t{i}.png,{'ab'[i % 2]},{'train' if i < 4 else 'test'},p{i}" for i in range(8)]
    (tmp_path / "labels.csv").write_text("image_path,label,split,group\n" + "\n".join(rows))
    sets = hb.load_features(Path(__file__).parent / "foreign" / "anndata.h5ad", tmp_path / "labels.csv")
    expected = np.arange(24).reshape(8, 3) % 7
    np.testing.assert_array_equal(np.concatenate([sets.train.X, sets.test.X]), expected)


OPTIONS = {"tasks": ["KNN", "Linear-Probe", "Patient"], "device": "cpu"}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Files of TRIDENT, their labels, and the results of a run on them."""
    root = tmp_path_factory.mktemp("evaluated")
    folder, labels = trident_folder(root)
    with labels.open() as handle:
        rows = list(csv.reader(handle))[1:]
    # Two slides of the same label are one patient.
    _table(labels, [(*row[:3], f"P{k // 4}{k % 2}") for k, row in enumerate(rows)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_mil, "EPOCHS", 2)
        hb.run(labels, features=[f"uni={folder}"], results=root / "one", **OPTIONS)
    return folder, labels, root / "one"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["h5ad", "parquet", "npz", "pt", "clam pt"])
def test_features_on_another_way_give_the_same_metrics_to_the_bit(
    kind: str, tmp_path: Path, evaluated: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_mil, "EPOCHS", 2)
    folder, labels, results = evaluated
    stored = [str(file) for file in sorted((results / "features").glob("*.pt"))]
    if kind == "pt":
        other = results / "features"
    elif kind == "clam pt":
        (tmp_path / "h5_files").symlink_to(folder)
        other = tmp_path / "pt_files"
        other.mkdir()
        for file in folder.iterdir():
            with h5py.File(file) as box:
                torch.save(torch.from_numpy(box["features"][:]), other / f"{file.stem}.pt")
    else:
        other = tmp_path / f"back.{kind}"
        assert main(["features", "export", *stored, "--to", kind, "-o", str(other)]) == 0
    if kind == "h5ad":
        import anndata

        again = anndata.read_h5ad(other)
        assert again.obsm["spatial"][1].tolist() == [512, 1024]
        other = tmp_path / "written.h5ad"
        again.write_h5ad(other)
    hb.run(labels, features=[f"uni={other}"], results=tmp_path / "two", **OPTIONS)
    found = 0
    for file in sorted(results.rglob("*_complete_results.json")):
        first, second = (
            json.loads((run / file.relative_to(results)).read_text())["metrics"]
            for run in (results, tmp_path / "two")
        )
        assert first == second
        found += 1
    assert found == 5
    one, two = (np.load(next(run.rglob("*_attention.npz"))) for run in (results, tmp_path / "two"))
    assert set(one) == set(two)
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


def test_sets_are_exported_from_python(tmp_path: Path) -> None:
    folder, labels = trident_folder(tmp_path)
    sets = hb.load_features(folder, labels)
    again = hb.load_features(sets.export(tmp_path / "sets.npz"), labels)
    np.testing.assert_array_equal(again.test.X, sets.test.X)
    assert list(again.test.names) == list(sets.test.names)
    with pytest.raises(ValueError, match="does not end in one of"):
        sets.export(tmp_path / "sets.csv")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (("f0", "f1", "f2", "x", "y", "age", "label"), ""),
        (("age", "label"), "has no features: expected one column of lists"),
        (("f0", "f1", "g_0", "g_1"), "such columns: f0 to f1; g_0 to g_1"),
    ],
)
def test_only_columns_of_one_name_are_features(tmp_path: Path, columns: tuple[str, ...], words: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {"name": [f"i{k}" for k in range(4)], **{name: [0.5, 1.5, 2.5, 3.5] for name in columns}}
    )
    pq.write_table(table, tmp_path / "f.parquet")
    if words:
        with pytest.raises(HistobenchError) as caught:
            find_parts(tmp_path / "f.parquet")
        assert words in str(caught.value)
    else:
        assert find_parts(tmp_path / "f.parquet")[0].read().shape == (4, 3)
