"""Registered pairs against a slow loop over places, and from feature files to the table of encoders."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from builders import feature_set
from histobench.cli.main import main
from histobench.roi.comparison.robustness_tables import robustness_grid, robustness_tables
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.evaluation.robustness_task import RobustnessOptions, robustness_by
from histobench.roi.features.feature_file import FeatureSet, save
from histobench.roi.plan.summary import Scope, overviews
from histobench.roi.results.robustness_files import load_robustness
from histobench.roi.robustness.registered_pairs import joined_groups, register

QUICK = RobustnessOptions()
CLASSES = ("tumour", "normal")
SCANNERS, STAINS = ("aperio", "hamamatsu", "philips"), ("GIV", "MY")


def registered(
    *,
    places: int = 14,
    pull: float = 0.4,
    encoder: str = "kind",
    split: str = "train",
    seed: int = 0,
    missing: int = 0,
) -> FeatureSet:
    """Every place under three scanners and two stains, two places per patient; `missing` images less."""
    draw = np.random.default_rng(seed)
    rows = [(place, scanner, stain) for place in range(places) for scanner in SCANNERS for stain in STAINS]
    rows = [rows[k] for k in draw.permutation(len(rows))[missing:]]
    tissue, effect = (
        draw.normal(size=(places, 12)),
        {name: draw.normal(size=12) for name in (*SCANNERS, *STAINS)},
    )
    x = [
        tissue[place] + pull * (effect[scanner] + effect[stain]) + 0.6 * draw.normal(size=12)
        for place, scanner, stain in rows
    ]
    of_place, of_scanner, of_stain = zip(*rows, strict=True)
    names = tuple(f"{split}-{place}" for place in of_place)
    sites = {"scanner": of_scanner, "stain": of_stain, "pair": names}
    labels, groups = np.array(of_place) % 2, [f"{split}-p{place // 2}" for place in of_place]
    meta = {"dataset": "set", "encoder": encoder, "size": 224, "split": split, "classes": list(CLASSES)}
    return feature_set(np.array(x), labels, names=split + "-{}.png", groups=groups, sites=sites, **meta)


def slow(features: FeatureSet) -> dict[str, list[tuple[tuple[str, ...], dict[str, list[float]], list[str]]]]:
    """plismbench's definition, written down place by place: per pair of slides the terms and their groups."""
    x = features.embeddings.double().numpy()
    slides: dict[tuple[str, str], dict[str, int]] = {}
    for row, (scanner, stain, pair) in enumerate(zip(*features.sites.values(), strict=True)):
        slides.setdefault((scanner, stain), {})[pair] = row
    found: dict[str, list[tuple[tuple[str, ...], dict[str, list[float]], list[str]]]] = {}
    for one, other in combinations(sorted(slides), 2):
        shared = sorted(slides[one].keys() & slides[other].keys())
        stack = [slides[one][pair] for pair in shared] + [slides[other][pair] for pair in shared]
        terms: dict[str, list[float]] = {name: [] for name in ("cosine", "top1", "top3", "top5", "top10")}
        n = len(shared)
        for place in range(n):
            terms["cosine"].append(cosine(x[stack[place]], x[stack[n + place]]))
            ranks = []
            for own, partner in ((place, n + place), (n + place, place)):
                hits = [hit for hit in range(2 * n) if hit != own]
                hits.sort(key=lambda hit: -cosine(x[stack[own]], x[stack[hit]]))
                ranks.append(hits.index(partner))
            for k in (1, 3, 5, 10):
                terms[f"top{k}"].append(sum(rank < k for rank in ranks) / 2)
        differ = (one[0] != other[0]) + 2 * (one[1] != other[1])
        kind = {1: "scanner", 2: "stain", 3: "several"}[differ]
        groups = [(features.groups or ())[slides[one][pair]] for pair in shared]
        found.setdefault(kind, []).append(((*one, *other), terms, groups))
    return found


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("missing", [0, 11])
def test_every_measure_is_that_of_the_slow_loop(missing: int) -> None:
    features = registered(missing=missing)
    result = robustness_by(features, "pair", CLASSES, QUICK)
    judge = slow(features)
    every = [match for kind in judge.values() for match in kind]
    measures = result.pack.measures
    for name in ("cosine", "top1", "top3", "top5", "top10"):
        median = np.median([np.mean(terms[name]) for _, terms, _ in every])
        assert measures[f"pair_{name}"].value == pytest.approx(median, abs=1e-9)
        for kind, matches in judge.items():
            median = np.median([np.mean(terms[name]) for _, terms, _ in matches])
            assert measures[f"pair_{name}_other_{kind}"].value == pytest.approx(median, abs=1e-9)
    parts = [measures["pair_cosine"].value, *(measures[f"pair_top10_other_{kind}"].value for kind in judge)]
    assert measures["pair_score"].value == pytest.approx(np.mean(parts))  # type: ignore[arg-type]
    assert result.pack.details["pairs_of_views"] == {"scanner": 6, "several": 6, "stain": 3}


@pytest.mark.slow
def test_left_out_patients_are_gone_from_every_match() -> None:
    features = registered(missing=7)
    result = robustness_by(features, "pair", CLASSES, QUICK)
    # Places are numbered in the order of their names, and patients in the order of their first place.
    first_place: dict[str, str] = {}
    for place, patient in sorted(zip(features.sites["pair"], features.groups or (), strict=True)):
        first_place.setdefault(patient, place)
    order = sorted(first_place, key=lambda patient: first_place[patient])
    matches = [match for kind in slow(features).values() for match in kind]
    for name in ("cosine", "top3"):
        judge = []
        for patient in order:
            means = []
            for _, terms, groups in matches:
                left = [value for value, group in zip(terms[name], groups, strict=True) if group != patient]
                means += [np.mean(left)] if left else []
            judge.append(np.median(means))
        found = result.pack.measures[f"pair_{name}"]
        np.testing.assert_allclose(found.left_out, judge, atol=1e-9)  # type: ignore[arg-type]
        assert found.low < found.value < found.high  # type: ignore[operator]


def test_an_encoder_to_which_everything_is_alike_finds_partners_by_chance_alone() -> None:
    features = registered()
    alike = replace(features, embeddings=torch.ones_like(features.embeddings))
    measures = robustness_by(alike, "pair", CLASSES, QUICK).pack.measures
    assert measures["pair_cosine"].value == pytest.approx(1.0)
    for k in (1, 3, 5, 10):
        assert measures[f"pair_top{k}"].value == pytest.approx(
            k / 27
        )  # 14 places twice, less the image itself


def test_what_pairs_cannot_say_is_said() -> None:
    few = robustness_by(registered(places=5), "pair", CLASSES, QUICK).pack.measures
    assert few["pair_top5"].value is not None
    assert "at most 5 places" in (few["pair_top10"].reason or "")
    assert few["pair_top10"].reason == few["pair_score"].reason
    features = registered()
    apart = {**features.sites, "pair": features.img_names}
    alone = {"pair": features.sites["pair"]}
    for sites, why in ((apart, "no place is shown twice"), (alone, "such as scanner or stain")):
        result = robustness_by(replace(features, sites=sites), "pair", CLASSES, QUICK)
        assert why in result.reason
        assert result.pack.measures["pair_score"].reason == result.reason


def test_a_column_of_sites_may_be_called_place() -> None:
    assert len(register(["a", "a", "b", "b"], {"place": ["x", "y", "x", "y"]}).rows) == 4


def test_groups_that_share_a_place_are_drawn_together() -> None:
    place, groups = np.array([0, 0, 1, 1, 2, 2, 3]), np.array([5, 6, 6, 7, 8, 8, 9])
    assert joined_groups(place, groups).tolist() == [0, 0, 0, 0, 1, 1, 2]
    features = registered()
    slides = tuple(map("-".join, zip(features.sites["scanner"], features.sites["stain"], strict=True)))
    measures = robustness_by(replace(features, groups=slides), "pair", CLASSES, QUICK).pack.measures
    measure = measures["pair_top1"]
    assert measure.low is None
    assert "connected through shared groups" in (measure.reason or "")


@pytest.mark.slow
def test_the_task_measures_pairs_beside_the_sites_and_encoders_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [registered(split=split, seed=split == "test") for split in ("train", "test")]
    done = evaluate(EvaluationRequest(("Robustness",), *parts, tmp_path / "task"))
    assert done.failed == {}
    assert [pack.column for pack in load_robustness(tmp_path / "task")] == ["pair", "scanner", "stain"]
    for encoder, pull in (("steady", 0.0), ("swayed", 3.0)):
        save(registered(encoder=encoder, pull=pull), tmp_path / "f" / f"{encoder}_train.pt")
    command = ["robustness", str(tmp_path / "f"), "-o", str(tmp_path / "r")]
    assert main([*command, "--column", "pair"]) == 0
    assert "set: registered pairs" in capsys.readouterr().out
    (table,) = robustness_tables(load_robustness(tmp_path / "r"))
    assert [pack.encoder for pack in table.packs] == ["steady", "swayed"]
    gap = next(pair for pair in table.pairs if pair.measure == "pair_top1")
    assert 0 < gap.low < gap.difference < gap.high  # type: ignore[operator]
    first, second = ({name: pack.value(name) for name in pack.content["measures"]} for pack in table.packs)
    assert gap.difference == pytest.approx(first["pair_top1"] - second["pair_top1"])  # type: ignore[operator]
    grid = robustness_grid(table)
    assert grid.header == ("encoder", "cosine", "top-1", "top-10", "score")
    assert "14 places in 6 views, 15 pairs of views" in grid.notes[0]
    (page,) = overviews((), robustness=[table], wanted=Scope(), results=tmp_path).overviews
    values = [cell.value for cell in page.columns[0].cells.values()]
    assert values == [first["pair_score"], second["pair_score"]]
