"""Pages on all encoders (similarity, shortlist), and the tiles with the most attention of each patient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import histobench as hb
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.report.encoder_pages import CELLS, LEVELS, attention_cells, attention_maps
from histobench.report.site import build_site
from report.site_data import unpacked

pytestmark = pytest.mark.slow

PATIENTS, TILES = 24, 3


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two encoders on tiles of patients, with pictures."""
    root = tmp_path_factory.mktemp("pages")
    draw = np.random.default_rng(0)
    names = [f"{p:02d}_{t}.png" for p in range(PATIENTS) for t in range(TILES)]
    patient = np.repeat(np.arange(PATIENTS), TILES)
    lines = ["image_path,label,split,group"]
    for name, p in zip(names, patient, strict=True):
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(root / name)
        lines.append(f"{name},{'ab'[p % 2]},{'train' if p < 14 else 'test'},P{p:02d}")
    (root / "tiles.csv").write_text("\n".join(lines))
    features = []
    for encoder in ("keep", "biomedclip"):
        values = draw.normal(size=(len(names), 6)) + 2.0 * (patient % 2)[:, None]
        np.savez(root / f"{encoder}.npz", features=values.astype(np.float32), img_names=np.asarray(names))
        features.append(f"{encoder}={root / encoder}.npz")
    hb.run(
        str(root / "tiles.csv"),
        features=features,
        tasks=["KNN", "Patient"],
        results=root / "results",
        device="cpu",
    )
    return root / "results"


def data(site: Path, key: str) -> Any:
    text = (site / "data" / f"{key}.js").read_text()
    return json.loads(text[text.index(",") + 1 : text.rindex(")")])


def test_patients_are_chosen_by_and_shown(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HistobenchError, match="leave `task` out"):
        hb.choose(results, task="KNN", patients=True)
    assert hb.choose(results, patients=True).task == "Patient, abmil"
    assert hb.choose(results, task="Patient").task == "Patient, abmil"
    assert main(["choose", str(results), "--patients", "--setting", "mean"]) == 0
    assert main(["similarity", str(results), "--measures", "cka"]) == 0
    assert "written:" in capsys.readouterr().out
    site = build_site(results, tmp_path / "site", images=results.parent / "tiles.csv").parent
    overview = data(site, "site")
    assert (overview["similarity"], overview["choice"]) == (True, True)
    (table,) = data(site, "similarity")
    assert (table["measure"], sorted(table["encoders"])) == (
        "cka",
        ["biomedclip@elsewhere", "keep@elsewhere"],
    )
    assert table["cells"][0][0] == [1.0, None, None]
    assert table["cells"][0][1] == table["cells"][1][0]
    choice = data(site, "choice")
    assert choice["task"] == "Patient, mean"
    assert choice["paragraph"].startswith("2 encoders were evaluated")
    assert len(overview["tiles"]) == 2  # abmil of two encoders
    shown = data(site, f"tiles/{overview['tiles'][0]}")
    assert [each["patient"] for each in shown] == [f"P{p}" for p in range(14, PATIENTS)]
    weights = [weight for _, weight, _ in shown[0]["tiles"]]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(1, abs=1e-4)
    assert all((site / picture).is_file() for each in shown for _, _, picture in each["tiles"])


def test_no_results_of_patients_is_one_line(tmp_path: Path) -> None:
    rows = [f"{i}.png,{'ab'[i % 2]},{'train' if i < 20 else 'test'}" for i in range(40)]
    (tmp_path / "t.csv").write_text("image_path,label,split\n" + "\n".join(rows))
    values = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    np.savez(tmp_path / "keep.npz", features=values, img_names=np.asarray([f"{i}.png" for i in range(40)]))
    hb.run(
        str(tmp_path / "t.csv"), features=[f"keep={tmp_path / 'keep'}.npz"], tasks=["KNN"],
        results=tmp_path / "results", device="cpu",
    )  # fmt: skip
    with pytest.raises(HistobenchError, match="no results per patient here; add Patient to the `tasks`"):
        hb.choose(tmp_path / "results", patients=True)


@pytest.mark.nightly
def test_attention_is_shown_where_the_tiles_are(tmp_path: Path, open_page: Any, expect: Any) -> None:
    """Files as TRIDENT writes them, with two slides of one patient and tiles off the grid of the others."""
    import h5py

    draw = np.random.default_rng(0)
    lines, folder = ["image_path,label,split,group"], tmp_path / "features_uni_v1"
    folder.mkdir()
    for slide in range(24):
        grid = np.stack(np.meshgrid(np.arange(9), np.arange(6)), axis=-1).reshape(-1, 2) * 512
        grid = grid[draw.random(len(grid)) < 0.8]
        grid[::7] += 100  # of another contour
        rows = draw.normal(size=(len(grid), 5)) + 2.0 * (slide % 2) * (grid[:, :1] > 2000)
        with h5py.File(folder / f"S{slide}.h5", "w") as box:
            box["features"], box["coords"] = rows.astype(np.float32), grid
        owner = 22 if slide == 23 else slide
        lines.append(f"S{slide},{'ab'[owner % 2]},{'train' if slide < 14 else 'test'},P{owner}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    results = tmp_path / "results"
    hb.run(
        str(tmp_path / "labels.csv"), features=[str(folder)], tasks=["Patient"], results=results, device="cpu"
    )
    attention = next(results.rglob("*_attention.npz"))
    maps = attention_maps(attention)
    assert {patient: len(found) for patient, found in maps.items() if len(found) > 1} == {"P22": 2}
    assert [found["slide"] for found in maps["P22"]] == ["S22", "S23"]
    with np.load(attention) as box:
        own = (box["slide"] == list(box["slides"]).index("S15")).nonzero()[0]
        share, coords = box["attention"][own] * len(own), box["coords"][own]
    cells = unpacked(maps["P15"][0]["cells"])
    assert cells.shape == (6, 9)
    (row, column) = np.rint((coords[share.argmax()][::-1] - coords.min(axis=0)[::-1]) / 512).astype(int)
    assert cells[row, column] == cells.max()
    assert (cells > 0).sum() == len({*map(tuple, np.rint((coords - coords.min(axis=0)) / 512).tolist())})
    site = build_site(results, tmp_path / "site")
    for width, scheme in ((1280, "light"), (390, "dark")):
        size = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
        page = open_page(site, "#/run/labels/uni_v1@elsewhere/Patient/abmil/uni", **size)
        expect(page.locator(".attended svg").first).to_be_visible()
        assert page.locator(".attended svg").count() == 10
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_slide_of_many_tiles_has_few_cells() -> None:
    coords = np.stack(np.meshgrid(np.arange(400.0), np.arange(250.0)), axis=-1).reshape(-1, 2) * 256
    share = np.where(coords[:, 0] < 51_200, 20.0, 0.02)
    cells = attention_cells(coords, share)
    assert max(cells.shape) == CELLS
    assert (cells[:, :20] == LEVELS).all()
    assert (cells[:, -20:] == 1).all()
    np.testing.assert_array_equal(attention_cells(coords[:1], share[:1]), [[LEVELS]])
    even = attention_cells(coords, np.ones(len(coords)))
    assert set(even.ravel()) == {LEVELS // 2 + 1}


def test_coordinates_of_a_table_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(1)
    owner = np.repeat(np.arange(20), 4)
    names = [f"{k}.png" for k in range(80)]
    rows = (draw.normal(size=(80, 4)) + 2.0 * (owner % 2)[:, None]).astype(np.float32)
    np.savez("mine.npz", features=rows, img_names=np.asarray(names))
    frame = pd.DataFrame({"image_path": names, "label": owner % 2, "group": [f"P{k}" for k in owner]})
    frame["split"] = np.where(owner < 12, "train", "test")
    frame["X"], frame["y"], frame["slide"] = 256 * (np.arange(80) % 2), 256 * (np.arange(80) % 4), "s"
    frame.to_csv("tiles.csv", index=False)
    for data in ("tiles.csv", hb.load_dataset(frame)):
        done = hb.run(data, features=["mine.npz"], tasks=["Patient"], results="results", device="cpu")
        maps = attention_maps(next(Path("results").rglob("*_attention.npz")))
        assert len(maps) == 8
        assert unpacked(maps["P12"][0]["cells"]).shape == (4, 2)
        assert "Robustness" not in set(done.to_frame()["task"])
    frame.loc[frame.index[-4:], "X"] = None  # a patient without coordinates has no map
    frame.to_csv("other.csv", index=False)
    hb.run("other.csv", features=["mine.npz"], tasks=["Patient"], results="others", device="cpu")
    assert len(attention_maps(next(Path("others").rglob("*_attention.npz")))) == 7
