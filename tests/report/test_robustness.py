"""Robustness in the report: the data of a dataset page, and the words for a paper."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import feature_set
from histobench.report.board import Board, board_payload
from histobench.report.methods import robustness_paragraph
from histobench.report.robustness_page import board_index, robustness_payload
from histobench.report.site import build_site
from histobench.report.table import TableJob, build_table
from histobench.roi.comparison.robustness_tables import robustness_tables
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.results.reader import load_runs
from histobench.roi.results.robustness_files import load_robustness

#: Would run if a page treated names as markup.
ATTACK = "<img src=x onerror=window.hacked=1>"


def features(split: str, encoder: str, pull: float) -> FeatureSet:
    draw = np.random.default_rng(split == "test")
    group = np.repeat(np.arange(16), 3)
    site, label = group % 2, (group // 2) % 2
    x = draw.normal(size=(48, 6)).astype(np.float32)
    x[:, 0] += 3 * label
    x[:, 1] += pull * site
    about = {"dataset": "tissue", "encoder": encoder, "classes": ["a", "b"], "split": split}
    groups = [f"{split}-{patient}" for patient in group]
    sites = {"scanner": tuple("AB"[k] for k in site)}
    return feature_set(x, label, names=f"{split}-{{}}.png", groups=groups, sites=sites, **about)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for encoder, pull in (("steady", 0.0), ("swayed", 9.0)):
        parts = features("train", encoder, pull), features("test", encoder, pull)
        evaluate(EvaluationRequest(("Proto", "Robustness"), *parts, folder / encoder))
    return folder


@pytest.mark.slow
def test_the_page_of_a_dataset_gets_every_encoder_and_measure(results: Path) -> None:
    (table,) = robustness_payload("tissue", robustness_tables(load_robustness(results)))
    assert (table["column"], table["encoders"]) == ("scanner", ["steady", "swayed"])
    assert (table["images"], table["groups"], table["sites"]) == (96, 32, {"A": 48, "B": 48})
    index = table["measures"][0]
    assert index["name"] == "robustness_index"
    assert index["values"][0][0] > index["values"][1][0]
    assert all(low <= value <= high for value, low, high in index["values"])
    assert robustness_payload("other", robustness_tables(load_robustness(results))) == []


def test_confounded_data_are_told_under_the_leaderboard(tmp_path: Path) -> None:
    parts = []
    for split in ("train", "test"):
        each = features(split, "one", 0.0)
        parts.append(replace(each, sites={"scanner": tuple("AB"[k] for k in each.labels.tolist())}))
    evaluate(EvaluationRequest(("Proto",), *parts, tmp_path / "r" / "one"))
    (run,) = load_runs(tmp_path / "r")
    table = build_table(TableJob(0, "tissue", 0, {0: ("one", run)}, tmp_path / "site", tmp_path))
    (told,) = board_payload(Board(0, "KNN", "", "uni"), [table], {0: "one"}, [])["problems"]
    assert "label and scanner are confounded (Cramer's V 1.00)" in told


def test_the_methods_have_the_paragraph_on_robustness(results: Path, tmp_path: Path) -> None:
    site = build_site(results, tmp_path / "site", title="t")
    written = sorted(site.parent.rglob("methods*.js"))
    assert any("Robustness to scanner" in path.read_text(encoding="utf-8") for path in written)


def write_stress(folder: Path, encoder: str, loss: float) -> None:
    """A stress file of three strengths of blur, and one of THUNDER's transforms."""

    def change(family: str, strength: int) -> dict[str, object]:
        names, value = ("cosine", "flip_rate", "accuracy_drop"), loss * strength
        parts = {
            name: {"value": value + k / 10, "low": k / 10, "high": 1 - k / 10} for k, name in enumerate(names)
        }
        return {"family": family, "strength": strength, **parts}

    changes = {f"blur_{strength}": change("blur", strength) for strength in (1, 2, 3)}
    changes["thunder_flip"] = change("thunder", 0)
    about = {"dataset": "tissue", "encoder": encoder, "num_samples": 20, "num_groups": 5}
    content = {**about, "clean_accuracy": 0.9, "changes": changes}
    (folder / "Robustness").mkdir(parents=True, exist_ok=True)
    (folder / "Robustness" / "stress.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def page_site(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    write_stress(results / "steady", "steady", 0.01)
    write_stress(results / "swayed", f"swayed {ATTACK}", 0.1)
    return build_site(results, tmp_path_factory.mktemp("site") / "out", title="t")


def test_the_page_has_the_accuracy_at_every_site_as_the_files_say(
    page_site: Path, results: Path, data_of: Callable[[Path, str], Any]
) -> None:
    page = data_of(page_site, "robustness")
    (table,) = page["tables"]
    stored = [
        json.loads((results / encoder / "Robustness" / "scanner_robustness.json").read_text())
        for encoder in ("steady", "swayed")
    ]
    for protocol, sites in table["perSite"].items():
        for each in sites:
            for content, shown in zip(stored, each["values"], strict=True):
                expected = content["details"]["new_site"][protocol]["per_site"][each["site"]]
                bounds = [expected[name] for name in ("balanced_accuracy", "low", "high")]
                assert (shown, each["images"]) == (pytest.approx(bounds, rel=1e-5), expected["images"])
    assert [each["encoder"] for each in page["stress"]] == ["steady", f"swayed {ATTACK}"]
    steady = page["stress"][0]
    assert [steady[name] for name in ("images", "groups", "clean")] == [20, 5, 0.9]
    parts = {"cosine": [0.02, 0.0, 1.0], "flip_rate": [0.12, 0.1, 0.9], "accuracy_drop": [0.22, 0.2, 0.8]}
    assert steady["changes"][1] == {"name": "blur_2", "family": "blur", "strength": 2, **parts}
    facts = {each["name"]: each["robustness"] for each in data_of(page_site, "site")["encoders"]}
    for content in stored:
        index = content["measures"]["robustness_index"]
        shown = [index[key] for key in ("value", "low", "high")]
        assert facts[content["additional_info"]["encoder"]] == pytest.approx(shown, rel=1e-5)
    assert data_of(page_site, "site")["robustnessIndex"] == {"dataset": "tissue", "column": "scanner"}


def test_the_leaderboard_has_an_index_of_one_set_of_images_only(results: Path) -> None:
    (table,) = robustness_tables(load_robustness(results))
    shown = board_index([table])
    assert shown is not None
    assert set(shown["values"]) == {pack.encoder for pack in table.packs}
    assert board_index([table, replace(table, column="stain")]) is None
    assert board_index([]) is None


def test_the_worst_images_are_those_of_a_slow_loop(results: Path) -> None:
    content = json.loads((results / "swayed" / "Robustness" / "scanner_robustness.json").read_text())
    parts = [features(split, "swayed", 9.0) for split in ("train", "test")]
    x = np.concatenate([part.embeddings.numpy() for part in parts]).astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    names = [name for part in parts for name in part.img_names]
    groups = [group for part in parts for group in part.groups or ()]
    sites = [site for part in parts for site in part.sites["scanner"]]
    labels = [int(label) for part in parts for label in part.labels]
    margins = []
    for i in range(len(x)):
        kinds: dict[str, list[tuple[float, str]]] = {"same_class": [], "same_site": []}
        for j in range(len(x)):
            same = labels[i] == labels[j], sites[i] == sites[j]
            if groups[i] != groups[j] and same[0] != same[1]:
                kinds["same_class" if same[0] else "same_site"].append((1 - x[i] @ x[j], names[j]))
        near = {kind: sorted(found) for kind, found in kinds.items()}
        so, os = (np.mean([d for d, _ in near[kind][:5]]) for kind in ("same_class", "same_site"))
        margins.append(((os - so) / (os + so), names[i], {kind: near[kind][0][1] for kind in near}))
    margins.sort(key=lambda each: each[0])
    shown = content["details"]["worst_images"]
    assert [each["image"]["image"] for each in shown] == [name for _, name, _ in margins[: len(shown)]]
    for each, (margin, _, near) in zip(shown, margins, strict=False):
        assert each["margin"] == pytest.approx(margin, abs=1e-6)
        assert {kind: each[kind]["image"] for kind in near} == near


@pytest.mark.slow
def test_a_reader_sees_sites_stress_and_the_worst_images(
    page_site: Path, open_page: Any, drawn: Callable[[Any], None], expect: Any
) -> None:
    page = open_page(page_site, "#/robustness")
    page.get_by_role("heading", name="Accuracy against robustness").wait_for()
    page.get_by_role("heading", name="At a scanner that was not trained on").wait_for()
    page.get_by_role("heading", name="Under stress: blur").wait_for()
    page.get_by_role("heading", name="Where the scanner outweighs the tissue").wait_for()
    expect(page.locator(".triples li")).to_have_count(8)
    expect(page.locator("body")).to_contain_text("onerror", use_inner_text=True)  # a name stays text
    drawn(page)
    assert page.evaluate("window.hacked") is None
    page.goto(page_site.as_uri())
    page.get_by_role("columnheader", name="Robustness").get_by_role("button").click()
    expect(page.locator("table.leaderboard tbody th .encoder").first).to_have_text("steady")
    phone = open_page(page_site, "#/robustness", viewport={"width": 390, "height": 844})
    phone.locator(".triples li").first.wait_for()
    drawn(phone)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
@pytest.mark.nightly
def test_registered_pairs_have_a_table_of_their_own_after_the_sites(tmp_path: Path, open_page: Any) -> None:
    for encoder in ("one", "two"):
        parts = [features(split, encoder, 0.0) for split in ("train", "test")]
        places = tuple(str(row // 2) for row in range(48))
        parts = [
            replace(each, sites={**each.sites, "pair": tuple(f"{k}{p}" for p in places)})
            for k, each in enumerate(parts)
        ]
        scanners = tuple("AB"[row % 2] for row in range(48))
        parts = [replace(each, sites={**each.sites, "scanner": scanners}) for each in parts]
        evaluate(EvaluationRequest(("Proto", "Robustness"), *parts, tmp_path / "r" / encoder))
    tables = robustness_tables(load_robustness(tmp_path / "r"))
    assert [table.column for table in tables] == ["scanner", "pair"]
    text = robustness_paragraph(tables)
    assert "Robustness to scanner was measured" in text
    assert "under another scanner were compared in pairs" in text
    site = build_site(tmp_path / "r", tmp_path / "site", title="t")
    page = open_page(site, "#/robustness?dataset=tissue&by=pair")
    page.get_by_role("heading", name="The same place, scanned or stained otherwise").wait_for()
    page.get_by_label("Measure").select_option(label="Partner among the first 10")
    page.locator("svg text", has_text="Partner among the first 10").first.wait_for()
