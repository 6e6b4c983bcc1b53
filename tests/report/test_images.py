"""Thumbnails, where images are found, and maps of embeddings."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from histobench.core.errors import HistobenchError
from histobench.core.files import write_json
from histobench.report import dataset_payload, embedding_map
from histobench.report.embedding_map import write_maps
from histobench.report.image_source import image_sources, open_source, relevant_sources
from histobench.report.inventory import take_inventory
from histobench.report.site import build_site
from histobench.report.table import ImageSet
from histobench.report.thumbnails import SIDE, Cache, priority, thumbnail
from histobench.roi.data.source import DatasetSource
from histobench.roi.plan.notes import DATASETS
from report.site_data import unpacked

DataOf = Callable[[Path, str], Any]


def images(n: int, classes: int = 3) -> ImageSet:
    names = tuple(f"{k}.png" for k in range(n))
    labels = np.arange(n, dtype=np.int64) % classes
    return ImageSet("d", names, labels, None, tuple("abc"[:classes]))


@pytest.mark.slow
def test_every_test_image_has_the_right_thumbnail(site: Path, tiles: Path, data_of: DataOf) -> None:
    overview = data_of(site, "site")
    assert len(overview["thumbs"]) == 1
    key = overview["thumbs"][0]
    names, thumbs = data_of(site, f"images/{key}")["names"], data_of(site, f"thumbs/{key}")
    numbers = unpacked(thumbs["numbers"])
    assert sorted(numbers.tolist()) == list(range(len(names)))
    files = {path.name: path for path in tiles.parent.rglob("*.jpg")}
    for place in (0, len(names) // 2, len(names) - 1):
        small = Image.open(site.parent / "thumbs" / thumbs["folder"] / f"{numbers[place]}.webp").convert(
            "RGB"
        )
        assert small.size == (SIDE, SIDE)
        original = Image.open(files[names[place]]).resize((SIDE, SIDE))
        assert np.abs(np.asarray(small, dtype=float) - np.asarray(original, dtype=float)).mean() < 20
    assert np.mean([path.stat().st_size for path in (site.parent / "thumbs").rglob("*.webp")]) < 8000


def test_the_middle_of_an_oblong_image_is_shown(tmp_path: Path) -> None:
    wide = Image.new("RGB", (300, 100), "white")
    wide.paste((200, 0, 0), (100, 0, 200, 100))
    cache: Cache = {}
    for name, image in (("wide.png", wide), ("tall.png", wide.transpose(Image.Transpose.ROTATE_90))):
        image.save(tmp_path / name)
        content = thumbnail(tmp_path / name, cache)
        assert content is not None
        assert np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))[..., 1].mean() < 20
        assert thumbnail(tmp_path / name, cache) is content


def test_what_cannot_be_read_has_no_thumbnail(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"not an image")
    assert thumbnail(tmp_path / "broken.png", {}) is None
    assert thumbnail(tmp_path / "nowhere.png", {}) is None


def test_examples_of_every_class_and_mistakes_come_first() -> None:
    wrong = np.zeros(300, dtype=bool)
    wrong[[250, 299]] = True
    order = priority(images(300), wrong)
    assert sorted(order) == list(range(300))
    assert set(order[:24]) == set(range(24))
    assert set(order[24:26]) == {250, 299}


def test_any_folder_of_images_is_a_source(tmp_path: Path) -> None:
    for name in ("deep/er/1.png", "2.PNG", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name, format="PNG")
    source = open_source(tmp_path)
    assert source.path("1.png") == source.path("deep/er/1.png") == tmp_path / "deep/er/1.png"
    assert source.path("2.PNG") == tmp_path / "2.PNG"
    assert source.path("notes.txt") is None


def test_a_file_name_of_two_images_leads_to_neither(tmp_path: Path) -> None:
    with pytest.raises(HistobenchError, match="no images"):
        open_source(tmp_path)
    with pytest.raises(HistobenchError, match="nowhere"):
        open_source(tmp_path / "nowhere.csv")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / folder / "same.png")
    (tmp_path / "top.png").write_bytes((tmp_path / "a" / "same.png").read_bytes())
    source = open_source(tmp_path)
    assert source.path("same.png") is None
    assert source.path("a/same.png") == tmp_path / "a" / "same.png"


def test_a_source_for_all_serves_only_the_datasets_it_holds(tiles: Path) -> None:
    source = open_source(tiles)
    sources = {"here": source, "elsewhere": source}
    names = {image.name for image in source.dataset.splits["test"]}  # type: ignore[union-attr]
    assert set(relevant_sources(sources, {"here": names, "elsewhere": {"x.png"}})) == {"here"}


@pytest.mark.slow
def test_training_images_and_findings_come_from_the_dataset(site: Path, data_of: DataOf) -> None:
    data = data_of(site, "dataset/1")
    assert data["counts"] == {"train": [2] * 9, "test": [12] * 9}
    assert data["findings"]["checked"]
    assert data["findings"]["images"] == 9 * 14
    assert [len(places) for places in data["examples"]] == [8] * 9
    assert not data_of(site, "dataset/0")["findings"]["checked"]


@pytest.mark.slow
def test_an_image_in_train_and_test_is_told(tmp_path: Path, simulated: ModuleType, data_of: DataOf) -> None:
    generator = np.random.default_rng(0)
    rows = ["image_path,label,split"]
    names = []
    for k in range(8):
        pixels = generator.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{k}.png")
        rows.append(f"{k}.png,{k % 2},{'test' if k < 6 else 'train'}")
        names.append(f"{k}.png")
    Image.open(tmp_path / "0.png").save(tmp_path / "copy.png", optimize=True)
    rows.append("copy.png,0,train")
    (tmp_path / "d.csv").write_text("\n".join(rows) + "\n")
    data = simulated.SimulatedSet("d", ("0", "1"), tuple(names[:6]), np.arange(6) % 2)
    simulated.write_run(tmp_path / "r", data, "KNN", encoder="e", skill=3.0)
    site = build_site(tmp_path / "r", tmp_path / "site", images=tmp_path / "d.csv")
    findings = data_of(site, "dataset/0")["findings"]
    assert ("error", "image in two splits") in [(item["level"], item["kind"]) for item in findings["items"]]
    assert data_of(site, "dataset/0")["counts"]["train"] == [2, 1]
    assert "copy.png" in str(findings)
    assert str(tmp_path) not in str(findings)


@pytest.mark.slow
def test_runs_on_the_same_features_share_a_map(site: Path, data_of: DataOf) -> None:
    overview = data_of(site, "site")
    maps = {
        (overview["encoders"][e]["name"], overview["datasets"][d]["name"]): key
        for e, d, key in zip(
            overview["runs"]["encoder"], overview["runs"]["dataset"], overview["maps"], strict=True
        )
    }
    assert {pair for pair, key in maps.items() if key} == {("uni_v1", "tissue"), ("plip", "tissue")}
    content = data_of(site, f"map/{maps['uni_v1', 'tissue']}")
    assert unpacked(content["image"]).tolist() == list(range(9 * 12))
    assert [drawn["kind"] for drawn in content["maps"]] == ["pca"]


def test_a_damaged_feature_file_costs_only_its_map_and_few_points_are_drawn(
    tmp_path: Path, simulated: ModuleType, monkeypatch: pytest.MonkeyPatch, data_of: DataOf
) -> None:
    monkeypatch.setattr(embedding_map, "MOST_POINTS", 7)
    (tmp_path / "bad.pt").write_bytes(b"no features")
    data = simulated.SimulatedSet.of_size("d", 30, classes=("a", "b"))
    path = simulated.write_features(tmp_path, data, encoder="e", skill=1.0)
    shown = ImageSet("d", data.img_names, data.labels, None, data.classes)
    files = {4: (str(path), shown), 5: ("gone.pt", shown), 6: (str(tmp_path / "bad.pt"), images(10))}
    assert write_maps(tmp_path, files, near=tmp_path) == {4: "0"}
    shown = unpacked(data_of(tmp_path / "index.html", "map/0")["image"])
    assert shown.tolist() == list(range(0, 30, 5))


@pytest.mark.slow
def test_images_of_a_noted_dataset_are_found_with_their_splits_and_checked_if_few_or_asked_for(
    results: Path, tiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_of: DataOf
) -> None:
    folder = tmp_path / "lab"
    shutil.copytree(results / "tissue" / "plip" / "KNN", folder / "tissue" / "plip" / "KNN")
    note = DatasetSource(str(tiles.resolve()), classes_file=str(tiles.with_suffix(".txt")))
    write_json(folder / DATASETS, {"tissue": note.as_note()})
    inventory = take_inventory(folder)
    source = image_sources(inventory, None, results_dir=folder)["tissue"]
    assert source.dataset is not None
    assert {split: len(images) for split, images in source.dataset.splits.items() if images} == {
        "train": 18,
        "test": 108,
    }
    for most, thorough, checked in ((126, False, True), (125, False, False), (125, True, True)):
        monkeypatch.setattr(dataset_payload, "MOST_CHECKED", most)
        page = data_of(build_site(folder, tmp_path / "site", thorough=thorough), "dataset/0")
        assert page["findings"]["checked"] is checked
    assert image_sources(inventory, None) == {}
    write_json(folder / DATASETS, {"tissue": DatasetSource(str(tmp_path / "gone.csv")).as_note()})
    assert image_sources(inventory, None, results_dir=folder) == {}
