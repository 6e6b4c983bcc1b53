"""A prepared study does what each arm says, gives nothing away, and is the same every time."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from builders import uneven_features
from histobench.cli.main import main
from histobench.consult.arms import (
    ARMS,
    DOSES,
    at_temperature,
    plan_arm,
    random_order,
    select_cases,
    steps_of,
)
from histobench.consult.blinding import blinding_checks
from histobench.consult.encoder_views import Gallery, Regions, _view, view_encoders
from histobench.consult.playing import limited
from histobench.consult.preparing import prepare
from histobench.consult.study import COLUMNS, Case, Cassette, Recorded, Study, open_study, write_cassette
from histobench.consult.study_plan import StudyPlan
from histobench.consult.tool_text import read_neighbours, read_prediction
from histobench.core.errors import HistobenchError
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.data.source import load_dataset
from histobench.roi.features.feature_file import FeatureSet, load
from histobench.roi.options import Settings
from histobench.roi.protocols.knn import knn
from histobench.roi.protocols.linear_probe import linear_probe

pytestmark = pytest.mark.slow


def order(study: Study, arm: str, case: Case) -> list[str]:
    view = case.arms[arm]
    text = study.cassette.answer(
        "predict", {"n": len(study.facts.classes)}, image=case.id, encoder=view.encoder, arm=arm
    )
    return sorted(study.facts.classes, key=lambda name: f", {text}".index(f", {name} "))


def test_the_study_has_every_arm_and_as_many_errors_as_can_be_had(study: Study) -> None:
    assert set(study.facts.arms) == set(ARMS)
    assert len(study.cases) == 40
    wrong = [case.weight for case in study.cases if case.arms["strong"].label != case.reference]
    population = round(120 * (1 - study.facts.encoder("strong").probe_accuracy))  # type: ignore[union-attr]
    assert len(wrong) == min(20, population) > 5
    assert sum(wrong) == pytest.approx(population, rel=0.02)
    assert all(0 < case.probability <= 1 for case in study.cases)
    accuracy = {encoder.role: encoder.probe_accuracy for encoder in study.facts.encoders}
    assert accuracy["strong"] > accuracy["weak"] > accuracy["random"]
    # Weights stand for the population: but for the lots over uneven places, they add up to it.
    assert sum(case.weight for case in study.cases) == pytest.approx(120, rel=0.02)


def shown_by_sklearn(gallery: Gallery, query: np.ndarray, k: int, image: str, group: str) -> list[str]:
    """The same neighbors from a full sort in float64."""
    cosine = cosine_similarity(gallery.features.astype(np.float64), query[None].astype(np.float64))[:, 0]
    images, groups = gallery.regions.images, gallery.regions.groups
    found = [
        images[row]
        for row in np.argsort(-cosine, kind="stable")
        if images[row] != image and (not group or groups[row] != group)
    ]
    return list(dict.fromkeys(found))[:k]


@pytest.mark.parametrize("spread", [1.0, 1e-4], ids=["apart", "closer than float32 can tell"])
def test_neighbors_are_those_of_float64_without_barred_pictures_and_groups(spread: float) -> None:
    draw = np.random.default_rng(3)
    features = (3 + spread * draw.normal(size=(400, 24))).astype(np.float32)
    group_of = np.where(np.arange(400) < 150, 0, draw.integers(1, 9, 400))  # one group holds many
    groups = ["" if group == 8 else f"patient {group}" for group in group_of]
    images = [f"picture {row}" for row in range(400)]
    for copy in range(200, 240):
        features[copy], images[copy] = features[copy - 100], images[copy - 100]
    regions = Regions(np.tile([0, 1], 200), tuple(images), tuple(groups), (Path(),) * 400)
    gallery = Gallery(features, regions, ["A", "B"])
    near = gallery.nearest(features[:60], k=10, barred=[regions.origin(row) for row in range(60)])
    for row in range(60):
        expected = shown_by_sklearn(gallery, features[row], 10, images[row], groups[row])
        assert [each.image for each in near[row]] == expected
    # With fewer regions than asked for, all of them are shown.
    (every,) = gallery.nearest(features[:1], k=400, barred=[set()])
    assert len(every) == 360


def test_sharpened_and_flattened_confidences_keep_the_order_of_classes(study: Study) -> None:
    for case in study.cases:
        assert order(study, "sure", case) == order(study, "unsure", case) == order(study, "strong", case)
    for arm, mean in (("sure", 0.99), ("unsure", 0.40)):
        assert np.mean([case.arms[arm].confidence for case in study.cases]) == pytest.approx(mean, abs=1e-6)
    two = np.random.default_rng(2).dirichlet([1, 3], 50)  # no mean of .40 is possible
    shown = plan_arm("unsure", {"strong": two}, np.zeros(50, dtype=np.int64)).probabilities
    assert shown.max(axis=1).mean() == pytest.approx(0.55)


def test_the_dose_of_wrong_labels_is_exact_and_part_of_a_larger_one(study: Study) -> None:
    made = {arm: {c.id for c in study.cases if c.arms[arm].manipulated} for arm in DOSES}
    assert made["wrong-10"] < made["wrong-25"] < made["wrong-50"]
    for arm, dose in DOSES.items():
        assert len(made[arm]) == round(dose * len(study.cases))
        for case in study.cases:
            if case.id in made[arm]:
                assert case.arms[arm].label != case.reference
                assert case.arms[arm].confidence == pytest.approx(0.95)
            else:
                assert case.arms[arm].label == case.arms["strong"].label


def test_sequences_show_what_the_encoders_own_arms_show(study: Study) -> None:
    assert [len(each) for each in study.facts.sequences] == [20] * 4
    assert all(len(set(each)) == 20 for each in study.facts.sequences)
    assert len({id for each in study.facts.sequences[:2] for id in each}) == 40  # none twice before all once
    steps = steps_of("sequence", study.facts.sequences, study.facts.replaced_by)
    same = steps_of("sequence-same", study.facts.sequences, study.facts.replaced_by)
    assert [step.id for step in steps] == [step.id for step in same]
    assert {step.role for step in same} == {"strong"}
    assert all((step.role == "random") == (step.position >= 10) for step in steps)
    assert [step.position for step in steps] == sorted(step.position for step in steps)


def test_cases_are_in_a_random_order_and_a_limit_is_balanced_over_classes(study: Study) -> None:
    labels = [case.reference for case in study.cases]
    assert labels != sorted(labels)
    shares = {name: labels.count(name) / len(labels) for name in set(labels)}
    assert limited(study, 20) != limited(replace(study, facts=replace(study.facts, seed=1)), 20)
    for limit in (5, 10, 20):
        some = [case.reference for case in limited(study, limit)]
        assert len(some) == limit
        assert all(abs(some.count(name) - limit * share) <= 1.5 for name, share in shares.items())


def test_every_case_is_as_likely_as_another_to_be_within_a_limit() -> None:
    labels = np.repeat(["a", "b", "c"], [4, 10, 26])
    drawn = np.zeros(40)
    for seed in range(4000):
        drawn[random_order(labels, seed=seed)[:12]] += 1
    assert np.abs(drawn / 4000 - 12 / 40).max() < 5 * np.sqrt(0.3 * 0.7 / 4000) + 0.01


def test_the_form_of_the_answers_is_the_same_in_every_arm(study: Study) -> None:
    shape = re.compile(r"[0-9a-f]{8}|\d+")
    names = sorted(study.facts.classes, key=len, reverse=True)

    def form(row: Recorded) -> str:
        answer = row.answer
        for name in names:
            answer = answer.replace(name, "X")
        return shape.sub(lambda found: "#" * len(found[0]) if len(found[0]) == 8 else "0", answer)

    arms = ("strong", "weak", "random", "shuffled", "sure", "wrong-25")
    seen: dict[tuple[str, str], set[str]] = {}
    for row in study.cassette.rows:
        if row.tool in ("predict", "neighbours") and row.arm in arms:
            seen.setdefault((row.tool, row.arguments), set()).add(form(row))
    assert all(len(forms) == 1 for forms in seen.values())
    assert not any(view.zero_shot for case in study.cases for view in case.arms.values())
    assert "cosine" not in "".join(row.answer for row in study.cassette.rows)


def test_the_name_of_a_neighbour_differs_from_case_to_case(study: Study) -> None:
    named: dict[str, set[str]] = {}
    for row in study.cassette.rows:
        if row.tool == "neighbours":
            for near in read_neighbours(row.answer):
                named.setdefault(near.image, set()).add(row.image)
    assert all(len(cases) == 1 for cases in named.values())
    pictures = study.pictures()  # of training tiles, of which test patients have none
    assert all(pictures[name].name.startswith("train-") for name in named)


def with_answers(study: Study, change: Callable[[Recorded], str]) -> Cassette:
    return Cassette(replace(row, answer=change(row)) for row in study.cassette.rows)


@pytest.mark.nightly
def test_the_audit_finds_raw_cosines_and_names_the_field(study: Study) -> None:
    checks = blinding_checks(study.cases, study.cassette, study.facts.classes)
    assert [(check.first, check.second) for check in checks] == [
        ("strong", "weak"),
        ("strong", "random"),
        ("weak", "random"),
    ]
    assert not any(check.leaks for check in checks)
    assert checks == study.facts.blinding
    generator = np.random.default_rng(0)

    def cosine(row: Recorded) -> str:
        if row.tool != "neighbours":
            return row.answer
        value = generator.normal(0.99 if row.arm == "random" else 0.6, 0.05)
        return f"{row.answer}\ncosine {value:.3f}"

    leaky = blinding_checks(study.cases, with_answers(study, cosine), study.facts.classes)
    assert leaky[1].leaks
    assert leaky[1].auc > 0.9
    assert "neighbours" in leaky[1].field


@pytest.mark.nightly
def test_a_tool_that_only_some_encoders_have_is_found(study: Study) -> None:
    cases = [
        replace(case, arms={arm: replace(view, zero_shot=arm == "strong") for arm, view in case.arms.items()})
        for case in study.cases
    ]
    checks = blinding_checks(cases, study.cassette, study.facts.classes)
    assert [check.leaks for check in checks] == [True, True, False]
    assert checks[0].field == "tools"


def test_contrasts_are_registered_with_their_time_and_checked(study: Study, tmp_path: Path) -> None:
    assert [each.name for each in study.contrasts] == ["over_tool", "sequence", "wrong-25", "sure"]
    assert all(each.registered for each in study.contrasts)
    copied = tmp_path / "study"
    shutil.copytree(study.folder, copied, ignore=shutil.ignore_patterns("runs"))
    assert open_study(copied).fingerprint == study.fingerprint
    write_cassette(copied / "cassette.parquet", study.cassette.rows[:-1])
    for change in ({"sequences": study.facts.sequences[::-1]}, {"replaced_by": "weak"}):
        assert replace(study, facts=replace(study.facts, **change)).fingerprint != study.fingerprint
    assert open_study(copied).fingerprint != study.fingerprint
    file = tmp_path / "mine.json"
    mine = {"name": "dose", "measure": "u_wrong", "arm": "wrong-50", "against": "strong"}
    file.write_text(json.dumps([mine]))
    assert main(["consult", "register", str(copied), str(file)]) == 0
    assert [each.name for each in open_study(copied).contrasts][-1] == "dose"
    assert main(["consult", "register", str(copied), str(file)]) == 2  # the name is taken
    for wrong in (
        {**mine, "name": "x", "measure": "nonsense"},
        {**mine, "name": "x", "arm": "swap"},
        {**mine, "name": "x", "against": ""},
        {**mine, "name": "x", "against": "sequence"},
        {**mine, "name": "x", "other": "key"},
    ):
        file.write_text(json.dumps([wrong]))
        assert main(["consult", "register", str(copied), str(file)]) == 2


def test_answers_and_lessons_are_made_of_the_encoders_features(study: Study) -> None:
    names, columns, pictures = study.facts.classes, [], study.pictures()

    def ask(case: Case, arm: str, tool: str, **given: int) -> str:
        encoder = case.arms[arm].encoder
        return study.cassette.answer(tool, given, image=case.id, encoder=encoder, arm=arm)

    def labels(case: Case, arm: str) -> list[str]:
        return [each.label for each in read_neighbours(ask(case, arm, "neighbours", k=10))]

    for encoder in study.facts.encoders:
        train, val, test = (
            load(next((study.folder / "features").glob(f"*{encoder.name}*_{split}.pt")))
            for split in ("train", "val", "test")
        )
        rest = torch.cat([val.embeddings, test.embeddings])
        raw = linear_probe(train.embeddings, train.labels, rest, n_classes=5).probabilities
        on_val, on_test = np.split(at_temperature(raw, encoder.temperature), [len(val)])
        votes = knn(train.embeddings, train.labels, test.embeddings, n_classes=5, n_neighbors=20)
        said = {"validation": on_val.argmax(1), "probe": on_test.argmax(1), "knn": votes.predicted}
        for name, classes in said.items():
            truth = (val if name == "validation" else test).labels.numpy()
            assert getattr(encoder, f"{name}_accuracy") == np.mean(classes == truth)

        def near(part: FeatureSet, row: int, *barred: int, known: FeatureSet = train) -> list[str]:
            cosines = cosine_similarity(known.embeddings, part.embeddings[[row]])[:, 0]
            groups = {part.groups[each] for each in (row, *barred)}  # type: ignore[index]
            order = np.argsort(-cosines, kind="stable")
            return [names[known.labels[k]] for k in order if known.groups[k] not in groups][:10]  # type: ignore[index]

        counts = [[near(val, row)[:5].count(name) for name in names] for row in range(len(val))]
        columns.append(np.concatenate([on_val.round(2), counts], axis=1))
        place = {Path(name).name: row for row, name in enumerate(test.img_names)}
        row_of = {case.id: place[pictures[case.id].name] for case in study.cases}
        told = {case.id: ask(case, "strong", "predict", n=5) for case in study.cases}
        for case in study.cases:
            shown = read_prediction(ask(case, encoder.role, "predict", n=5), names)
            np.testing.assert_allclose(shown, on_test[row_of[case.id]], atol=0.00501)
            assert labels(case, encoder.role) == near(test, row_of[case.id])
            if encoder.role == "strong":  # another case's answers, without the groups of both
                same = [id for id, text in told.items() if text == ask(case, "shuffled", "predict", n=5)]
                assert labels(case, "shuffled") in [
                    near(test, row_of[id], row_of[case.id]) for id in same if id != case.id
                ]
    made = [sorted(case.arms[arm].confidence for case in study.cases) for arm in ("strong", "shuffled")]
    assert made[0] == made[1]  # each is shown once
    lessons = study.lessons("val")
    found = np.column_stack([lessons.labels, *(lessons.shown[each.role] for each in study.facts.encoders)])
    expected = np.column_stack([val.labels, *columns])
    assert set(map(tuple, found.tolist())) <= set(map(tuple, expected.tolist()))
    assert len(found) == 40


def test_the_cassette_has_every_answer_that_can_be_asked_for_and_no_reference(study: Study) -> None:
    table = pq.read_table(study.folder / "cassette.parquet")
    assert tuple(table.column_names) == COLUMNS
    per_case = 5 + 10  # predict and neighbours
    arms = len(ARMS) - 3  # none, and both sequences show what others show
    assert len(table) == 40 * (1 + arms * per_case + 1) + 5  # measure, track_record; typical


def test_the_record_of_a_tool_is_that_of_the_validation_regions(study: Study) -> None:
    rows = {row.answer for row in study.cassette.rows if row.tool == "track_record"}
    (strong, *_) = study.facts.encoders
    found = [re.search(r"said .+ (\d+) times and was right (\d+) times", row).groups() for row in rows]
    said, right = (sum(int(each[place]) for each in found) for place in (0, 1))
    assert (len(found), said) == (5, 60)  # every class was said of some case
    assert right / said == pytest.approx(strong.validation_accuracy)


def test_a_study_that_is_torn_between_two_preparations_is_none(study: Study, tmp_path: Path) -> None:
    shutil.copytree(study.folder, tmp_path / "torn", ignore=shutil.ignore_patterns("study.json", "runs"))
    with pytest.raises(HistobenchError, match="is not a Consult study"):
        open_study(tmp_path / "torn")


def test_a_missing_extra_is_reported_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("histobench.consult.measurements.find_spec", lambda name: None)
    with pytest.raises(HistobenchError, match=r"pip install 'histobench\[consult\]'"):
        prepare(None, None, tmp_path / "study")  # type: ignore[arg-type]
    assert not (tmp_path / "study").exists()


def test_confidences_are_calibrated_on_validation_and_not_on_test_regions() -> None:
    parts = {name: replace(part, labels=part.labels % 3) for name, part in uneven_features().items()}
    wrong = parts["val"].labels.clone()
    wrong[:3] = (wrong[:3] + 1) % 3  # a probe that is wrong here is less sure of the rest
    noisy = replace(parts["val"], labels=wrong)
    dataset = RoiDataset("d", ("a", "b", "c"), {})

    def temperature(**given: FeatureSet) -> float:
        arrays = {split: part.embeddings.numpy() for split, part in given.items()}
        regions = {
            split: Regions(part.labels.numpy(), part.img_names, part.groups or (), ())
            for split, part in given.items()
        }
        test = replace(given["test"], metadata={"encoder_fingerprint": "f"})
        view = _view("strong", "e", arrays, regions, test, dataset, StudyPlan(("e",), ()), None)
        for split in arrays:
            np.testing.assert_array_equal(view.features[split], arrays[split])
        raw = linear_probe(
            given["train"].embeddings, given["train"].labels, given["val"].embeddings, n_classes=3
        )
        losses = {
            scale: -np.log(at_temperature(raw.probabilities, scale)[range(11), given["val"].labels]).mean()
            for scale in view.facts.temperature * np.array([0.8, 1.0, 1.25])
        }
        assert min(losses, key=lambda scale: losses[scale]) == view.facts.temperature
        np.testing.assert_allclose(
            view.val, at_temperature(raw.probabilities, view.facts.temperature), atol=1e-6
        )
        assert view.facts.validation_accuracy == np.mean(
            raw.probabilities.argmax(axis=1) == given["val"].labels.numpy()
        )
        return view.facts.temperature

    usual = temperature(**parts)
    other_test = replace(parts["test"], labels=(parts["test"].labels + 1) % 3)
    assert temperature(**{**parts, "test": other_test}) == usual
    assert temperature(**{**parts, "val": noisy}) > 1.2 * usual


def test_without_a_validation_split_patients_of_the_training_split_are_held_out(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = study_folder.parent
    monkeypatch.setenv("HISTOBENCH_CACHE", str(source / "cache"))
    data, encoder = load_dataset(source / "tiles.csv"), f"{source / 'three.py'}:Colours"
    plan = StudyPlan((encoder,), (), settings=Settings(device="cpu", num_workers=0))
    regions, views = view_encoders(data, {"A": encoder}, plan, tmp_path)
    known = dict[str, np.ndarray]()
    for split, part in regions.items():
        known |= zip(part.images, views["A"].features[split], strict=True)
    train = [*data.splits["train"], *data.splits["val"]]
    merged, held_out = replace(data, splits={"train": train, "test": data.splits["test"]}), set()
    for seed in (0, 1):
        regions, views = view_encoders(merged, {"A": encoder}, replace(plan, seed=seed), tmp_path)
        assert not {*regions["train"].groups} & {*regions["val"].groups}
        for split, part in regions.items():
            assert np.array_equal(views["A"].features[split], [known[image] for image in part.images])
        held_out.add(regions["val"].images)
    assert len(held_out) == 2


LABELS = np.repeat(np.arange(7), [40, 30, 20, 10, 5, 2, 1])
DRAWS = 1500
WRONG = np.random.default_rng(3).random(len(LABELS)) < np.linspace(0.05, 0.5, len(LABELS))


@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [5, 20, 41, 300])
def test_chances_are_how_often_a_row_is_drawn(count: int) -> None:
    drawn = np.zeros(len(LABELS))
    chance = np.zeros(len(LABELS))
    for seed in range(DRAWS):
        chosen = select_cases(LABELS, WRONG, count=count, seed=seed)
        assert len(chosen.rows) == min(count, len(LABELS))
        drawn[chosen.rows] += 1
        chance[chosen.rows] = chosen.probability
    assert (drawn > 0).all()  # nobody is left out for good
    assert np.abs(drawn / DRAWS - chance).max() < 5 * 0.5 / np.sqrt(DRAWS)


def test_weighted_accuracy_is_unbiased() -> None:
    values = np.random.default_rng(4).random(len(LABELS)) < 0.3 + 0.1 * LABELS
    totals, counts = [], []
    for seed in range(DRAWS):
        chosen = select_cases(LABELS, WRONG, count=20, seed=seed)
        weights = 1 / chosen.probability
        totals.append((weights * values[chosen.rows]).sum())
        counts.append(weights.sum())
    assert np.mean(totals) == pytest.approx(values.sum(), abs=4 * np.std(totals) / np.sqrt(DRAWS))
    assert np.mean(counts) == pytest.approx(len(LABELS), abs=4 * np.std(counts) / np.sqrt(DRAWS) + 1e-9)


def test_classes_are_as_even_as_can_be_within_each_half() -> None:
    labels, wrong = np.repeat([0, 1, 2], 100), np.tile([True, False], 150)
    chosen = select_cases(labels, wrong, count=60)
    for half in (True, False):
        assert np.bincount(labels[chosen.rows[wrong[chosen.rows] == half]]).tolist() == [10, 10, 10]


def test_all_errors_are_taken_where_there_are_few() -> None:
    labels, wrong = np.zeros(100, dtype=np.int64), np.arange(100) < 4
    chosen = select_cases(labels, wrong, count=20)
    assert set(range(4)) <= set(chosen.rows.tolist())
    assert len(chosen.rows) == len(select_cases(labels, ~wrong, count=20).rows) == 20
