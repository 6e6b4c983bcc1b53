"""What every task of one evaluation works with, and the caveats of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.records import options_of
from histobench.roi.data.check import confounded, single_group_classes
from histobench.roi.data.sites import is_place
from histobench.roi.encoders.own_name import UNCHECKED, is_unchecked
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.features.feature_file import FeatureSet, text_columns
from histobench.roi.features.fingerprint import versions
from histobench.roi.metrics.classification import Score, evaluate_predictions
from histobench.roi.options import Options
from histobench.roi.predictions import Predictions, TargetPredictions, TileAttention
from histobench.roi.presets import Preset, get_preset
from histobench.roi.protocols.linear_probe import held_out
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.results.changed_data import DATA, told_of_data
from histobench.roi.results.episode_predictions import EpisodePredictions

# What the make-up of the data does to the numbers: classes without images, from one patient or one site.


def caveats(test: FeatureSet, classes: Sequence[str]) -> tuple[str, ...]:
    """In words, what stands behind the class means of this test set; empty where nothing is odd."""
    labels = test.labels.numpy()
    found = []
    absent = [name for label, name in enumerate(classes) if not (labels == label).any()]
    if absent:
        found.append(
            f"{_listed(absent)} {'has' if len(absent) == 1 else 'have'} no test images: balanced accuracy "
            f"and other means over classes are over {len(classes) - len(absent)} of {len(classes)} classes"
        )
    # Of a target that is not a class all images are of one, which says nothing.
    single = single_group_classes(labels.tolist(), test.groups or ()) if len(classes) > 1 else []
    if len(single) > 1:
        named = ", ".join(f"{classes[label]} ({group})" for label, group, _ in single)
        found.append(
            f"{len(single)} of {len(classes)} classes have their test images from one group each: {named}; "
            "their recall, and with it every mean over classes, rests on one patient or slide each"
        )
    for label, group, images in single if len(single) == 1 else ():
        found.append(
            f"class {classes[label]}: all {images} test images come from one group ({group}): its recall, "
            "and with it every mean over classes, rests on one patient or slide"
        )
    return tuple(found)


def origin_caveats(features: FeatureSet) -> tuple[str, ...]:
    """What is to be said of features whose encoder is outside the zoo."""
    return (UNCHECKED,) if is_unchecked(features.metadata.get("identity")) else ()


def site_caveats(parts: Sequence[FeatureSet]) -> tuple[str, ...]:
    """The site columns that go along with the label, over all splits; images of unknown site are left out.

    A column whose every value is of one group (a slide, a fold of one patient) is no site and not looked at.
    """
    found = []
    for column in dict.fromkeys(column for part in parts for column in part.sites if is_place(column)):
        images = [
            (label, site, group)
            for part in parts
            for label, site, group in zip(
                part.labels.tolist(),
                part.sites.get(column) or ("",) * len(part),
                part.groups or range(len(part)),
                strict=True,
            )
            if site
        ]
        one_group_each = len({(site, group) for _, site, group in images}) == len(
            {site for _, site, _ in images}
        )
        if images and not one_group_each:
            labels, sites, _ = zip(*images, strict=True)
            found.append(confounded(labels, sites, column))
    return tuple(text for text in found if text)


def _listed(names: Sequence[str]) -> str:
    return ("class " if len(names) == 1 else "classes ") + ", ".join(names)


# What is held out of the training set where hyper-parameters are chosen and there is no validation set.


@dataclass(frozen=True)
class Choosing:
    """Groups that stay together while something is chosen; None: images are held out one by one."""

    groups: tuple[str, ...] | None
    warning: str = ""

    @property
    def chosen_by(self) -> str:
        """The word for it in results files: "group" or "image"."""
        return "image" if self.groups is None else "group"


def choosing(
    labels: Sequence[int], groups: tuple[str, ...] | None, choose_by: str, classes: Sequence[str]
) -> Choosing:
    """Whole groups where the data names them, unless `choose_by` is "image" or groups cannot be divided.

    Patients whose images are in both parts make the larger part look right on the smaller one, whatever is
    chosen: the choice would be for the patients at hand and not for those of the test set.
    """
    if choose_by == "image" or groups is None or not any(groups):
        return Choosing(None)
    members: dict[int, set[str]] = {}
    for row, (label, group) in enumerate(zip(labels, groups, strict=True)):
        members.setdefault(label, set()).add(f"g{group}" if group else f"i{row}")
    single = [label for label in sorted(members) if len(members[label]) == 1]
    if len(single) == len(members):
        return Choosing(
            None,
            "hyper-parameters were chosen by images: every class has the training images of one group only, "
            "so that no group can be held out",
        )
    if single:
        names = ", ".join(classes[label] for label in single)
        return Choosing(
            groups,
            f"{'class' if len(single) == 1 else 'classes'} {names}: the training images come from one group, "
            "which cannot be both trained on and held out; hyper-parameters were chosen without it",
        )
    return Choosing(groups)


# Does the test set stand in the training set? Numbers would be too good, and nothing else would show it.

#: Columns by which rows are first compared; equal ones are then compared whole.
_PROBES = 8


def leaks(test: FeatureSet, others: Mapping[str, FeatureSet]) -> tuple[str, ...]:
    """What the test features share with the `others` (by split), in words."""
    found = []
    for split, features in others.items():
        same = int(_rows_also_in(test.embeddings.numpy(), features.embeddings.numpy()).sum())
        if same:
            images = "1 test image has" if same == 1 else f"{same} of {len(test)} test images have"
            found.append(
                f"{images} the very features of a {split} image: the same images (or equally blank ones) are "
                "in both, and the results may be too good; `histobench data check` lists them"
            )
        groups = set(test.groups or ()) - {""}  # images without a group are groups of their own
        shared = sorted(groups & set(features.groups or ()))
        if shared:
            some = ", ".join(shared[:3]) + (", ..." if len(shared) > 3 else "")
            found.append(
                f"{len(shared)} of {len(groups)} test groups (patients, slides) are also in {split} "
                f"({some}): the results are likely too good"
            )
    return tuple(found)


def _rows_also_in(rows: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows stand among the others, bit for bit."""
    columns = np.unique(np.linspace(0, rows.shape[1] - 1, _PROBES).astype(int))
    keys, other_keys = (_as_bytes(values[:, columns]) for values in (rows, others))
    places = np.flatnonzero(np.isin(other_keys, keys))
    known = {others[place].tobytes() for place in places}
    likely = np.isin(keys, other_keys)
    return np.array([likely[k] and rows[k].tobytes() in known for k in range(len(rows))], dtype=bool)


def _as_bytes(values: NDArray[np.float32]) -> NDArray[np.void]:
    whole = np.ascontiguousarray(values)
    return whole.view(np.dtype((np.void, whole.itemsize * whole.shape[1]))).ravel()


class TaskSkippedError(Exception):
    """A task cannot be run on these features; the others can."""


@dataclass(frozen=True)
class Context:
    """The request, its classes and the device."""

    request: EvaluationRequest
    classes: tuple[str, ...]
    device: str

    @property
    def preset(self) -> Preset:
        """The recipe that the tasks follow."""
        return get_preset(self.request.preset)

    @cached_property
    def train(self) -> FeatureSet:
        """The training features; under `uni` the validation features are part of them."""
        return merged(self.request.train, self.request.val if self.val_joins_train else None)

    @property
    def val_joins_train(self) -> bool:
        """Whether the validation features are training data here."""
        return self.request.val is not None and self.preset.validation == "joined"

    @cached_property
    def train_and_val(self) -> tuple[FeatureSet, FeatureSet]:
        """Features to train on and to choose by; without a validation set a fifth of train is held out."""
        train = self.request.train
        if self.request.val is not None:
            return train, self.request.val
        groups = self.choosing(train).groups
        fit, rest = held_out(train.labels.numpy(), groups, seed=self.request.seed)
        if not len(rest):
            raise TaskSkippedError(
                f"the preset {self.request.preset} chooses on held-out images, but every class has one "
                "training image; give a validation set"
            )
        return rows_of(train, fit), rows_of(train, rest)

    def choosing(self, train: FeatureSet) -> Choosing:
        """What is held out of these training features where something is chosen."""
        return choosing(train.labels.tolist(), train.groups, self.request.options.choose_by, self.classes)

    @cached_property
    def choices(self) -> Choosing | None:
        """What is held out of the training set under this preset; None where nothing is chosen on it."""
        if self.request.val is not None or not self.preset.chooses or not len(self.request.train):
            return None
        return self.choosing(self.request.train)

    @property
    def choice_warnings(self) -> tuple[str, ...]:
        """What a task that chooses on a part of the training set has to say about the choice."""
        return (self.choices.warning,) if self.choices is not None and self.choices.warning else ()

    @cached_property
    def leaks(self) -> tuple[str, ...]:
        """What the test set shares with the other splits, in words."""
        others = {"training": self.request.train, "validation": self.request.val}
        return leaks(
            self.request.test, {name: part for name, part in others.items() if part is not None and len(part)}
        )

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """What is odd about the data and holds for every task's numbers."""
        return (
            *origin_caveats(self.request.test),
            *self.leaks,
            *site_caveats(self.request.features),
            *caveats(self.request.test, self.classes),
        )

    @cached_property
    def _data(self) -> dict[str, Any]:
        """What tells these images and labels from others under the same name."""
        parts = {"train": self.request.train, "val": self.request.val, "test": self.request.test}
        given = {name: part for name, part in parts.items() if part is not None and len(part)}
        return told_of_data(
            {name: (part.img_names, part.labels.tolist()) for name, part in given.items()},
            self.classes,
            named_here=all(part.metadata.get("fingerprint") for part in given.values()),
        )

    @cached_property
    def _versions(self) -> dict[str, str]:
        """Of what computes; to look them up takes as long as a small task."""
        return versions("scipy", "scikit-learn")

    @property
    def info(self) -> dict[str, Any]:
        """What is said about the data in every results file."""
        info: dict[str, Any] = {
            DATA: self._data,
            "num_train": len(self.train),
            "train_features": _path(self.request.train),
            "test_features": _path(self.request.test),
            "device": self.device,
            "versions": self._versions,
        }
        # For the command that repeats the run, and for the words about it in a paper.
        if options := changed_options(self.request.options):
            info["options"] = options
        if any(self.train.groups or ()):
            info["num_train_groups"] = len(set(self.train.groups or ()) - {""})
        if made := self.request.test.metadata.get("provenance"):
            info["provenance"] = str(made)
        if self.request.split is not None:
            sizes = {"num_train": len(self.train), "num_test": len(self.request.test)}
            info["split"] = asdict(self.request.split) | sizes
        if self.request.val is not None:
            info["num_val"] = len(self.request.val)
            info["val_features"] = _path(self.request.val)
            joined = "joined to the training data" if self.val_joins_train else "not used"
            info["val_use"] = "used to choose hyper-parameters" if self.preset.chooses else joined
        elif self.choices is not None:
            info["chosen_by"] = self.choices.chosen_by
            whole = ", whole groups," if self.choices.groups is not None else ""
            info["val_use"] = (
                f"a fifth of the training set{whole} was held out to choose by (no validation set given)"
                if self.preset.validation == "held-out"
                else f"the training set{whole} was cross-validated to choose by (no validation set given)"
            )
        return info

    def predictions(self, outcome: Outcome, *, episodes: NDArray[np.int64] | None = None) -> Predictions:
        """The outcome of a protocol with the names of the test images."""
        test = self.request.test
        return Predictions(
            probabilities=outcome.probabilities,
            labels=test.labels.numpy(),
            predicted=outcome.predicted,
            classes=self.classes,
            img_names=test.img_names,
            groups=test.groups,
            episodes=episodes,
            info={key: value for key, value in outcome.info.items() if key != "warnings"},
            sites=text_columns(test),
        )


def _path(features: FeatureSet) -> str:
    """The absolute path of a feature file; empty where the features are not from a file."""
    source = str(features.metadata.get("source", ""))
    return str(Path(source).absolute()) if source else ""


def changed_options(options: Options) -> dict[str, str]:
    """The options of a task that are not at their defaults, by flag, as they are written there."""
    return {
        each.flag: ",".join(map(str, value)) if each.is_list else str(value)
        for each in options_of(Options)
        for value in [getattr(options, each.name)]
        if value != each.default
    }


def merged(first: FeatureSet, second: FeatureSet | None) -> FeatureSet:
    """Two feature sets one after the other."""
    if second is None:
        return first
    import torch

    groups = None if first.groups is None or second.groups is None else first.groups + second.groups
    both = [column for column in first.sites if column in second.sites]
    return replace(
        first,
        embeddings=torch.cat([first.embeddings, second.embeddings]),
        labels=torch.cat([first.labels, second.labels]),
        img_names=first.img_names + second.img_names,
        groups=groups,
        sites={column: first.sites[column] + second.sites[column] for column in both},
        target=first.target and second.target and first.target.joined(second.target),
        places=first.places and second.places and first.places.joined(second.places),
    )


def rows_of(features: FeatureSet, rows: NDArray[np.int64]) -> FeatureSet:
    """Some rows of a feature set."""
    return replace(
        features,
        embeddings=features.embeddings[rows],
        labels=features.labels[rows],
        img_names=tuple(features.img_names[row] for row in rows),
        groups=None if features.groups is None else tuple(features.groups[row] for row in rows),
        sites={column: tuple(values[row] for row in rows) for column, values in features.sites.items()},
        target=features.target and features.target.take(rows),
        places=features.places and features.places.take(rows),
    )


# What a task hands over to be written.


@dataclass(frozen=True)
class TaskResult:
    """Predictions of one task at one setting, with their metrics."""

    predictions: Predictions | TargetPredictions
    scores: Mapping[str, Score]
    per_class: Mapping[str, Mapping[str, Score]]
    confusion_matrix: list[list[int]]
    setting: str = ""
    episode_metrics: Mapping[str, NDArray[np.float64]] | None = None
    episodes: EpisodePredictions | None = None
    warnings: tuple[str, ...] = ()  # what to keep in mind when reading the numbers
    notes: tuple[str, ...] = ()  # what was not done, and leaves these numbers as they are
    #: What is odd about the data, where that is not what the context says.
    caveats: tuple[str, ...] | None = None
    attention: TileAttention | None = None

    @classmethod
    def scored(cls, outcome: Outcome, predictions: Predictions, *, setting: str = "") -> TaskResult:
        evaluation = evaluate_predictions(predictions)
        return cls(
            predictions,
            evaluation.scores,
            evaluation.per_class,
            evaluation.confusion_matrix,
            setting,
            warnings=(*outcome.info.get("warnings", ()), *evaluation.notes),
        )

    @classmethod
    def averaged(
        cls,
        predictions: Predictions,
        metrics: Mapping[str, NDArray[np.float64]],
        episodes: EpisodePredictions,
        *,
        setting: str = "",
        warnings: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> TaskResult:
        """A result whose metrics are means over episodes or runs; the rest is of the mean probabilities."""
        whole = evaluate_predictions(predictions)
        scores = {name: _mean(values) for name, values in metrics.items()}
        return cls(
            predictions,
            scores,
            whole.per_class,
            whole.confusion_matrix,
            setting,
            episode_metrics=metrics,
            episodes=episodes,
            warnings=warnings,
            notes=notes,
        )


def _mean(values: NDArray[np.float64]) -> Score:
    defined = values[np.isfinite(values)]
    return Score(float(defined.mean())) if len(defined) else Score(None, "undefined in every episode or run")
