"""The robustness pack from feature files to tables: measures, reasons, files, paired differences."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from statsmodels.stats.multitest import multipletests

from builders import feature_set
from comparison_runs import write_robust
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.robustness_tables import SHOWN, robustness_tables, summarise
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.evaluation.robustness_task import RobustnessOptions, protocols, robustness_by
from histobench.roi.features.feature_file import FeatureSet, save
from histobench.roi.plan.summary import robustness_overview
from histobench.roi.results.robustness_files import load_robustness
from histobench.roi.robustness.indices import candidates_for
from histobench.roi.robustness.leaving_out import measured, site_probe_without, units_of
from histobench.roi.robustness.pack import PackWork, Tissue
from histobench.roi.robustness.site_probes import SiteProbe, leave_one_site_out

QUICK = RobustnessOptions()
CLASSES = ("tumour", "normal")


def made(
    *, site_pull: float = 1.0, split: str = "train", encoder: str = "kind", seed: int = 0, n: int = 96
) -> FeatureSet:
    """24 patients of two classes at two sites, features pulled by both."""
    draw = np.random.default_rng(seed + (split == "test"))
    group = np.repeat(np.arange(24), n // 24)
    site, label = group % 2, (group // 2) % 2
    x = draw.normal(size=(n, 6)).astype(np.float32)
    x[:, 0] += 3 * label
    x[:, 1] += site_pull * site
    meta = {"dataset": "set", "encoder": encoder, "size": 224, "split": split, "classes": list(CLASSES)}
    groups, sites = [f"{split}-p{patient}" for patient in group], {"scanner": tuple("AB"[k] for k in site)}
    return feature_set(x, label, names=f"{split}-{{}}.png", groups=groups, sites=sites, **meta)


@pytest.mark.slow
def test_the_pull_of_the_site_shows_in_every_measure() -> None:
    free = robustness_by(made(site_pull=0.0), "scanner", CLASSES, QUICK).pack.measures
    pulled = robustness_by(made(site_pull=9.0), "scanner", CLASSES, QUICK).pack.measures
    for name in ("robustness_index", "robustness_index_paired", "margin_aware_index", "croma_median"):
        assert free[name].value > pulled[name].value + 0.2, name  # type: ignore[operator]
        assert free[name].low <= free[name].value <= free[name].high  # type: ignore[operator]
    assert free["site_probe_auroc"].value < 0.75 < pulled["site_probe_auroc"].value  # type: ignore[operator]
    assert free["croma_share_below"].value < pulled["croma_share_below"].value  # type: ignore[operator]
    worst, mean = (free[f"new_site_prototype_{word}"].value for word in ("worst", "mean"))
    assert 0.8 < worst <= mean  # type: ignore[operator]


def test_intervals_know_the_worst_site_and_the_choice_of_k() -> None:
    features = made(site_pull=2.0)
    group, site = np.repeat(np.arange(24), 4), np.repeat(np.arange(24), 4) % 2
    tissue = Tissue(features.labels.numpy(), site, group, CLASSES, ("A", "B"))
    work, fit = PackWork(features.embeddings.numpy(), tissue), protocols(2, QUICK, [])["knn"]
    work.new_site("knn", fit)
    of_sites = leave_one_site_out(work.features, tissue.labels, site, group, group, fit).without.values()
    for word, values in (("mean", np.mean([*of_sites], axis=0)), ("worst", np.min([*of_sites], axis=0))):
        np.testing.assert_allclose(work.measures[f"new_site_knn_{word}"].left_out, values)
    work.indices(None)
    best, found = work.details["k"], {}
    for k in candidates_for(96):
        fixed = PackWork(work.features, tissue)
        fixed.indices(k)
        found[k] = fixed.measures["robustness_index"]
    jumps = work.measures["robustness_index"].left_out - found[best].left_out
    moves = [(found[k].value - found[best].value) / 2 for k in found]
    assert np.abs(jumps[:, None] - moves).min(axis=1).max() < 1e-12 < np.abs(jumps).max()


def test_what_cannot_be_measured_says_why() -> None:
    features = made()
    alike = replace(features, sites={"scanner": tuple("AB"[k] for k in features.labels.tolist())})
    result = robustness_by(alike, "scanner", CLASSES, QUICK)
    assert result.confounding == pytest.approx(1.0)
    assert "confounded" in result.caveats[0]
    assert "crossed" in (result.pack.measures["croma_median"].reason or "")
    for name in ("robustness_index", "robustness_index_k11", "margin_aware_index"):
        assert result.pack.measures[name].value is None  # a 0 of the data is none of the encoder
        assert "no image has one of its class at another site in another group" in (
            result.pack.measures[name].reason or ""
        )
    assert "no site can be left out" in (result.pack.measures["new_site_knn_mean"].reason or "")
    assert result.pack.measures["new_site_knn_mean"].value is None
    one_site = robustness_by(replace(features, sites={"scanner": ("A",) * 96}), "scanner", CLASSES, QUICK)
    assert one_site.reason == "there is only one site; robustness compares sites"
    assert {(each.value, each.reason) for each in one_site.pack.measures.values()} == {
        (None, one_site.reason)
    }


def _two_columns(split: str = "train") -> FeatureSet:
    """Images of two scanners, all with one stain; no place is shown twice."""
    features = made(split=split)
    places = tuple(f"{split}{row}" for row in range(96))
    return replace(features, sites={"stain": ("H&E",) * 96, **features.sites, "pair": places})


@pytest.mark.slow
def test_a_column_with_one_site_has_no_number_and_costs_the_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "there is only one site; robustness compares sites"
    save(_two_columns(), tmp_path / "f" / "kind_train.pt")
    command = ["robustness", str(tmp_path / "f"), "-o", str(tmp_path / "r"), "--k", "3"]
    assert main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "failed" not in said
    assert f"No number by stain: {why}." in said
    assert "No number for registered pairs: no place is shown twice" in said
    assert "Images counted in the index by scanner" in said
    stored = {pack.column: pack for pack in load_robustness(tmp_path / "r")}
    assert stored["scanner"].value("robustness_index") is not None
    assert stored["stain"].content["reason"] == why
    assert {str(each) for each in stored["stain"].content["measures"].values()} == {
        str({"value": None, "low": None, "high": None, "reason": why})
    }
    assert main([*command, "--verbose"]) == 0
    assert f"no number by stain: {why}" in " ".join(capsys.readouterr().out.split())
    # Nothing at all is an error, as is a column that is not there.
    assert main([*command, "--column", "stain", "-o", str(tmp_path / "s")]) == 2
    assert not (tmp_path / "s").exists()
    assert main([*command, "--column", "scanner", "--column", "hospital"]) == 1


def test_the_site_probe_without_a_group_is_that_of_the_other_images() -> None:
    from sklearn.metrics import roc_auc_score

    draw = np.random.default_rng(2)
    groups = np.repeat(np.arange(12), 5)
    sites, scores = groups % 2, draw.random((60, 2))
    probe = SiteProbe((0.5, 0.5), 0, scores, (groups >= 6).astype(np.int64))
    judge = np.zeros(12)
    for unit in range(12):
        rows = np.flatnonzero(groups != unit)
        folds = [rows[probe.fold[rows] == fold] for fold in (0, 1)]
        judge[unit] = np.mean([roc_auc_score(sites[fold], scores[fold, 1]) for fold in folds])
    left = site_probe_without(probe, sites, units_of(groups))
    # Of two folds each is trained on as many images as it is tested on: twice the variance.
    assert left.mean() == pytest.approx(judge.mean())
    assert left - left.mean() == pytest.approx(2**0.5 * (judge - judge.mean()))


@pytest.mark.slow
def test_the_task_writes_one_file_per_column_and_is_not_done_twice(tmp_path: Path) -> None:
    request = EvaluationRequest(("Robustness", "Proto"), made(), made(split="test"), tmp_path)
    done = evaluate(request, resume=True)
    assert (done.failed, done.skipped) == ({}, {})
    (stored,) = load_robustness(tmp_path)
    assert (stored.encoder, stored.column, stored.content["num_samples"]) == ("kind", "scanner", 192)
    assert set(stored.content["details"]["new_site"]["knn"]["per_site"]) == {"A", "B"}
    assert evaluate(request, resume=True).unchanged == ("Robustness", "Proto")
    plain = replace(request, train=replace(made(), sites={}))
    skipped = evaluate(replace(plain, results_dir=tmp_path / "other")).skipped
    assert "name no site" in skipped["Robustness"]


def test_all_encoders_are_paired_corrected_and_marked_measure_by_measure(tmp_path: Path) -> None:
    draw, shared = np.random.default_rng(0), np.random.default_rng(1).normal(0, 0.05, 16)
    for encoder, quality in (("poor", 0.55), ("best", 0.66), ("fair", 0.61)):
        rows = {
            name: np.clip(level + shared + draw.normal(0, 0.06, 16), 0, 1)
            for name, level in (("robustness_index", quality), ("site_probe_auroc", 1.3 - quality))
        }
        write_robust(tmp_path, encoder, "scanner", {**rows, "croma_median": rows["robustness_index"] - 0.7})
    (table,) = robustness_tables(load_robustness(tmp_path))
    assert [pack.encoder for pack in table.packs] == ["best", "fair", "poor"]
    marks = {column.task: column.cells for column in robustness_overview(table).columns}
    for name, heading, more in SHOWN:
        pairs = {frozenset((pair.first, pair.second)): pair for pair in table.pairs if pair.measure == name}
        if not pairs:
            continue
        values = {pack.encoder: pack.value(name) for pack in table.packs}
        without = {pack.encoder: pack.left_out()[name] for pack in table.packs}
        best = (max if more else min)(values, key=values.__getitem__)
        for pair in pairs.values():
            assert pair.difference == pytest.approx(values[pair.first] - values[pair.second])
            apart = without[pair.first] - without[pair.second]
            error = np.sqrt(15 * apart.var())
            if name == "croma_median":  # nothing is added to the spread of a contrast
                assert pair.p == pytest.approx(2 * stats.t.sf(abs(pair.difference) / error, 15), abs=0.02)
            assert (pair.low <= 0 <= pair.high) == (pair.p >= 0.05)
            assert pair.low + pair.high == pytest.approx(2 * pair.difference)
        adjusted = multipletests([pair.p for pair in pairs.values()], method="holm")[1]
        assert [pair.p_holm for pair in pairs.values()] == pytest.approx(adjusted)
        for encoder, cell in marks[heading].items():
            worse = encoder != best and pairs[frozenset((encoder, best))].p_holm <= 0.05
            assert (cell.value, cell.mark) == (values[encoder], "" if worse else "*")
        assert {cell.mark for cell in marks[heading].values()} == {"", "*"}
    assert summarise(tmp_path) == (table,)
    written = json.loads((tmp_path / "robustness.json").read_text())
    assert written["tables"][0]["differences"] == [asdict(pair) for pair in table.pairs]
    (tmp_path / "best" / "Robustness" / "scanner_robustness_left_out.npz").write_bytes(b"x")
    with pytest.raises(HistobenchError, match="damaged"):
        summarise(tmp_path)


def test_features_without_sites_are_an_error_that_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(replace(made(), sites={}), tmp_path / "f.pt")
    assert main(["robustness", str(tmp_path / "f.pt"), "-o", str(tmp_path / "r")]) == 2
    assert "--site-regex" in " ".join(capsys.readouterr().out.split())


def test_a_value_that_is_not_defined_without_a_group_has_no_interval() -> None:
    units, left = units_of(np.arange(30)), np.linspace(0.4, 0.6, 30)
    assert not any(measured(0.5, left[:n], units_of(np.arange(n))).low is None for n in (5, 30))
    left[3] = np.nan
    unknown = measured(0.5, left, units)
    assert (unknown.value, unknown.low, unknown.left_out) == (0.5, None, None)
    assert unknown.reason == "no interval: the value is not defined without 1 of 30 groups"


def _without_typed_neighbours(encoder: str = "sharp") -> FeatureSet:
    """Two classes at two sites in four far clusters: nobody has a neighbour that tells class from site."""
    features = made(encoder=encoder)
    cell = 2 * features.labels + torch.tensor(["AB".index(s) for s in features.sites["scanner"]])
    return replace(features, embeddings=features.embeddings * 1e-3 + 10 * torch.eye(6)[cell])


@pytest.mark.slow
def test_an_encoder_without_typed_neighbours_is_stored_and_costs_the_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(_without_typed_neighbours(), tmp_path / "f" / "sharp_train.pt")
    save(made(encoder="kind"), tmp_path / "f" / "kind_train.pt")
    broken = made(encoder="broken")
    broken.embeddings[0, 0] = float("nan")
    save(broken, tmp_path / "f" / "broken_train.pt")
    assert main(["robustness", str(tmp_path / "f"), "-o", str(tmp_path / "r"), "--k", "3"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "broken_train.pt has NaN or infinite features in 1 rows" in shown
    stored = {pack.encoder: pack for pack in load_robustness(tmp_path / "r")}
    assert set(stored) == {"sharp", "kind"}
    content = stored["sharp"].content
    assert content["details"]["tau"] is None
    for name in ("robustness_index", "margin_aware_index"):
        assert content["measures"][name]["value"] is None
        assert "only 0 of 96 images have a neighbor" in content["measures"][name]["reason"]
    assert stored["kind"].value("robustness_index") is not None


@pytest.mark.parametrize("column", ["scanner", "pair"])
def test_features_that_say_nothing_are_an_error_that_names_an_image(column: str) -> None:
    features = made()
    features = replace(features, sites={**features.sites, "pair": tuple(str(row // 2) for row in range(96))})
    broken = features.embeddings.clone()
    broken[7, 2] = float("nan")
    broken[9, 0] = float("inf")
    with pytest.raises(HistobenchError, match=r"2 images hold NaN or infinity \(the first: train-7.png\)"):
        robustness_by(replace(features, embeddings=broken), column, CLASSES, QUICK)
    if column == "scanner":  # pairs are found by chance then, which their numbers say
        with pytest.raises(HistobenchError, match="collapsed"):
            robustness_by(replace(features, embeddings=torch.ones(96, 6)), column, CLASSES, QUICK)
