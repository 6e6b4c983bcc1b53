"""Named site columns beside the group: read from everywhere, kept in every file, and checked."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from histobench.core.errors import HistobenchError
from histobench.roi.data.check import check_dataset, cramers_v, site_warnings
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.data.sites import Place
from histobench.roi.data.source import DatasetSource, load_dataset
from histobench.roi.evaluation.context import merged, rows_of
from histobench.roi.features.assemble import assemble, labelled
from histobench.roi.features.feature_file import FeatureSet, load, save
from histobench.roi.plan.notes import read_dataset_notes, write_dataset_notes
from histobench.roi.plan.plan_file import plan_from
from roi.registry.miniatures import tar_of


def table(folder: Path, text: str) -> Path:
    path = folder / "set.csv"
    path.write_text(text)
    return path


def columns(dataset: RoiDataset, split: str = "train") -> list[dict[str, str]]:
    return [dict(image.sites) for image in dataset.splits[split]]


LONG = "image_path,label,split,group,Scanner,site,lot\na.png,x,train,p1,S1,A,7\nb.png,y,test,p2,S2,,8\n"


def test_the_usual_columns_are_taken_by_themselves_and_others_when_asked(tmp_path: Path) -> None:
    path = table(tmp_path, LONG)
    assert columns(load_dataset(path)) == [{"scanner": "S1", "site": "A"}]
    assert columns(load_dataset(path), "test") == [{"scanner": "S2", "site": ""}]
    assert columns(load_dataset(path, site_columns=["Lot"])) == [{"scanner": "S1", "site": "A", "lot": "7"}]
    with pytest.raises(HistobenchError, match="no column 'clinic'"):
        load_dataset(path, site_columns=["clinic"])
    with pytest.raises(HistobenchError, match="another meaning"):
        load_dataset(path, site_columns=["label"])


def test_the_wide_layout_has_one_column_per_split(tmp_path: Path) -> None:
    text = "train_path,train_label,train_scanner,test_path,test_label,test_scanner\na.png,0,S1,b.png,1,S2\n"
    dataset = load_dataset(table(tmp_path, text))
    assert (columns(dataset), columns(dataset, "test")) == ([{"scanner": "S1"}], [{"scanner": "S2"}])


def test_sites_are_read_from_paths_of_tables_folders_and_shards(tmp_path: Path) -> None:
    regex = r"^(?P<hospital>[A-Z])_(?P<Lot>\d+)"
    text = "image_path,label,split,hospital\nt/A_7-x.png,0,train,old\nt/B_8-x.png,1,test,old\n"
    assert columns(load_dataset(table(tmp_path, text), site_regex=regex)) == [{"hospital": "A", "lot": "7"}]
    for name in ("train/X/A_7-1.png", "test/X/B_8-1.png"):
        (tmp_path / "tiles" / name).parent.mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "tiles" / name)
    tiles = tmp_path / "tiles"
    assert columns(load_dataset(tiles, site_regex=regex), "test") == [{"hospital": "B", "lot": "8"}]
    assert columns(load_dataset(tiles, site_regex=r"([A-Z])_\d")) == [{"site": "A"}]
    with pytest.raises(HistobenchError, match="finds no site in 'test/X/B_8-1"):
        load_dataset(tiles, site_regex="scanner")
    with pytest.raises(HistobenchError, match=r"no columns \(`site_columns`\); use `site_regex`"):
        load_dataset(tiles, site_columns=("lot",))
    about = json.dumps({"label": "x", "scanner": "S1", "lot": 3}).encode()
    (tmp_path / "train.tar").write_bytes(tar_of({"A_7.png": b"not looked at", "A_7.json": about}))
    shard = load_dataset(tmp_path / "train.tar", site_columns=("lot",))
    assert columns(shard) == [{"scanner": "S1", "lot": "3"}]
    assert columns(load_dataset(tmp_path / "train.tar", site_regex="([A-Z])_")) == [
        {"scanner": "S1", "site": "A"}
    ]


def test_feature_files_keep_sites_and_are_the_same_bytes_without_them(tmp_path: Path) -> None:
    features = FeatureSet(torch.ones(2, 3), torch.tensor([0, 1]), ("a", "b"), ("p", "q"))
    plain = save(features, tmp_path / "plain.pt")
    assert "sites" not in torch.load(plain, weights_only=True)
    assert load(plain).sites == {}
    sited = FeatureSet(
        torch.ones(2, 3), torch.tensor([0, 1]), ("a", "b"), ("p", "q"), sites={"scanner": ("S1", "")}
    )
    assert load(save(sited, tmp_path / "sited.pt")).sites == {"scanner": ("S1", "")}
    assert rows_of(sited, np.array([1])).sites == {"scanner": ("",)}
    assert merged(sited, sited).sites == {"scanner": ("S1", "", "S1", "")}
    content = torch.load(tmp_path / "sited.pt", weights_only=True)
    content["sites"]["scanner"][0] = "S9"
    torch.save(content, tmp_path / "changed.pt")
    with pytest.raises(HistobenchError, match="checksum"):
        load(tmp_path / "changed.pt")


def test_assembled_features_name_the_sites_of_their_images(tmp_path: Path) -> None:
    class Rows:
        def gather(self, keys: list[bytes], out: np.ndarray) -> None:
            out[:] = 1

    images = [RoiImage(Path("a"), 0, "a", "a", None, (("site", "A"),)), RoiImage(Path("b"), 0, "b", "b")]
    path = tmp_path / "f.pt"
    assemble(Rows(), images, [b"a", b"b"], dim=2, metadata={}, path=path)  # type: ignore[arg-type]
    assert load(path).sites == {"site": ("A", "")}


def test_typed_columns_reach_the_feature_file_as_far_as_they_are_known(tmp_path: Path) -> None:
    text = "image_path,label,split,x,y,slide\na.png,0,train,1.5,2,S1\nb.png,1,train,,,\nc.png,1,test,3,4,\n"
    images = load_dataset(table(tmp_path, text)).splits["train"]
    assert [image.place for image in images] == [Place(1.5, 2.0, "S1"), None]
    places = load(save(labelled(images, torch.ones(2, 3), {}), tmp_path / "f.pt")).places
    assert places is not None
    np.testing.assert_array_equal(places.coords, [[1.5, 2], [np.nan, np.nan]])
    assert places.columns["slide"].tolist() == ["S1", ""]
    other = load_dataset(table(tmp_path, text.replace("x,y,slide", "x,why,slide"))).splits["train"]
    assert [image.place for image in other] == [None, None]  # a slide alone is the group


def test_plans_and_notes_keep_how_sites_are_read(tmp_path: Path) -> None:
    entry = {"source": str(table(tmp_path, LONG)), "site_columns": ["lot"], "site_regex": "^(.)"}
    values = {"datasets": [entry], "encoders": "tiny-vl", "results": str(tmp_path / "r")}
    plan = plan_from(values, where="plan", base=tmp_path)
    assert plan.datasets[0].site_columns == ("lot",)
    write_dataset_notes(plan)
    note = read_dataset_notes(tmp_path / "r")["set"]
    assert note == DatasetSource(str(tmp_path / "set.csv"), site_regex="^(.)", site_columns=("lot",))
    assert columns(note.load()) == [{"scanner": "S1", "site": "a", "lot": "7"}]


def test_a_public_dataset_stands_in_a_plan_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISTOBENCH_DATA", str(tmp_path))
    values = {"datasets": "bach@eva", "encoders": "tiny-vl", "results": str(tmp_path / "r")}
    with pytest.raises(HistobenchError, match="histobench data get bach"):
        plan_from(values, where="command line", base=tmp_path)
    (tmp_path / "bach").mkdir()
    (tmp_path / "bach" / "dataset.json").write_text("{}")
    (tmp_path / "bach" / "bach.txt").write_text("x,0\ny,1\n")
    (tmp_path / "bach" / "bach@eva.csv").write_text(LONG)
    plan = plan_from(values, where="command line", base=tmp_path)
    assert plan.datasets[0].name == "bach@eva"
    dataset = DatasetSource.of(plan.datasets[0], plan).load()
    assert (dataset.name, dataset.classes) == ("bach@eva", ("x", "y"))
    write_dataset_notes(plan)
    assert read_dataset_notes(tmp_path / "r")["bach@eva"].load().splits == dataset.splits


def test_notes_of_earlier_versions_are_read(tmp_path: Path) -> None:
    old = {"source": "x.csv", "classes_file": None, "split": None, "group_regex": None}
    (tmp_path / "datasets.json").write_text(json.dumps({"x": {**old, "group_column": None, "seed": 3}}))
    assert read_dataset_notes(tmp_path) == {"x": DatasetSource("x.csv", seed=3)}


def sited(rows: list[tuple[str, int, str]]) -> RoiDataset:
    """A dataset from (split, label, site)."""
    images = [
        (split, RoiImage(Path(f"{k}.png"), label, f"{k}.png", f"{k}", None, (("scanner", site),)))
        for k, (split, label, site) in enumerate(rows)
    ]
    splits = {word: tuple(image for split, image in images if split == word) for word in ("train", "test")}
    return RoiDataset("set", ("x", "y"), splits)


def test_confounded_classes_and_sites_are_warned_of() -> None:
    crossed = sited(list(product(("train", "test"), (0, 1), "ab")))
    assert list(site_warnings(crossed)) == []
    same = sited([(split, label, "ab"[label]) for split in ("train", "test") for label in (0, 1)])
    found = list(site_warnings(same))
    assert "confounded (Cramer's V 1.00)" in found[0]
    assert found[1:] == ["2 classes come from one scanner each: 'x' from 'a', 'y' from 'b'"]
    moved = sited([("train", 0, "a"), ("train", 1, "a"), ("test", 0, "b"), ("test", 1, "b"), ("test", 0, "")])
    text = "\n".join(site_warnings(moved))
    assert "'b' occurs only in the test set" in text
    assert "'a' does not occur in the test set" in text
    assert "1 images have no scanner" in text


def test_the_check_of_a_dataset_tells_about_sites(tmp_path: Path) -> None:
    for number in range(4):
        Image.new("RGB", (4, 4), (number * 60, 0, 0)).save(tmp_path / f"{number}.png")
    rows = "0.png,x,train,A\n1.png,y,train,B\n2.png,x,test,A\n3.png,y,test,B\n"
    path = table(tmp_path, f"image_path,label,split,site\n{rows}")
    found = check_dataset(load_dataset(path)).of("sites")
    assert {finding.level for finding in found} == {"warning"}
    assert "confounded" in found[0].message


def test_cramers_v_is_scipys() -> None:
    from scipy.stats.contingency import association, crosstab

    draw = np.random.default_rng(0)
    one, other = draw.integers(0, 4, 90), draw.integers(0, 3, 90)
    judge = association(crosstab(one, other).count, method="cramer")
    assert cramers_v(list(one), list(other)) == pytest.approx(judge, abs=1e-12)
