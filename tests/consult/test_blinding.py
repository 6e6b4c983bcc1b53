"""The blinding audit on recorded answers: what it finds, what it leaves alone, and when it cannot say."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from histobench.cli.main import main
from histobench.consult.blinding import blinding_checks
from histobench.consult.encoder_views import EncoderView, Regions
from histobench.consult.study import BlindingCheck, Case, Cassette, Recorded, ToolView, canonical, open_study
from histobench.consult.tool_text import Neighbour, alias, neighbours_text, prediction_text

pytestmark = pytest.mark.slow


@cache
def audit(
    n_groups: int,
    *,
    shift: float = 0.0,
    names: tuple[str, ...] = ("STR", "TUM", "ADI"),
    per_group: int = 4,
    sharp: float = 1.0,
) -> BlindingCheck:
    """The check of two encoders; the second one has higher similarities (`shift`) and sharper confidences."""
    generator = np.random.default_rng(5)
    views = {arm: ToolView(arm, names[0], 0.5) for arm in ("strong", "weak")}
    cases, rows = [], []
    for number in range(n_groups * per_group):
        case = Case(
            f"{number:016x}", "tiles", f"patient {number % n_groups}", names, names[0], 1.0, arms=dict(views)
        )
        cases.append(case)
        for arm in views:
            scores = generator.dirichlet(np.ones(len(names))) ** (sharp if arm == "weak" else 1.0)
            scores /= scores.sum()
            order = np.argsort(-scores)
            near = [
                Neighbour(names[k], f"{generator.integers(2**60):016x}")
                for k in generator.integers(len(names), size=5)
            ]
            percentile = np.clip(generator.uniform(0, 100) + shift * (arm == "weak"), 0, 100)
            said = {
                ("predict", canonical({"n": 3})): prediction_text(order, scores, names),
                ("neighbours", canonical({"k": 5})): neighbours_text(near, percentile, case=case.id),
            }
            rows += [Recorded(case.id, arm, arm, *asked, answer) for asked, answer in said.items()]
    (check,) = blinding_checks(cases, Cassette(rows), names)
    return check


def test_few_groups_are_not_enough_to_call_a_study_blind() -> None:
    for shift in (0.0, 30.0):
        check = audit(5, shift=shift)
        assert not check.blind
        assert not check.leaks
        assert check.groups_needed > 8
        needed = f"(about {check.groups_needed} needed)"
        assert f"too few patients or slides to show that they look alike {needed}" in check.sentence
    enough = audit(40)
    assert enough.blind
    assert enough.sentence.endswith(f", blind (at most {enough.high:.2f})")
    planted = audit(40, shift=30.0)
    assert planted.leaks
    assert "neighbours(k=5) number" in planted.field


def test_the_number_of_groups_that_is_named_is_about_enough() -> None:
    few = audit(5)
    assert not few.blind
    enough = audit(few.groups_needed)
    assert enough.high - enough.low < 0.35


@pytest.mark.parametrize("names", [("0", "1", "10"), ("0.5", "1", "7"), ("grade 1", "grade 2", "1")])
def test_numbers_as_class_names_are_not_taken_for_a_leak(names: tuple[str, ...]) -> None:
    plain, numeric = audit(24), audit(24, names=names)
    assert not numeric.leaks
    assert (numeric.auc, numeric.field_auc) == (plain.auc, plain.field_auc)  # the form is the same


def test_confidences_are_content_and_no_leak() -> None:
    assert audit(24, sharp=6.0) == audit(24)


@pytest.mark.parametrize("farther", [0.0, 0.6], ids=["as near as training", "new patients look different"])
def test_percentiles_of_similarities_are_uniform_whatever_the_encoder(farther: float) -> None:
    generator = np.random.default_rng(1)
    train, test = generator.normal(size=(60, 12)), generator.normal(size=(200, 12)) + farther
    regions = {
        split: Regions(
            np.zeros(n, dtype=np.int64),
            tuple(f"{split} {k}" for k in range(n)),
            tuple(f"patient {k % 10}" for k in range(n)),  # who are in both splits
            (Path(),) * n,
        )
        for split, n in (("train", 60), ("test", 200))
    }
    features = [rows.astype(np.float32) for rows in (train, test)]
    none = np.zeros((0, 1))
    view = EncoderView(None, none, none, dict(zip(("train", "test"), features, strict=True)))  # type: ignore[arg-type]
    gallery = view.gallery(regions, ["STR"])
    barred = [regions["test"].origin(row) for row in range(200)]
    near = gallery.nearest(features[1], k=1, barred=barred)
    found = np.sort([gallery.percentile(each) for each in near])  # type: ignore[type-var]
    assert np.abs(found - 100 * (np.arange(200) + 0.5) / 200).max() < 1e-6


def test_a_weak_encoder_that_is_better_than_the_strong_one_is_reported(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = study_folder.parent
    monkeypatch.setenv("HISTOBENCH_CACHE", str(source / "cache"))
    encoders = ",".join(f"{source / 'three.py'}:{name}" for name in ("Green", "Colours"))
    data = [str(source / "tiles.csv"), "--classes", str(source / "tiles.txt"), "--encoders", encoders]
    rest = ["--cases", "10", "--measured", "2", "--num_workers", "0", "--device", "cpu"]
    arms = ["--arms", "none,strong,weak", "--out", str(tmp_path / "study")]
    assert main(["consult", "prepare", *data, *rest, *arms]) == 0
    said = capsys.readouterr()
    assert "the encoder called weak (Colours" in said.err
    assert "exchange them in --encoders" in said.err
    assert "all features were in the cache" in said.err
    study = open_study(tmp_path / "study")
    assert any(
        "blinding" in caution and "too few patients or slides" in caution for caution in study.facts.cautions
    )
    assert "too few patients or slides to show" in said.err
    shown = {row.image for row in study.cassette.rows if row.tool == "neighbours"}
    assert not any(alias(case.id, case.id) in shown for case in study.cases)
