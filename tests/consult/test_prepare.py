"""A prepared study does what each arm says, gives nothing away, and is the same every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from histobench.consult.arms import ARMS, DOSES
from histobench.consult.audit import leaks
from histobench.consult.study import COLUMNS, Case, Cassette, Recorded, Study, canonical
from histobench.consult.tool_text import first_class, read_prediction
from histobench.core.errors import HistobenchError


def predicted(study: Study, arm: str, case: Case) -> np.ndarray:
    view = case.arms[arm]
    text = study.cassette.answer(
        "predict", {"n": len(study.facts.classes)}, image=case.id, encoder=view.encoder, arm=arm
    )
    assert study.facts.classes[first_class(text, study.facts.classes)] == view.label
    return read_prediction(text, study.facts.classes)


def order(study: Study, arm: str, case: Case) -> list[str]:
    view = case.arms[arm]
    text = study.cassette.answer(
        "predict", {"n": len(study.facts.classes)}, image=case.id, encoder=view.encoder, arm=arm
    )
    return sorted(study.facts.classes, key=lambda name: f", {text}".index(f", {name} "))


def test_the_study_has_every_arm_and_as_many_errors_as_can_be_had(study: Study) -> None:
    assert set(study.facts.arms) == set(ARMS)
    assert len(study.cases) == 40
    wrong = sum(case.arms["strong"].label != case.reference for case in study.cases)
    population = round(120 * (1 - study.facts.encoder("strong").probe_accuracy))  # type: ignore[union-attr]
    assert wrong == min(20, population)
    assert wrong > 5
    assert all(0 < case.probability <= 1 for case in study.cases)
    # Weights stand for the population: but for the lots over uneven places, they add up to it.
    assert sum(case.weight for case in study.cases) == pytest.approx(120, rel=0.02)


def test_the_strong_encoder_is_better_than_the_weak_and_the_random_one(study: Study) -> None:
    accuracy = {encoder.role: encoder.probe_accuracy for encoder in study.facts.encoders}
    assert accuracy["strong"] > accuracy["weak"] > accuracy["random"]


def test_sharpened_and_flattened_confidences_keep_the_order_of_classes(study: Study) -> None:
    for case in study.cases:
        assert order(study, "sure", case) == order(study, "unsure", case) == order(study, "strong", case)
    for arm, mean in (("sure", 0.99), ("unsure", 0.40)):
        assert np.mean([case.arms[arm].confidence for case in study.cases]) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("arm", DOSES)
def test_the_dose_of_wrong_labels_is_exact(study: Study, arm: str) -> None:
    made = [case for case in study.cases if case.arms[arm].manipulated]
    assert len(made) == round(DOSES[arm] * len(study.cases))
    for case in study.cases:
        if case.arms[arm].manipulated:
            assert case.arms[arm].label != case.reference
            assert case.arms[arm].confidence == pytest.approx(0.95)
        else:
            assert case.arms[arm].label == case.arms["strong"].label


def test_a_smaller_dose_is_part_of_a_larger_one(study: Study) -> None:
    made = {arm: {c.id for c in study.cases if c.arms[arm].manipulated} for arm in DOSES}
    assert made["wrong-10"] < made["wrong-25"] < made["wrong-50"]


def test_a_silent_swap_changes_the_answers_of_the_tool_and_nothing_else(study: Study) -> None:
    swapped = [case for case in study.cases if case.arms["swap"].manipulated]
    assert 0 < len(swapped) <= 20
    assert all(case.arms["swap"].position >= 20 for case in swapped)
    for case in study.cases:
        like = "random" if case.arms["swap"].manipulated else "strong"
        assert case.arms["swap"].encoder == case.arms[like].encoder
        assert np.array_equal(predicted(study, "swap", case), predicted(study, like, case))


def test_shuffled_answers_are_those_of_other_cases_each_once(study: Study) -> None:
    strong = sorted(case.arms["strong"].confidence for case in study.cases)
    assert sorted(case.arms["shuffled"].confidence for case in study.cases) == strong
    same = [case.arms["shuffled"].confidence == case.arms["strong"].confidence for case in study.cases]
    assert np.mean(same) < 0.2


def test_the_cassette_has_every_answer_that_can_be_asked_for_and_no_reference(study: Study) -> None:
    table = pq.read_table(study.folder / "cassette.parquet")
    assert tuple(table.column_names) == COLUMNS
    per_case = 5 + 10  # predict and neighbours
    arms = len(ARMS) - 1
    assert len(table) == 40 * (1 + arms * per_case + 1) + 5  # measure, track_record; typical


def test_no_neighbour_is_of_the_own_group_and_the_audit_would_notice(study: Study) -> None:
    case = study.cases[0]
    answer = "1. STR, cosine 0.9, image 00ff"
    bad = Cassette([Recorded(case.id, "e", "strong", "neighbours", canonical({"k": 1}), answer)])
    assert leaks([case], bad, group_of={"00ff": {str(case.group)}}, names_of={})
    assert not leaks([case], bad, group_of={"00ff": {"another"}}, names_of={})
    own = Recorded(case.id, "e", "strong", "neighbours", canonical({"k": 1}), f"1. STR, image {case.id}")
    assert leaks([case], Cassette([own]), group_of={}, names_of={})
    told = Recorded(case.id, "e", "strong", "predict", canonical({"n": 1}), "see tile-17.png")
    assert leaks([case], Cassette([told]), group_of={}, names_of={case.id: "tile-17"})


def test_a_changed_cassette_is_refused(study: Study, tmp_path: Path) -> None:
    from histobench.consult.study import read_cassette

    table = pq.read_table(study.folder / "cassette.parquet").to_pandas()
    table.loc[0, "arm"] = "another"
    table.to_parquet(tmp_path / "cassette.parquet", index=False)
    with pytest.raises(HistobenchError, match="addresses"):
        read_cassette(tmp_path / "cassette.parquet")


def test_a_study_that_is_torn_between_two_preparations_is_none(study: Study, tmp_path: Path) -> None:
    import shutil

    from histobench.consult.study import open_study

    shutil.copytree(study.folder, tmp_path / "torn", ignore=shutil.ignore_patterns("study.json", "runs"))
    with pytest.raises(HistobenchError, match="holds no study"):
        open_study(tmp_path / "torn")
