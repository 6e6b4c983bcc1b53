"""From a dataset and some encoders to a study: cases, a cassette of all answers, lessons for policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from histobench.consult.arms import (
    ABOVE_CHANCE,
    SEQUENCE_ARMS,
    ArmPlan,
    at_temperature,
    draw_sequences,
    plan_arm,
    random_order,
    replacement,
    select_cases,
    temperature_of_mean,
)
from histobench.consult.blinding import LEVEL, blinding_checks
from histobench.consult.encoder_views import EncoderView, Gallery, Regions, view_encoders
from histobench.consult.measurements import (
    as_shown,
    measure,
    measurement_text,
    require_measurements,
    typical_text,
)
from histobench.consult.study import (
    CASES,
    CONTRASTS_FILE,
    DEFAULT_CONTRASTS,
    FILE,
    PICTURES,
    STUDY,
    BlindingCheck,
    Case,
    Cassette,
    Lessons,
    Recorded,
    Study,
    StudyFacts,
    ToolView,
    canonical,
    open_study,
    read_contrasts,
    register_contrasts,
    shuffled_options,
    write_cases,
    write_cassette,
    write_lessons,
)
from histobench.consult.study_plan import StudyPlan, assign_roles
from histobench.consult.tool_text import (
    alias,
    neighbour_votes,
    neighbours_text,
    prediction_text,
    record_text,
)
from histobench.core.errors import HistobenchError
from histobench.core.files import write_json
from histobench.roi.data.roi_dataset import RoiDataset

if TYPE_CHECKING:
    from histobench.core.progress import Progress

MOST_NEIGHBOURS = 10
#: The mean of the highest score of `zero_shot`, the same for every encoder.
ZERO_SHOT_MEAN = 0.5
#: Votes of so many neighbours are among the numbers that reference agents read.
VOTING = 5
Floats = NDArray[np.float64]


def prepare(
    dataset: RoiDataset, plan: StudyPlan, folder: str | Path, *, progress: Progress | None = None
) -> Study:
    """Write the study to `folder`; the features come from the cache where they are known."""
    require_measurements()
    folder = Path(folder)
    roles = assign_roles(plan.encoders)
    contrasts = [each for each in DEFAULT_CONTRASTS if not each.problem(plan.arms)]
    if plan.contrasts:
        contrasts = list(read_contrasts(plan.contrasts))
        for each in contrasts:
            if problem := each.problem(plan.arms):
                raise HistobenchError(f"{plan.contrasts}: contrast {each.name!r}: {problem}")
    regions, views = view_encoders(dataset, roles, plan, folder / "features", progress=progress)
    names = _class_names(dataset.classes, plan)
    test, strong = regions["test"], views["strong"]
    first = test.first_of_each_picture()
    wrong = strong.test.argmax(1) != test.labels
    chosen = select_cases(test.labels[first], wrong[first], count=plan.cases, seed=plan.seed)
    order = random_order(test.labels[first][chosen.rows], seed=plan.seed)
    rows, probabilities = first[chosen.rows[order]], chosen.probability[order]
    if not len(rows):
        raise HistobenchError(f"{dataset.name} has no test images")
    calibrated = {role: view.test[rows] for role, view in views.items()}
    # Sequences show what the encoders' own arms show, which are recorded whether they are played or not.
    shown_arms = dict.fromkeys([*views, *(arm for arm in plan.arms if arm not in ("none", *SEQUENCE_ARMS))])
    plans = {arm: plan_arm(arm, calibrated, test.labels[rows], seed=plan.seed) for arm in shown_arms}
    # A tool that is missing would give an encoder away.
    zero_shot = all(view.zero_shot is not None for view in views.values())
    cases = [
        Case(
            id=test.images[row],
            dataset=dataset.name,
            group=test.groups[row] or None,
            options=shuffled_options(names, test.images[row]),
            reference=names[test.labels[row]],
            probability=float(probability),
            arms={arm: _tool_view(shown, views, names, place, zero_shot) for arm, shown in plans.items()},
        )
        for place, (row, probability) in enumerate(zip(rows, probabilities, strict=True))
    ]
    recorded = _measured_answers(regions, rows, names, plan)
    galleries = {role: view.gallery(regions, names) for role, view in views.items()}
    named: dict[str, str] = {}
    for shown in plans.values():
        recorded += _encoder_answers(
            shown,
            views[shown.role],
            galleries[shown.role],
            test,
            rows,
            names,
            plan.similarity,
            zero_shot,
            named,
        )
    cassette = Cassette(recorded)
    checks = blinding_checks(cases, cassette, names, seed=plan.seed)
    for check in checks:
        if check.leaks:
            raise HistobenchError(
                f"the study is not blind: the form of the tools' answers tells {check.first} from "
                f"{check.second} (AUC {check.auc:.2f}, {100 * LEVEL:.0f}% interval {check.low:.2f} to "
                f"{check.high:.2f}), most of all by `{check.field}` (AUC {check.field_auc:.2f} alone). "
                "Nothing was written. `similarity` none leaves out the similarity of neighbors."
            )
    # study.json is written last: without it the folder is not a study.
    (folder / STUDY).unlink(missing_ok=True)
    write_cassette(folder / FILE, recorded)
    write_cases(folder / CASES, cases)
    write_json(folder / PICTURES, _pictures(test, rows, regions["train"], named))
    write_lessons(folder, _lessons(regions, views, galleries, names, plan), list(views))
    (folder / CONTRASTS_FILE).unlink(missing_ok=True)
    if contrasts:
        register_contrasts(folder, contrasts, plan.arms)
    sequences: list[tuple[str, ...]] = []
    if set(plan.arms) & set(SEQUENCE_ARMS):
        drawn = draw_sequences(len(cases), count=plan.sequences, length=plan.sequence_length, seed=plan.seed)
        sequences = [tuple(cases[place].id for place in each) for each in drawn]
    facts = _facts(dataset, plan, names, views, test, checks)
    write_json(folder / STUDY, asdict(replace(facts, sequences=tuple(sequences))))
    return open_study(folder)


def _class_names(classes: Sequence[str], plan: StudyPlan) -> tuple[str, ...]:
    """The names that cases use; blind ones are dealt by the seed, so that their order tells nothing."""
    if not plan.blind:
        return tuple(classes)
    letters = [f"class {_letters(place)}" for place in range(len(classes))]
    order = np.random.default_rng([plan.seed, 66]).permutation(len(classes))
    return tuple(letters[place] for place in order)


def _letters(place: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    text = ""
    place += 1
    while place:
        place, letter = divmod(place - 1, 26)
        text = chr(ord("A") + letter) + text
    return text


def _tool_view(
    shown: ArmPlan, views: dict[str, EncoderView], names: Sequence[str], place: int, zero_shot: bool
) -> ToolView:
    label = int(shown.tool_class[place])
    return ToolView(
        encoder=views[shown.role].fingerprint,
        label=names[label],
        confidence=float(shown.probabilities[place, label]),
        manipulated=bool(shown.manipulated[place]),
        zero_shot=zero_shot,
    )


def _measured_answers(
    regions: dict[str, Regions], rows: NDArray[np.int64], names: Sequence[str], plan: StudyPlan
) -> list[Recorded]:
    """`measure()` of every case and `typical()` of every class: the same in all arms."""
    test, train = regions["test"], regions["train"]
    recorded = [
        Recorded(test.images[row], "", "", "measure", "{}", measurement_text(measure(test.pixels(row))))
        for row in rows
    ]
    measured = train.measured(plan.measured, seed=plan.seed)
    for label, name in enumerate(names):
        values = measured.values[measured.labels == label]
        text = typical_text(name, values) if len(values) else f"{name}: no training regions"
        recorded.append(Recorded("", "", "", "typical", canonical({"label": name}), text))
    return recorded


def _encoder_answers(
    shown: ArmPlan,
    view: EncoderView,
    gallery: Gallery,
    test: Regions,
    rows: NDArray[np.int64],
    names: Sequence[str],
    similarity: str,
    zero_shot: bool,
    named: dict[str, str],
) -> list[Recorded]:
    """All answers of an arm; `named` learns which training region each name stands for."""
    recorded: list[Recorded] = []
    described = _same_sharpness(view.zero_shot[rows]) if zero_shot and view.zero_shot is not None else None
    # In a shuffled arm the answers of another case are shown, but never a picture of this one's group.
    sources = rows[shown.source]
    both = list(zip(rows, sources, strict=True))
    neighbours = gallery.nearest(
        view.test_features[sources],
        k=MOST_NEIGHBOURS,
        barred_images=[{test.images[each] for each in pair} for pair in both],
        barred_groups=[{group for each in pair if (group := test.groups[each])} for pair in both],
    )
    for place, (row, near) in enumerate(zip(rows, neighbours, strict=True)):
        image = test.images[row]

        def add(tool: str, arguments: dict[str, int], answer: str, image: str = image) -> None:
            recorded.append(Recorded(image, view.fingerprint, shown.arm, tool, canonical(arguments), answer))

        order, probabilities = shown.order[place], shown.probabilities[place]
        for n in range(1, len(names) + 1):
            add("predict", {"n": n}, prediction_text(order[:n], probabilities, names))
        named |= {alias(image, each.image): each.image for each in near}
        percentile = gallery.percentile(near) if similarity == "percentile" else None
        for k in range(1, MOST_NEIGHBOURS + 1):
            add("neighbours", {"k": k}, neighbours_text(near[:k], percentile, case=image))
        if described is not None:
            scores = described[shown.source[place]]
            ranks = np.argsort(-scores, kind="stable").astype(np.int64)
            add("zero_shot", {}, prediction_text(ranks, scores, names))
        if shown.arm == "disclosed":
            label = int(shown.tool_class[place])
            add("track_record", {}, record_text(names[label], *view.record_of(label)))
    return recorded


def _same_sharpness(scores: Floats) -> Floats:
    """Scores of a text tower with the same mean of the highest ones, whatever the scale of its logits."""
    mean = max(ZERO_SHOT_MEAN, 1 / scores.shape[1] + ABOVE_CHANCE)
    return at_temperature(scores, temperature_of_mean(scores, mean))


def _pictures(
    test: Regions, rows: NDArray[np.int64], train: Regions, named: Mapping[str, str]
) -> dict[str, str]:
    """Where the pictures of the cases are, and of training regions by the names that tools give them."""
    paths = dict(zip(reversed(train.images), reversed(train.paths), strict=True))
    found = {name: paths[image] for name, image in named.items()}
    found |= {test.images[row]: test.paths[row] for row in rows}
    return {image: str(Path(path).absolute()) for image, path in found.items()}


def _lessons(
    regions: dict[str, Regions],
    views: dict[str, EncoderView],
    galleries: dict[str, Gallery],
    names: Sequence[str],
    plan: StudyPlan,
) -> dict[str, Lessons]:
    train = regions["train"].measured(plan.measured, seed=plan.seed)
    val = regions["val"].measured(plan.measured, seed=plan.seed)
    parts = {"train": Lessons(train.labels, as_shown(train.values))}
    shown: dict[str, Floats] = {}
    for role, view in views.items():
        lines = []
        neighbours = galleries[role].nearest(
            view.val_features[val.rows],
            k=VOTING,
            barred_images=[{regions["val"].images[row]} for row in val.rows],
            barred_groups=[{group} if (group := regions["val"].groups[row]) else set() for row in val.rows],
        )
        for row, near in zip(val.rows, neighbours, strict=True):
            said = np.array([float(f"{value:.2f}") for value in view.val[row]])
            lines.append(np.concatenate([said, neighbour_votes(neighbours_text(near), names)]))
        shown[role] = np.array(lines).reshape(len(val.rows), 2 * len(names))
    parts["val"] = Lessons(val.labels, as_shown(val.values), shown)
    return parts


def _facts(
    dataset: RoiDataset,
    plan: StudyPlan,
    names: tuple[str, ...],
    views: dict[str, EncoderView],
    test: Regions,
    checks: Sequence[BlindingCheck],
) -> StudyFacts:
    cautions = [caution for view in views.values() for caution in view.cautions]
    for better, worse in pairwise(view.facts for view in views.values()):
        if worse.probe_accuracy > better.probe_accuracy:
            cautions.append(
                f"the encoder called {worse.role} ({worse.name}, {100 * worse.probe_accuracy:.1f}% of test "
                f"images right) is more accurate than the one called {better.role} ({better.name}, "
                f"{100 * better.probe_accuracy:.1f}%): exchange them in `encoders`"
            )
    cautions += [f"blinding: {check.sentence}" for check in checks if not check.blind]
    if not any(test.groups):
        cautions.append("no groups (patients, slides) are known: every image counts as independent")
    return StudyFacts(
        dataset=dataset.name,
        classes=names,
        encoders=tuple(view.facts for view in views.values()),
        arms=plan.arms,
        seed=plan.seed,
        organ=plan.organ,
        region=plan.region,
        microns_per_pixel=plan.microns_per_pixel,
        true_classes=tuple(dataset.classes) if plan.blind else None,
        most_neighbours=MOST_NEIGHBOURS,
        cautions=tuple(cautions),
        replaced_by=replacement(list(views)),
        blinding=tuple(checks),
    )
