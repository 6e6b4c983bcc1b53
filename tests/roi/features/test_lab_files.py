"""Feature files as TRIDENT, CLAM and AnnData write them: the same calls, keys, dtypes and attributes."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

import histobench as hb
from histobench.core.errors import HistobenchError
from histobench.roi.plan.plan_file import plan_from

SCALES = {"patch_size": 256, "patch_size_level0": 512, "level0_magnification": 40, "target_magnification": 20}


def save_h5(path: Path, arrays: dict[str, np.ndarray], attributes: dict[str, dict[str, object]]) -> None:
    """Write as TRIDENT's and CLAM's `save_h5` do: resizable datasets in chunks of one row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            shape = {"maxshape": (None, *values.shape[1:]), "chunks": (1, *values.shape[1:])}
            dataset = file.create_dataset(key, shape=values.shape, dtype=values.dtype, **shape)
            dataset[:] = values
            dataset.attrs.update(attributes.get(key, {}))


def slides(root: Path, *, kind: str = "slide", count: int = 12) -> tuple[Path, Path, np.ndarray]:
    """Slide vectors or tiles of TRIDENT, with a table that names every slide but the last."""
    draw = np.random.default_rng(3)
    folder = root / ("slide_features_titan" if kind == "slide" else "features_uni_v1")
    vectors = (draw.normal(size=(count, 6)) + 2.0 * (np.arange(count) % 2)[:, None]).astype(np.float32)
    coords = np.stack([512 * np.arange(20), np.full(20, 1024)], axis=1).astype(np.int64)
    for number, vector in enumerate(vectors):
        name = f"S{number:02d}"
        rows = vector if kind == "slide" else np.tile(vector, (20, 1))
        told: dict[str, object] = {"name": name, "savetodir": str(folder)}
        arrays = {"features": rows, "coords": coords if number else coords[0]}
        arrays = arrays if kind == "slide" else {"features": rows, "coords": coords}
        save_h5(folder / f"{name}.h5", arrays, {"features": told, "coords": {**SCALES, **told}})
    table = pd.DataFrame({"image_path": [f"S{number:02d}.svs" for number in range(count - 1)]})
    table["label"] = ["ab"[number % 2] for number in range(count - 1)]
    table["split"] = ["train" if number < count // 2 else "test" for number in range(count - 1)]
    table.to_csv(root / "labels.csv", index=False)
    return folder, root / "labels.csv", vectors


def test_slide_vectors_of_trident_are_read_beside_the_coordinates_of_their_tiles(tmp_path: Path) -> None:
    folder, labels, vectors = slides(tmp_path)
    np.testing.assert_array_equal(hb.load_features(folder, labels).train.X, vectors[:6])


@pytest.mark.parametrize("empty", ["slide", "tiles", "old coordinates"])
def test_an_empty_slide_matters_only_where_the_table_names_it(
    empty: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, labels, _ = slides(tmp_path, kind="slide" if empty == "slide" else "tiles")
    coords = np.zeros(0) if empty == "old coordinates" else np.zeros((0, 2), np.int64)
    for name in ("S11", "S02"):
        save_h5(folder / f"{name}.h5", {"features": np.zeros(0, np.float32), "coords": coords}, {})
    train = hb.load_features(folder, labels).train
    assert "have no tiles and are left out, such as S02.h5" in caplog.text
    assert "S11" not in caplog.text
    assert len(train.X) == (5 if empty == "slide" else 100)


@pytest.mark.parametrize("writer", ["TRIDENT", "CLAM"])
def test_pt_files_hold_an_array_or_a_tensor(writer: str, tmp_path: Path) -> None:
    source, labels, vectors = slides(tmp_path)
    folder = tmp_path / "pt"
    folder.mkdir()
    for number, file in enumerate(sorted(source.glob("*.h5"))):
        torch.save(
            vectors[number] if writer == "TRIDENT" else torch.from_numpy(vectors[number]),
            folder / f"{file.stem}.pt",
        )
    np.testing.assert_array_equal(hb.load_features(folder, labels).test.X, vectors[6:11])


@pytest.mark.slow
def test_h5ad_rows_belong_to_the_slides_of_obs(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    _, labels, vectors = slides(tmp_path)
    names = [f"S{number:02d}" for number in range(12) for _ in range(3)]
    obs = pd.DataFrame({"slide_id": names}, index=[str(row) for row in range(36)])
    anndata.AnnData(vectors.repeat(3, axis=0), obs=obs).write_h5ad(tmp_path / "tiles.h5ad")
    sets = hb.load_features(tmp_path / "tiles.h5ad", labels)
    np.testing.assert_array_equal(sets.train.X, vectors[:6].repeat(3, axis=0))
    assert set(np.asarray(sets.train.groups)) == {f"S{number:02d}" for number in range(6)}


def test_combine_takes_the_given_features_and_downloads_nothing(tmp_path: Path) -> None:
    folder, labels, _ = slides(tmp_path)
    values = {"datasets": [str(labels)], "features": [f"uni_v1={folder}", f"conch_v15={folder}"]}
    plan = plan_from({**values, "combine": ["uni_v1+conch_v15"]}, where="x", base=tmp_path)
    assert plan.encoders[2:] == ("uni_v1@elsewhere+conch_v15@elsewhere",)
    mixed = plan_from(
        {**values, "encoders": ["uni_v1"], "combine": ["uni_v1+conch_v15"]}, where="x", base=tmp_path
    )
    assert mixed.encoders[-1] == "uni_v1+conch_v15@elsewhere"


@pytest.mark.parametrize("kind", ["order", "names", "names as array", "arr_0", "paths", "one per slide"])
def test_arrays_are_read_with_names_or_in_the_order_of_the_table(kind: str, tmp_path: Path) -> None:
    _, labels, vectors = slides(tmp_path)
    rows, place = vectors[:11], tmp_path / ("x.npz" if kind in ("arr_0", "paths") else "x.npy")
    shuffled = np.random.default_rng(1).permutation(11)
    names = np.asarray([f"S{number:02d}" for number in shuffled])
    if kind == "order":
        np.save(place, rows)
    elif kind == "arr_0":
        np.savez(place, rows)
    elif kind == "paths":
        np.savez(place, embeddings=rows[shuffled], paths=names)
    elif kind == "one per slide":
        place = tmp_path / "arrays"
        place.mkdir()
        for number, row in enumerate(rows):
            np.save(place / f"S{number:02d}.npy", row)
    else:
        np.save(place, rows[shuffled])
        if kind == "names":
            (tmp_path / "x_names.txt").write_text("\n".join(f"tiles/{name}.png" for name in names) + "\n")
        else:
            np.save(tmp_path / "x_names.npy", names)
    found = hb.load_features(place, labels)
    np.testing.assert_array_equal(found.train.X, rows[:6])
    np.testing.assert_array_equal(found.test.X, rows[6:])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.npy", np.ones((7, 4)), "has 7 rows, but labels lists 11 images"),
        ("x.npy", np.ones((12, 4)), "which a .npz does with one of img_names, names,"),
        ("x.npy", np.full((11, 4), "a"), "cannot be read (ValueError: could not convert string"),
        ("x.npz", {"X": np.ones((2, 3, 4))}, "has features of shape (2, 3, 4)"),
        ("x.npy", np.full((11, 4), np.nan), "has NaN or infinite features in 11 rows"),
        ("x.npz", {"rows": np.ones((11, 4))}, "expected one of features, embeddings, embedding, feats, X"),
        ("x.npz", {"X": np.ones((11, 4)), "names": np.arange(3)}, "11 rows of features but 3 names (names)"),
        ("d/S00.npy", np.ones((3, 4)), "does not name its 3 rows"),
        ("named.npy", np.ones((12, 4)), "has 12 rows of features but named.txt has 2 names"),
    ],
)
def test_bad_arrays_are_one_line(name: str, content: object, words: str, tmp_path: Path) -> None:
    _, labels, _ = slides(tmp_path)
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    (tmp_path / "named.txt").write_text("S00\nS01\n")
    if isinstance(content, dict):
        np.savez(file, **content)
    else:
        np.save(file, content)
    with pytest.raises(HistobenchError) as caught:
        hb.load_features(file if file.parent == tmp_path else file.parent, labels)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
