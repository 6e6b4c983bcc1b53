"""From a results folder to a site: whole, self-contained, and silent about the machine it was built on."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.report.site import build_site
from histobench.roi.comparison.bootstrap_intervals import BootstrapSettings, bootstrap_runs
from histobench.roi.results.reader import load_runs
from report.site_data import decode, unpacked

DataOf = Callable[[Path, str], Any]


def one_run(results: Path, folder: Path) -> Path:
    """A results folder with a single small run."""
    shutil.copytree(results / "clinic" / "plip" / "KNN", folder / "KNN")
    return folder


def test_every_page_has_its_data(site: Path, data_of: DataOf) -> None:
    overview = data_of(site, "site")
    assert overview["title"] == "Our lab"
    assert [dataset["name"] for dataset in overview["datasets"]] == ["clinic", "tissue"]
    for number in range(len(overview["runs"]["encoder"])):
        assert set(data_of(site, f"run/{number}")) >= {"metrics", "predicted", "probabilities", "images"}
    for number in range(len(overview["boards"])):
        assert data_of(site, f"board/{number}")["rows"]
    assert len(list((site.parent / "data" / "images").iterdir())) == 2  # listed once for all runs
    tasks = {board["task"] for board in overview["boards"]}
    assert tasks == {"Linear-Probe", "KNN", "Few-shot", "Label-efficiency"}
    assert overview["agents"] == ["agent-x, k = 5", "agent-x + judge (no_GT-textual), k = 5"]


@pytest.mark.slow
@pytest.mark.nightly
def test_several_processes_write_what_one_writes(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("histobench.report.site._MANY_RUNS", 1)
    folders = [build_site(results, tmp_path / str(workers), workers=workers).parent for workers in (1, 2)]
    written = [
        {path.relative_to(folder): path.read_bytes() for path in (folder / "data").rglob("*.js")}
        for folder in folders
    ]
    changing = Path("data/site.js")  # it says when it was built
    assert sorted(written[0]) == sorted(written[1])
    assert all(written[1][path] == data for path, data in written[0].items() if path != changing)


def test_stored_predictions_arrive_whole(results: Path, site: Path, data_of: DataOf) -> None:
    overview = data_of(site, "site")
    by_key = {
        (run.identity.dataset, run.identity.encoder, run.task, run.setting): run for run in load_runs(results)
    }
    for number, encoder in enumerate(overview["runs"]["encoder"]):
        board = overview["boards"][overview["runs"]["board"][number]]
        dataset = overview["datasets"][overview["runs"]["dataset"][number]]["name"]
        run = by_key[dataset, overview["encoders"][encoder]["name"], board["task"], board["setting"]]
        data = data_of(site, f"run/{number}")
        images = data_of(site, f"images/{data['images']}")
        assert tuple(images["names"]) == run.predictions.img_names
        assert unpacked(images["labels"]).tolist() == run.predictions.labels.tolist()
        assert unpacked(data["predicted"]).tolist() == run.predictions.predicted.tolist()
        found = decode(unpacked(data["probabilities"]))
        assert np.abs(found - run.predictions.probabilities).max() < 1e-4


def test_the_site_tells_nothing_about_the_machine(results: Path, site: Path, tiles: Path) -> None:
    secrets = [str(results.parent), str(tiles.parent), str(Path.home())]
    for path in site.parent.rglob("*"):
        if path.is_file() and path.suffix in (".js", ".html", ".txt"):
            text = path.read_text(encoding="utf-8")
            assert not [secret for secret in secrets if secret in text], path


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    page = site.read_text(encoding="utf-8")
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert addresses
    assert all((site.parent / address).is_file() for address in addresses)
    assert "Content-Security-Policy" in page


def test_stored_intervals_are_used_where_they_belong_to_the_predictions(
    results: Path, tmp_path: Path, data_of: DataOf
) -> None:
    folder = one_run(results, tmp_path / "r")
    list(bootstrap_runs(load_runs(folder), BootstrapSettings(n_bootstrap=77)))
    site = build_site(folder, tmp_path / "site")
    data = data_of(site, "run/0")
    assert data["boundsFrom"].startswith("jackknife over groups (patients or slides)")
    assert {"log_loss", "macro_auprc"} <= set(data["bounds"])
    assert "ece" not in data["bounds"]
    assert "jackknife intervals with Student's t" in data_of(site, "methods")["paragraph"]
    # Other predictions under the same name: the file no longer speaks for them.
    detailed = folder / "KNN" / "KNN_detailed_results.csv"
    detailed.write_text(detailed.read_text().replace("\n", "\n", 1).rstrip("\n") + "\n\n")
    complete = folder / "KNN" / "KNN_complete_results.json"
    content = json.loads(complete.read_text())
    del content["additional_info"]["predictions_file"]  # as other tools write it
    complete.write_text(json.dumps(content))
    again = build_site(folder, tmp_path / "site")
    assert "log_loss" not in data_of(again, "run/0")["bounds"]


@pytest.mark.slow
def test_a_damaged_run_is_listed_and_does_not_stop_the_others(
    results: Path, tmp_path: Path, data_of: DataOf, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "r"
    shutil.copytree(results / "clinic", folder)
    (folder / "plip" / "KNN" / "KNN_detailed_results.csv").write_text("img_name,true_label\n")
    (folder / "phikon" / "KNN" / "KNN_complete_results.json").write_text("{")
    overview = data_of(build_site(folder, tmp_path / "site"), "site")
    assert any("was computed from" in text for text in overview["failures"].values())
    assert str(tmp_path) not in str(overview)
    told = [record.getMessage() for record in caplog.records]
    assert [text for text in told if text.startswith("shown without its predictions: plip/KNN/KNN_detailed")]
    assert ["phikon" in text for text in overview["unreadable"]] == [True]
    assert len(overview["runs"]["encoder"]) == len(load_runs(results / "clinic")) - 1


@pytest.mark.slow
def test_a_site_is_replaced_whole(results: Path, tmp_path: Path) -> None:
    folder = one_run(results, tmp_path / "r")
    site = build_site(folder, tmp_path / "site")
    (site.parent / "data" / "stale.js").write_text("old")
    build_site(folder, tmp_path / "site")
    assert not (site.parent / "data" / "stale.js").exists()
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name or "old" in path.name] == []


def test_a_site_among_its_results_is_refused(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = one_run(results, tmp_path / "r")
    assert main(["report", str(folder), "-o", str(folder / "deep" / "site")]) == 2
    assert "is inside the results" in capsys.readouterr().err
    assert not (folder / "deep").exists()


def test_a_failed_build_leaves_the_old_site(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = one_run(results, tmp_path / "r")
    site = build_site(folder, tmp_path / "site")
    before = site.read_bytes()

    def fail(*args: object, **kwargs: object) -> None:
        raise HistobenchError("disk full")

    monkeypatch.setattr("histobench.report.site.write_page", fail)
    with pytest.raises(HistobenchError, match="disk full"):
        build_site(folder, tmp_path / "site")
    assert site.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"r", "site"}


@pytest.mark.slow
def test_methods_say_what_was_done(site: Path, data_of: DataOf) -> None:
    methods = data_of(site, "methods")
    paragraph = methods["paragraph"]
    facts = ("5 frozen image encoders", "on 2 datasets by linear probing", "clinic: 2 classes", "preset uni")
    assert all(fact in paragraph for fact in (*facts, "seed 0")), paragraph
    assert "@article{chen2024uni" in methods["bibtex"]
    runs = data_of(site, "site")["runs"]["encoder"]
    assert all(len(column) == len(runs) for column in methods["provenance"].values())


def test_few_shot_curves_carry_mean_and_spread_over_episodes(
    results: Path, site: Path, data_of: DataOf
) -> None:
    overview = data_of(site, "site")
    points = data_of(site, "dataset/0")["fewShot"]
    assert {point["x"] for point in points} == {1.0, 8.0}
    for point in points:
        run = point["run"]
        encoder = overview["encoders"][overview["runs"]["encoder"][run]]["name"]
        setting = overview["boards"][overview["runs"]["board"][run]]["setting"]
        file = (
            results / "clinic" / encoder / "Few-shot" / "way_2" / f"Fewshot_{setting}_few_shot_results.json"
        )
        stored = json.loads(file.read_text())["metrics"]["accuracy"]
        assert point["spread"]["accuracy"] == pytest.approx(stored["std"], rel=1e-4)
