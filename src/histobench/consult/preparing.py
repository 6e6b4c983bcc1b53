"""From a dataset and some encoders to a study: cases, a cassette of all answers, lessons for policies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from histobench.consult.arms import (
    ABOVE_CHANCE,
    ROLES,
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
from histobench.consult.encoder_views import (
    EncoderView,
    Gallery,
    Regions,
    StudyPlan,
    assign_roles,
    view_encoders,
)
from histobench.consult.measurements import as_shown, measure, measurement_text, typical_text
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
    groups_of,
    open_study,
    read_contrasts,
    register_contrasts,
    shuffled_options,
    write_cases,
    write_cassette,
    write_lessons,
)
from histobench.consult.tool_text import (
    alias,
    neighbour_votes,
    neighbours_text,
    prediction_text,
    read_neighbours,
    record_text,
)
from histobench.core.errors import HistobenchError
from histobench.core.files import write_json
from histobench.core.parameters import one_of
from histobench.core.plain_data import parse_json
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.statistics.jackknife import LOGIT, jackknife_bounds, leave_one_out
from histobench.statistics.resampling import sampling_design

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
    folder = Path(folder)
    roles = assign_roles(plan.encoders)
    contrasts = [each for each in DEFAULT_CONTRASTS if not each.problem(plan.arms)]
    if plan.contrasts:
        contrasts = list(read_contrasts(plan.contrasts))
        for each in contrasts:
            if problem := each.problem(plan.arms):
                raise HistobenchError(f"{plan.contrasts}: contrast {each.name!r}: {problem}")
    one_of(plan.similarity, "`similarity`", ("percentile", "none"))
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
    galleries = {role: view.gallery(regions["train"], names) for role, view in views.items()}
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
    problems = leaks(
        cases,
        cassette,
        group_of=regions["train"].groups_of_pictures(),
        names_of={test.images[row]: Path(test.paths[row]).stem for row in rows},
    )
    if problems:
        raise HistobenchError(
            f"the study would leak: {problems[0]} ({len(problems)} in all); nothing is written"
        )
    checks = blinding_checks(cases, cassette, names, seed=plan.seed)
    for check in checks:
        if not check.blind:
            raise HistobenchError(
                f"the study would not be blind: the form of the tools' answers tells {check.first} from "
                f"{check.second} (AUC {check.auc:.2f}, {100 * LEVEL:.0f} % interval {check.low:.2f} to "
                f"{check.high:.2f}), most of all by `{check.field}` (AUC {check.field_auc:.2f} alone). "
                "Nothing is written. Prepare it with `similarity` none, which leaves out similarities."
            )
    # Until the last file is there the folder is no study, neither the old one nor the new one.
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
    facts = _facts(dataset, plan, names, views, test)
    write_json(folder / STUDY, asdict(replace(facts, sequences=tuple(sequences), blinding=checks)))
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
    dataset: RoiDataset, plan: StudyPlan, names: tuple[str, ...], views: dict[str, EncoderView], test: Regions
) -> StudyFacts:
    cautions = [caution for view in views.values() for caution in view.cautions]
    strong, weak = views["strong"].facts, views["weak"].facts if "weak" in views else None
    if weak is not None and weak.validation_accuracy > strong.validation_accuracy:
        cautions.append(
            f"{weak.name} is better than {strong.name} on validation images; exchange them in `encoders`"
        )
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
    )


# What a study must not give away, found out from its recorded answers alone: `leaks` looks for the case's own
# picture, group and file name; `blinding_checks` asks how well a classifier tells two arms apart that sees
# only the form of what their tools say.

#: Tools whose numbers are the tool's confidence: they depend on whether it is right, and are left out.
CONFIDENCES = ("predict", "zero_shot", "track_record")
#: Of the interval of an AUC: a blind study is refused by chance in about 1 of 100.
LEVEL = 0.99
FOLDS = 5

_RANK = re.compile(r"^\d+\. ", re.MULTILINE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_HEX = re.compile(r"[0-9a-f]+")
#: Shorter names occur in numbers and words by chance.
_SHORTEST = 5


def leaks(
    cases: Iterable[Case],
    cassette: Cassette,
    *,
    group_of: Mapping[str, set[str]],
    names_of: Mapping[str, str],
) -> list[str]:
    """What is wrong, in words; empty if nothing is.

    `group_of` has the patients or slides of every training picture (one picture may lie in several),
    `names_of` the file name of every case.
    """
    in_group: dict[str, set[str]] = {}
    for image, groups in group_of.items():
        for group in groups:
            in_group.setdefault(group, set()).add(image)
    by_id = {case.id: case for case in cases}
    own = {
        case.id: {name for image in in_group.get(case.group, ()) for name in (image, alias(case.id, image))}
        for case in by_id.values()
        if case.group
    }
    problems = []
    for row in cassette.rows:
        case = by_id.get(row.image)
        if case is None:
            if row.image:
                problems.append(f"an answer about {row.image}, which is not a case")
            continue
        for near in read_neighbours(row.answer) if row.tool == "neighbours" else ():
            if near.image in (case.id, alias(case.id, case.id)):
                problems.append(f"{case.id} is its own neighbor in arm {row.arm}")
            if near.image in own.get(case.id, ()):
                problems.append(f"a neighbor of {case.id} in arm {row.arm} is of its own group {case.group}")
        for what, secret in (("file name", names_of.get(case.id, "")), ("group", case.group or "")):
            if len(secret) >= _SHORTEST and secret in row.answer:
                problems.append(f"{row.tool} of {case.id} tells its {what}")
    return problems


def blinding_checks(
    cases: Sequence[Case], cassette: Cassette, names: Sequence[str], *, seed: int = 0
) -> tuple[BlindingCheck, ...]:
    """For every two encoders of a study: the AUC with which the form of their answers tells them apart.

    Classes are masked and confidences left out: what depends on whether the tool is right may differ. Cases
    count by the inverse of their selection probability, because half of them were chosen for an error of the
    strong encoder.
    """
    by_case: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for row in cassette.rows:
        by_case.setdefault((row.image, row.arm), []).append((row.tool, row.arguments, row.answer))
    arms = [role for role in ROLES if all(role in case.arms for case in cases)]
    checks = []
    for first, second in combinations(arms, 2):
        forms = [
            {**_form(by_case.get((case.id, arm), ()), names), "tools": float(case.arms[arm].zero_shot)}
            for arm in (first, second)
            for case in cases
        ]
        fields = sorted({name for form in forms for name in form})
        table = np.array([[form.get(name, -1.0) for name in fields] for form in forms])
        # Of fields that say the same, such as a list of five and the beginning of one of ten, the first.
        kept = np.sort(np.unique(table, axis=1, return_index=True)[1])
        fields, table = [fields[column] for column in kept], table[:, kept]
        groups = groups_of(cases) * 2
        weights = np.array([case.weight for case in cases] * 2)
        label = np.repeat([0, 1], len(cases))
        scores = _scores(table, label, groups, weights, seed)
        auc, low, high = _auc(scores, label, groups, weights)
        alone = [_tells(column, label, weights) for column in table.T]
        worst = int(np.argmax(alone))
        checks.append(BlindingCheck(first, second, auc, low, high, fields[worst], alone[worst]))
    return tuple(checks)


def _tells(column: Floats, label: NDArray[np.int64], weights: Floats) -> float:
    """How far one field by itself is from telling nothing, by its values or by their spread: an AUC."""
    from sklearn.metrics import roc_auc_score

    spread = np.abs(column - np.median(column))
    found = [float(roc_auc_score(label, values, sample_weight=weights)) for values in (column, spread)]
    return max(max(auc, 1 - auc) for auc in found)


def _scores(
    table: Floats, label: NDArray[np.int64], groups: Sequence[str], weights: Floats, seed: int
) -> Floats:
    """What gradient boosting says of each row, fitted on the rows of other groups [n]."""
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.model_selection import GroupKFold

    codes = np.unique(np.asarray(groups), return_inverse=True)[1]
    folds = min(FOLDS, int(codes.max()) + 1)
    scores = np.zeros(len(label))
    if folds < 2 or not np.ptp(table, axis=0).any():
        return scores
    for fit, test in GroupKFold(folds, shuffle=True, random_state=seed).split(table, label, codes):
        model = GradientBoostingClassifier(n_estimators=50, max_depth=2, subsample=0.8, random_state=seed)
        said = model.fit(table[fit], label[fit], sample_weight=weights[fit]).decision_function(table[test])
        # Every case is in its fold in both arms: folds differ in their level, which tells nothing.
        scores[test] = said - said.mean()
    return scores


def _auc(
    scores: Floats, label: NDArray[np.int64], groups: Sequence[str], weights: Floats
) -> tuple[float, float, float]:
    from sklearn.metrics import roc_auc_score

    def auc(counts: NDArray[np.int32]) -> dict[str, Floats]:
        values = [roc_auc_score(label, scores, sample_weight=weights * count) for count in counts]
        return {"auc": np.array(values)}

    design = sampling_design(len(label), clusters=groups)
    if design.n_units < 2:
        return 0.5, 0.0, 1.0
    found = leave_one_out(auc, design, max_blocks=100)
    low, high = jackknife_bounds(found, LOGIT, len(label) / 2, level=LEVEL)
    return float(found.values[0]), float(low[0]), float(high[0])


def _form(answers: Iterable[tuple[str, str, str]], names: Sequence[str]) -> dict[str, float]:
    """Fields of the form of what the tools said of a case in an arm: layout, digits, other numbers, ids."""
    fields: dict[str, float] = {}
    longest = sorted(names, key=len, reverse=True)
    for tool, arguments, answer in answers:
        given = ", ".join(f"{name}={value}" for name, value in parse_json(arguments).items())
        place = f"{tool}({given})"
        ids = [near.image for near in read_neighbours(answer)] if tool == "neighbours" else []
        for rank, id in enumerate(ids, start=1):
            answer = answer.replace(id, "")
            fields[f"{place} id {rank}"] = float(int(id[:8], 16)) if _HEX.fullmatch(id) else -1.0
        for name in longest:
            answer = answer.replace(name, "")
        numbers = _NUMBER.findall(_RANK.sub("", answer))
        fields[f"{place} lines"] = float(answer.count("\n"))
        fields[f"{place} numbers"] = float(len(numbers))
        fields[f"{place} decimals"] = float(max((len(n.partition(".")[2]) for n in numbers), default=0))
        fields[f"{place} words"] = float(len(_NUMBER.sub("", answer)))
        if tool not in CONFIDENCES:
            fields |= {f"{place} number {k}": float(number) for k, number in enumerate(numbers, start=1)}
    return fields
