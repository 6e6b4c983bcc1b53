"""From a dataset and some encoders to a study: cases, recorded answers of all tools, lessons for policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.consult import arms
from histobench.consult.blinding import LEVEL, blinding_checks
from histobench.consult.encoder_views import view_encoders
from histobench.consult.measurements import (
    as_shown,
    measure,
    measurement_text,
    require_measurements,
    typical_text,
)
from histobench.consult.study import (
    DEFAULT_CONTRASTS,
    BlindingCheck,
    Case,
    Cassette,
    Lessons,
    Recorded,
    RegisteredContrast,
    Study,
    StudyFacts,
    ToolView,
    canonical,
    check_contrasts,
    read_contrasts,
    shuffled_options,
    write_study,
)
from histobench.consult.study_plan import EXTRACTION, StudyPlan, assign_roles
from histobench.consult.tool_text import (
    Neighbour,
    alias,
    neighbour_votes,
    neighbours_text,
    prediction_text,
    record_text,
)
from histobench.core.errors import HistobenchError
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.options import Settings

if TYPE_CHECKING:
    from histobench.core.progress import Progress

MOST_NEIGHBOURS = 10
#: The mean of the highest score of `zero_shot`, the same for every encoder.
ZERO_SHOT_MEAN = 0.5
#: Votes of so many neighbours are among the numbers that reference agents read.
VOTING = 5
Floats = NDArray[np.float64]


def plan_study(encoders: Sequence[str], wanted: str, options: dict[str, Any]) -> StudyPlan:
    chosen = tuple(arms.parse_arms(wanted, list(assign_roles(encoders))))
    settings = Settings(**{name: options.pop(name) for name in EXTRACTION if name in options})
    return StudyPlan(tuple(encoders), chosen, **options, settings=settings)


def prepare(
    dataset: RoiDataset, plan: StudyPlan, folder: str | Path, *, progress: Progress | None = None
) -> Study:
    require_measurements()
    folder = Path(folder)
    contrasts: Sequence[RegisteredContrast] = [c for c in DEFAULT_CONTRASTS if not c.problem(plan.arms)]
    if plan.contrasts:
        contrasts = read_contrasts(plan.contrasts)
        check_contrasts(contrasts, plan.arms)
    made = _Preparation(dataset, plan, folder, progress)
    recorded = [*made.measured_answers(), *made.encoder_answers()]
    checks = blinding_checks(made.cases, Cassette(recorded), made.names, seed=plan.seed)
    for check in checks:
        if check.leaks:
            raise HistobenchError(
                f"the study is not blind: the form of the tools' answers distinguishes {check.first} "
                f"from {check.second} (AUC {check.auc:.2f}, {100 * LEVEL:.0f}% interval {check.low:.2f} to "
                f"{check.high:.2f}), most of all by `{check.field}` (AUC {check.field_auc:.2f} alone). "
                "Nothing was written. `similarity` none leaves out the similarity of neighbors."
            )
    return write_study(
        folder,
        made.facts(checks),
        made.cases,
        recorded=recorded,
        pictures=made.pictures(),
        lessons=made.lessons(),
        contrasts=contrasts,
    )


class _Preparation:
    def __init__(self, dataset: RoiDataset, plan: StudyPlan, folder: Path, progress: Progress | None) -> None:
        self.dataset, self.plan = dataset, plan
        roles = assign_roles(plan.encoders)
        self.regions, self.views = view_encoders(dataset, roles, plan, folder / "features", progress=progress)
        self.names = _class_names(dataset.classes, plan)
        self.test = test = self.regions["test"]
        first = test.first_of_each_picture()
        wrong = self.views["strong"].test.argmax(1) != test.labels
        chosen = arms.select_cases(test.labels[first], wrong[first], count=plan.cases, seed=plan.seed)
        order = arms.random_order(test.labels[first][chosen.rows], seed=plan.seed)
        self.rows, probabilities = first[chosen.rows[order]], chosen.probability[order]
        calibrated = {role: view.test[self.rows] for role, view in self.views.items()}
        # Sequences show what the encoders' own arms show, which are recorded whether they are played or not.
        shown = dict.fromkeys([*roles, *plan.arms])
        self.arms = {
            arm: arms.plan_arm(arm, calibrated, test.labels[self.rows], seed=plan.seed)
            for arm in shown
            if arm not in ("none", *arms.SEQUENCE_ARMS)
        }
        self.zero_shot = all(view.zero_shot is not None for view in self.views.values())
        self.cases = [
            Case(
                id=test.images[row],
                dataset=dataset.name,
                group=test.groups[row] or None,
                options=shuffled_options(self.names, test.images[row]),
                reference=self.names[test.labels[row]],
                probability=float(probability),
                arms={arm: self._tool_view(shown, place) for arm, shown in self.arms.items()},
            )
            for place, (row, probability) in enumerate(zip(self.rows, probabilities, strict=True))
        ]
        self.galleries = {role: view.gallery(self.regions, self.names) for role, view in self.views.items()}
        self.measured = {
            split: self.regions[split].measured(plan.measured, seed=plan.seed) for split in ("train", "val")
        }
        #: Name of a training region in the tools' answers -> its picture.
        self.aliases: dict[str, str] = {}

    def _tool_view(self, shown: arms.ArmPlan, place: int) -> ToolView:
        label = int(shown.tool_class[place])
        return ToolView(
            encoder=self.views[shown.role].facts.fingerprint,
            label=self.names[label],
            confidence=float(shown.probabilities[place, label]),
            manipulated=bool(shown.manipulated[place]),
            zero_shot=self.zero_shot,
        )

    def measured_answers(self) -> Iterator[Recorded]:
        """Yield `measure()` of every case and `typical()` of every class: the same in all arms."""
        for row in self.rows:
            text = measurement_text(measure(self.test.pixels(row)))
            yield Recorded(self.test.images[row], "", "", "measure", "{}", text)
        train = self.measured["train"]
        for label, name in enumerate(self.names):
            values = train.values[train.labels == label]
            text = typical_text(name, values) if len(values) else f"{name}: no training regions"
            yield Recorded("", "", "", "typical", canonical({"label": name}), text)

    def encoder_answers(self) -> Iterator[Recorded]:
        for shown in self.arms.values():
            view, gallery = self.views[shown.role], self.galleries[shown.role]
            scores = view.zero_shot if self.zero_shot else None
            described = None if scores is None else _same_sharpness(scores[self.rows])
            # Where the answers of another case are shown: never a picture of this case's group.
            sources = self.rows[shown.source]
            barred = [
                self.test.origin(row) | self.test.origin(source)
                for row, source in zip(self.rows, sources, strict=True)
            ]
            neighbours = gallery.nearest(view.features["test"][sources], k=MOST_NEIGHBOURS, barred=barred)
            for place, (row, near) in enumerate(zip(self.rows, neighbours, strict=True)):
                image = self.test.images[row]
                self.aliases |= {alias(image, each.image): each.image for each in near}
                for tool, arguments, answer in self._answers(shown, place, image, near, described):
                    yield Recorded(
                        image, view.facts.fingerprint, shown.arm, tool, canonical(arguments), answer
                    )

    def _answers(
        self, shown: arms.ArmPlan, place: int, image: str, near: list[Neighbour], described: Floats | None
    ) -> Iterator[tuple[str, dict[str, int], str]]:
        order, probabilities = shown.order[place], shown.probabilities[place]
        for n in range(1, len(self.names) + 1):
            yield "predict", {"n": n}, prediction_text(order[:n], probabilities, self.names)
        reports = self.plan.similarity == "percentile"
        percentile = self.galleries[shown.role].percentile(near) if reports else None
        for k in range(1, MOST_NEIGHBOURS + 1):
            yield "neighbours", {"k": k}, neighbours_text(near[:k], percentile, case=image)
        if described is not None:
            scores = described[shown.source[place]]
            yield "zero_shot", {}, prediction_text(np.argsort(-scores, kind="stable"), scores, self.names)
        if shown.arm == "disclosed":
            label = int(shown.tool_class[place])
            said = self.views[shown.role].val.argmax(axis=1) == label
            right = said & (self.regions["val"].labels == label)
            yield "track_record", {}, record_text(self.names[label], int(right.sum()), int(said.sum()))

    def pictures(self) -> dict[str, str]:
        train, test = self.regions["train"], self.test
        paths = dict(zip(reversed(train.images), reversed(train.paths), strict=True))
        found = {name: paths[image] for name, image in self.aliases.items()}
        found |= {test.images[row]: test.paths[row] for row in self.rows}
        return {image: str(Path(path).absolute()) for image, path in found.items()}

    def lessons(self) -> dict[str, Lessons]:
        train, val = self.measured["train"], self.measured["val"]
        barred = [self.regions["val"].origin(row) for row in val.rows]
        shown: dict[str, Floats] = {}
        for role, view in self.views.items():
            neighbours = self.galleries[role].nearest(view.features["val"][val.rows], k=VOTING, barred=barred)
            lines = [
                [
                    *(float(f"{value:.2f}") for value in view.val[row]),
                    *neighbour_votes(neighbours_text(near), self.names),
                ]
                for row, near in zip(val.rows, neighbours, strict=True)
            ]
            shown[role] = np.array(lines).reshape(len(val.rows), 2 * len(self.names))
        return {
            "train": Lessons(train.labels, as_shown(train.values)),
            "val": Lessons(val.labels, as_shown(val.values), shown),
        }

    def facts(self, checks: Sequence[BlindingCheck]) -> StudyFacts:
        plan, encoders = self.plan, [view.facts for view in self.views.values()]
        cautions = [caution for view in self.views.values() for caution in view.cautions]
        for better, worse in pairwise(encoders):
            if worse.probe_accuracy > better.probe_accuracy:
                cautions.append(
                    f"the encoder called {worse.role} ({worse.name}, {100 * worse.probe_accuracy:.1f}% of "
                    f"test images right) is more accurate than the one called {better.role} ({better.name}, "
                    f"{100 * better.probe_accuracy:.1f}%): exchange them in `encoders`"
                )
        cautions += [f"blinding: {check.sentence}" for check in checks if not check.blind]
        if not any(self.test.groups):
            cautions.append("no groups (patients, slides) are known: every image counts as independent")
        orders: list[NDArray[np.int64]] = []
        if set(plan.arms) & set(arms.SEQUENCE_ARMS):
            orders = arms.draw_sequences(
                len(self.cases), count=plan.sequences, length=plan.sequence_length, seed=plan.seed
            )
        return StudyFacts(
            dataset=self.dataset.name,
            classes=self.names,
            encoders=tuple(encoders),
            arms=plan.arms,
            seed=plan.seed,
            organ=plan.organ,
            region=plan.region,
            microns_per_pixel=plan.microns_per_pixel,
            true_classes=tuple(self.dataset.classes) if plan.blind else None,
            most_neighbours=MOST_NEIGHBOURS,
            cautions=tuple(cautions),
            sequences=tuple(tuple(self.cases[place].id for place in order) for order in orders),
            replaced_by=arms.replacement(list(self.views)),
            blinding=tuple(checks),
        )


def _class_names(classes: Sequence[str], plan: StudyPlan) -> tuple[str, ...]:
    """The names that cases use; blind ones are dealt by the seed, so that their order tells nothing."""
    if not plan.blind:
        return tuple(classes)
    letters = [*ascii_uppercase, *map("".join, product(ascii_uppercase, repeat=2))]
    order = np.random.default_rng([plan.seed, 66]).permutation(len(classes))
    return tuple(f"class {letters[place]}" for place in order)


def _same_sharpness(scores: Floats) -> Floats:
    """Scores of a text tower with the same mean of the highest ones, whatever the scale of its logits."""
    mean = max(ZERO_SHOT_MEAN, 1 / scores.shape[1] + arms.ABOVE_CHANCE)
    return arms.at_temperature(scores, arms.temperature_of_mean(scores, mean))
