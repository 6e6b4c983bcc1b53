"""Runs whose target is not a class have pages, tables and comparisons of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score
from statsmodels.duration.survfunc import SurvfuncRight, survdiff

import histobench as hb
from histobench.report.site import build_site
from histobench.roi.metrics.target_metrics import SurvivalCurve, log_rank_p
from report.site_data import decode, unpacked

pytestmark = pytest.mark.slow

PATIENTS, TILES, CUT = 60, 3, 30
Read = Callable[[Path, str], Any]


@pytest.fixture(scope="module")
def target_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two encoders and every kind of target, and classes of the same tiles."""
    out = tmp_path_factory.mktemp("targets") / "results"
    draw = np.random.default_rng(0)
    patient = np.repeat(np.arange(PATIENTS), TILES)
    number = draw.normal(size=PATIENTS)
    lived, end = draw.exponential(np.exp(-2 * number)), draw.exponential(3, size=PATIENTS)
    targets = {
        "regression": 50 + 10 * number,
        "survival": np.stack([np.minimum(lived, end), lived <= end], axis=1).astype(float),
        "multilabel": pd.DataFrame({"high": number > 0.2, "low": number < -0.5}).astype(int),
        "ordinal": np.digitize(number, [-0.7, 0.7]),
        "class": (number > 0).astype(int),
    }
    cut = CUT * TILES
    for encoder, noise in (("uni_v1", 0.3), ("resnet50", 2.0)):
        x = draw.normal(size=(len(patient), 6)).astype(np.float32)
        x[:, 0] = number[patient] + noise * x[:, 0]
        for kind, values in targets.items():
            y = values.iloc[patient] if isinstance(values, pd.DataFrame) else values[patient]
            hb.evaluate(
                x[:cut], x[cut:], y[:cut], y[cut:], groups=patient[cut:], train_groups=patient[:cut],
                target=kind, tasks="Proto" if kind == "class" else None, dataset=f"lung {kind}",
                encoder=encoder, results=out / kind / encoder,
            )  # fmt: skip
    return out


@pytest.fixture(scope="module")
def target_site(target_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(target_results, tmp_path_factory.mktemp("target_site") / "out")


def run_of(site: Path, data_of: Read, task: str, setting: str, encoder: str = "uni_v1") -> dict[str, Any]:
    facts = data_of(site, "site")
    names = [each["name"] for each in facts["encoders"]]
    for number, (place, board) in enumerate(
        zip(facts["runs"]["encoder"], facts["runs"]["board"], strict=True)
    ):
        about = facts["boards"][board]
        if (about["task"], about["setting"], names[place]) == (task, setting, encoder):
            return dict(data_of(site, f"run/{number}"))
    raise AssertionError(task)


def stored(results: Path, kind: str, name: str) -> pd.DataFrame:
    return pd.read_csv(next((results / kind / "uni_v1").rglob(f"{name}_detailed_results.csv")))


def test_leaderboards_have_the_metrics_of_their_own_target(target_site: Path, data_of: Read) -> None:
    site = data_of(target_site, "site")
    assert site["failures"] == {}
    offered = {board["task"]: board["metrics"] for board in site["boards"]}
    assert offered["Survival"] == ["harrell_c", "uno_c"]
    assert offered["Ordinal"] == ["quadratic_kappa", "mae"]
    assert "r2" not in offered["Proto"]
    for number, board in enumerate(site["boards"]):
        assert set(data_of(target_site, f"board/{number}")["metrics"]) == set(board["metrics"])
    facts = {each["name"]: each for each in site["datasets"]}
    assert facts["lung survival"]["targets"] == ["survival"]
    assert facts["lung survival"]["classes"] == 0
    assert facts["lung survival"]["images"] == (PATIENTS - CUT) * TILES


def test_points_are_the_stored_predictions(target_site: Path, target_results: Path, data_of: Read) -> None:
    run = run_of(target_site, data_of, "Regression", "patients")
    table = stored(target_results, "regression", "Regression_patients").sort_values("true:label")
    np.testing.assert_allclose(unpacked(run["target"]["truth"]), table["true:label"], rtol=1e-6)
    np.testing.assert_allclose(unpacked(run["target"]["predicted"]), table["predicted:label"], rtol=1e-6)
    low, high = run["bounds"]["r2"]
    assert low < run["metrics"]["r2"] < high


def test_survival_curves_are_those_of_statsmodels(
    target_site: Path, target_results: Path, data_of: Read
) -> None:
    target = run_of(target_site, data_of, "Survival", "patients")["target"]
    table = stored(target_results, "survival", "Survival_patients")
    higher = table["predicted:risk"] > table["predicted:risk"].median()
    for curve, members in zip(target["curves"], (higher, ~higher), strict=True):
        own = table[members]
        expected = SurvfuncRight(own["true:time"], own["true:event"])
        np.testing.assert_allclose(curve["times"], expected.surv_times, rtol=1e-5)
        np.testing.assert_allclose(curve["alive"], expected.surv_prob, rtol=1e-5, atol=1e-6)
        assert curve["atRisk"][0] == curve["patients"] == len(own)
        assert curve["events"] == own["true:event"].sum()
    # Who was seen until the last tick was at risk there.
    assert sum(curve["atRisk"][-1] for curve in target["curves"]) >= 1
    _, p = survdiff(table["true:time"], table["true:event"], higher)
    assert target["logRank"] == pytest.approx(p, rel=1e-2)


def test_bands_and_log_rank_are_those_of_statsmodels() -> None:
    draw = np.random.default_rng(1)
    time, event = draw.integers(1, 15, size=60).astype(float), draw.random(60) < 0.7  # with ties
    second = draw.random(60) < 0.4
    assert log_rank_p(time, event, second) == pytest.approx(survdiff(time, event, second)[1], rel=1e-9)
    found, expected = SurvivalCurve.of(time, event), SurvfuncRight(time, event)
    inside = found.alive > 0
    error = expected.surv_prob_se[inside] / found.alive[inside] / np.abs(np.log(found.alive[inside]))
    for bound, sign in ((found.low, 1), (found.high, -1)):
        np.testing.assert_allclose(
            bound[inside], found.alive[inside] ** np.exp(sign * norm.ppf(0.975) * error), rtol=1e-5
        )
    assert np.isnan(log_rank_p(time, event, np.ones(60, dtype=bool)))


def test_labels_have_areas_with_intervals(target_site: Path, target_results: Path, data_of: Read) -> None:
    target = run_of(target_site, data_of, "Multi-label", "tiles")["target"]
    table = stored(target_results, "multilabel", "Multi-label_tiles")
    said = decode(unpacked(target["predicted"]))
    for place, label in enumerate(target["labels"]):
        truth = table[f"true:{label['name']}"]
        assert label["auroc"][0] == pytest.approx(
            roc_auc_score(truth, table[f"predicted:{label['name']}"]), rel=1e-5
        )
        assert label["auprc"][0] == pytest.approx(average_precision_score(truth, said[:, place]), rel=1e-3)
        assert label["auroc"][1] <= label["auroc"][0] <= label["auroc"][2]
        assert label["positives"] == truth.sum()


def test_levels_are_counted(target_site: Path, target_results: Path, data_of: Read) -> None:
    target = run_of(target_site, data_of, "Ordinal", "tiles")["target"]
    table = stored(target_results, "ordinal", "Ordinal_tiles")
    said = table[[f"predicted:{level}" for level in target["levels"]]].to_numpy().argmax(axis=1)
    expected = confusion_matrix(table["true:label"].astype(int), said)
    found = confusion_matrix(unpacked(target["truth"]), unpacked(target["predicted"]))
    np.testing.assert_array_equal(found, expected)


def test_a_run_whose_intervals_cannot_be_made_does_not_stop_the_others(
    target_results: Path, tmp_path: Path, data_of: Read
) -> None:
    import shutil

    copy = tmp_path / "results"
    shutil.copytree(target_results / "regression", copy)
    folder = next((copy / "uni_v1").rglob("Regression_tiles_complete_results.json")).parent
    for file in folder.glob("*_intervals.json"):
        file.unlink()
    (folder / "Regression_tiles_per_episode_metrics.json").write_text("garbage")
    site = data_of(build_site(copy, tmp_path / "out"), "site")
    (failure,) = site["failures"].values()
    assert "per_episode_metrics.json" in failure


@pytest.mark.sample(1)
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.nightly
def test_pages_of_targets(target_site: Path, open_page: Any, expect: Any, drawn: Any, width: int) -> None:
    size = {"viewport": {"width": width, "height": 900}, "color_scheme": "dark" if width < 400 else "light"}
    said = {
        "regression/uni_v1/Regression/patients": ("Predicted against true", "Pearson correlation"),
        "survival/uni_v1/Survival/patients": ("Survival by predicted risk", "Harrell's C", "at risk"),
        "multilabel/uni_v1/Multi-label/tiles": ("Average precision", "ROC of each label"),
        "ordinal/uni_v1/Ordinal/patients": ("Confusion matrix", "quadratic kappa"),
    }
    for place, texts in said.items():
        page = open_page(target_site, f"#/run/lung {place}/uni", **size)
        for text in texts:
            expect(page.get_by_text(text).first).to_be_visible()
        expect(page.locator("table.metrics tbody tr").first).to_contain_text(" to ")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page = open_page(target_site, "#/?board=0", **size)
    page.get_by_label("Task", exact=True).select_option("Survival")
    drawn(page)
    assert page.get_by_label("Metric").locator("option").all_inner_texts() == ["Harrell's C", "Uno's C"]
    page = open_page(target_site, "#/compare", **size)
    page.get_by_label("Task", exact=True).select_option(label="Regression patients")
    expect(page.locator(".verdict")).to_contain_text("30 patients")
    page = open_page(target_site, "#/dataset/lung survival", **size)
    expect(page.locator(".lead")).to_contain_text("survival")
