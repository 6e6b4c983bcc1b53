"""The independent units of a test set: patients, slides or images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.predictions import Predictions, TargetPredictions
from histobench.statistics.jackknife import FEWEST_DEGREES, freedom_of_sizes
from histobench.statistics.resampling import SamplingDesign, design_for_labels

# The patients or slides of a run's images, and how its test set is drawn again.


def image_groups(predictions: Predictions | TargetPredictions) -> list[str] | None:
    """A group for every image; one without a group stands alone. None where no image has a group."""
    if predictions.groups is None or not any(predictions.groups):
        return None
    return [f"group {group}" if group else f"image {k}" for k, group in enumerate(predictions.groups)]


def design_of(predictions: Predictions) -> SamplingDesign:
    """Whole groups where there are any, otherwise images within classes."""
    return design_for_labels(predictions.labels, image_groups(predictions))


# Paired statistics need the same test images: aligns runs, or says exactly what differs.


def aligned(runs: Mapping[str, Predictions], *, dataset: str = "") -> dict[str, Predictions]:
    """The runs with their images in the order of the first; refused when the images are not the same."""
    # A run that knows the patients comes first: it speaks for runs that do not.
    first = next((name for name, run in runs.items() if run.groups is not None), next(iter(runs)))
    reference = runs[first]
    return {
        name: reference if name == first else _align(first, reference, name, run, dataset)
        for name, run in runs.items()
    }


def _align(
    first: str, reference: Predictions, second: str, predictions: Predictions, dataset: str
) -> Predictions:
    where = f" of {dataset}" if dataset else ""
    refusal = f"cannot compare {first} with {second}: "
    if reference.classes != predictions.classes:
        raise HistobenchError(
            f"{refusal}their class maps differ ({_shown(reference.classes)} and "
            f"{_shown(predictions.classes)}); evaluate both with the same class map"
        )
    advice = "; paired statistics need the same test set, so evaluate both on the same one"
    if reference.img_names != predictions.img_names:
        only_first = set(reference.img_names) - set(predictions.img_names)
        only_second = set(predictions.img_names) - set(reference.img_names)
        if only_first or only_second:
            parts = [
                f"{len(only)} only for {who} (such as {min(only)})"
                for who, only in ((first, only_first), (second, only_second))
                if only
            ]
            raise HistobenchError(
                f"{refusal}they were tested on different images{where}: {len(reference)} and "
                f"{len(predictions)}, {' and '.join(parts)}{advice}"
            )
        predictions = _reordered(reference, predictions, refusal, where)
    if len(reference) != len(predictions):
        raise HistobenchError(f"{refusal}{len(reference)} and {len(predictions)} test images{where}{advice}")
    wrong = np.flatnonzero(reference.labels != predictions.labels)
    if len(wrong):
        k = int(wrong[0])
        image = reference.img_names[k] or f"image {k}"
        raise HistobenchError(
            f"{refusal}the true labels of {len(wrong)} test images{where} differ, such as {image}: "
            f"{_class(reference, k)} and {_class(predictions, k)}{advice}"
        )
    if predictions.groups is not None and reference.groups != predictions.groups:
        raise HistobenchError(
            f"{refusal}the groups (patients or slides) of the test images{where} differ{advice}"
        )
    return replace(predictions, groups=reference.groups)


def _reordered(reference: Predictions, predictions: Predictions, refusal: str, where: str) -> Predictions:
    if len(set(reference.img_names)) < len(reference) or len(reference) != len(predictions):
        raise HistobenchError(
            f"{refusal}image names{where} repeat and their order differs, so images cannot be matched; "
            "give every test image its own name"
        )
    place = {name: k for k, name in enumerate(predictions.img_names)}
    return taken(predictions, np.array([place[name] for name in reference.img_names]))


def taken(predictions: Predictions, order: NDArray[np.int64]) -> Predictions:
    """The predictions of the images at the places `order`."""
    groups, episodes = predictions.groups, predictions.episodes
    return replace(
        predictions,
        probabilities=predictions.probabilities[order],
        labels=predictions.labels[order],
        predicted=predictions.predicted[order],
        img_names=tuple(predictions.img_names[k] for k in order),
        groups=None if groups is None else tuple(groups[k] for k in order),
        episodes=None if episodes is None else episodes[order],
        sites={column: tuple(values[k] for k in order) for column, values in predictions.sites.items()},
    )


def _class(predictions: Predictions, k: int) -> str:
    label = int(predictions.labels[k])
    return predictions.classes[label] if label < len(predictions.classes) else str(label)


def _shown(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:6]) + (f", ... {len(classes)} classes" if len(classes) > 6 else "")


Ints = NDArray[np.int64]

#: Fewer groups than this have no interval; that of a class metric needs some groups of every class.
FEWEST_GROUPS = 5
FEWEST_GROUPS_OF_CLASS = 3
#: An average precision over fewer positive images than this has no interval.
FEWEST_POSITIVES = 5
#: The interval of a loss over groups needs as many mistakes: a loss is made of them, and where there is none,
#: nothing shows what one costs (`benchmarks/studies/statistics_study.py`).
FEWEST_MISTAKES = 2
#: From this many groups on (and half as many of every class) intervals hold what they promise.
ENOUGH_GROUPS = 12


#: What is drawn again, by the kind of a `SamplingDesign`.
RESAMPLED = {
    "plain": "images",
    "stratified": "images within classes",
    "cluster": "groups (patients or slides)",
    "stratified cluster": "groups (patients or slides) within classes",
}


@dataclass(frozen=True)
class SamplingUnits:
    """Labels, and the unit of each image; `group_of` is None where images stand alone."""

    labels: Ints  # [n]
    group_of: Ints | None  # [n], codes from 0 on
    classes: tuple[str, ...]
    n_columns: int  # classes, whether or not they occur
    _freedom: dict[tuple[bool, int | None], float] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of(cls, predictions: Predictions) -> SamplingUnits:
        """Of images that were scored (see `scored`)."""
        codes = _group_codes(predictions)
        return cls(predictions.labels, codes, predictions.classes, predictions.n_columns)

    @classmethod
    def of_target(cls, predictions: TargetPredictions) -> SamplingUnits:
        """Of a target without classes: all images are of one kind."""
        labels = np.zeros(len(predictions), dtype=np.int64)
        return cls(labels, _group_codes(predictions), (predictions.kind,), 1)

    @property
    def unit_of(self) -> Ints:
        """The unit of each image [n]."""
        return np.arange(len(self.labels)) if self.group_of is None else self.group_of

    @cached_property
    def n_units(self) -> int:
        """How many groups, or images where there are none."""
        return int(self.unit_of.max(initial=-1)) + 1

    @property
    def n_groups(self) -> int | None:
        """How many groups; None where images stand alone."""
        return None if self.group_of is None else self.n_units

    @property
    def resampled(self) -> str:
        """What is left out, or drawn again, in words."""
        return RESAMPLED["plain" if self.group_of is None else "cluster"]

    @property
    def word(self) -> str:
        return "images" if self.group_of is None else "groups"

    @cached_property
    def class_sizes(self) -> Ints:
        """Images of each class [c]."""
        return np.bincount(self.labels, minlength=self.n_columns)

    @cached_property
    def units_of_class(self) -> Ints:
        """Units in which each class occurs [c]."""
        occurs = np.zeros((self.n_units, self.n_columns), dtype=bool)
        occurs[self.unit_of, self.labels] = True
        return occurs.sum(axis=0)

    def freedom(self, *, by_class: bool, label: int | None = None) -> float:
        """Degrees of freedom that the sizes of the units allow; `by_class` for means over classes."""
        if (by_class, label) not in self._freedom:
            self._freedom[by_class, label] = self._freedom_of(by_class, label)
        return self._freedom[by_class, label]

    def _freedom_of(self, by_class: bool, label: int | None) -> float:
        if self.group_of is None:
            return self.n_units - 1.0
        if label is not None:
            sizes = np.bincount(self.group_of[self.labels == label])
            return freedom_of_sizes(sizes) if len(sizes) else 0.0
        if not by_class:
            return freedom_of_sizes(np.bincount(self.group_of))
        cells = np.zeros((self.n_columns, self.n_units))
        np.add.at(cells, (self.labels, self.group_of), 1)
        return freedom_of_sizes(*cells[self.class_sizes > 0])

    def too_few(self, *, by_class: bool, label: int | None = None) -> str | None:
        """Why there are too few groups for an interval; `by_class` for metrics that every class enters."""
        if self.group_of is None:
            return None
        if self.n_units < FEWEST_GROUPS:
            return f"too few groups: {self.n_units} (an interval needs {FEWEST_GROUPS})"
        present = np.flatnonzero(self.class_sizes > 0) if label is None else np.array([label])
        if not by_class or len(present) == 0:
            return self._one_holds_most(by_class=False)
        rarest = int(present[self.units_of_class[present].argmin()])
        count = int(self.units_of_class[rarest])
        if count >= FEWEST_GROUPS_OF_CLASS:
            return self._one_holds_most(by_class=True, label=label)
        needed = FEWEST_GROUPS_OF_CLASS
        return f"too few groups of class {self.name(rarest)}: {count} (an interval needs {needed})"

    def _one_holds_most(self, *, by_class: bool, label: int | None = None) -> str | None:
        """Why groups of unequal size show no spread: fewer than two effective degrees of freedom."""
        degrees = self.freedom(by_class=by_class, label=label)
        members = self.unit_of if label is None else self.unit_of[self.labels == label]
        if degrees >= FEWEST_DEGREES or len(members) == 0:
            return None
        share = float(np.bincount(members).max() / len(members))
        return (
            f"one group holds {share:.0%} of the images{'' if label is None else f' of {self.name(label)}'}: "
            f"{degrees:.1f} effective degrees of freedom (an interval needs {FEWEST_DEGREES:g})"
        )

    def absent(self) -> str | None:
        """Which classes have no test image; None where every class has some."""
        names = [name for name, size in zip(self.classes, self.class_sizes, strict=False) if size == 0]
        if not names:
            return None
        words = "class has" if len(names) == 1 else "classes have"
        return f"{len(names)} {words} no test image and do not enter any mean: {', '.join(names)}"

    def caution(self) -> str | None:
        """What to keep in mind about intervals of these units; None where they hold what they promise."""
        return "; ".join(filter(None, [self.absent(), self._few_groups()])) or None

    def _few_groups(self) -> str | None:
        if self.group_of is None or len(self.labels) == 0:
            return None
        present = self.units_of_class[self.class_sizes > 0]
        rarest = int(np.where(self.class_sizes > 0, self.units_of_class, self.n_units + 1).argmin())
        if self.n_units >= ENOUGH_GROUPS and present.min() >= ENOUGH_GROUPS // 2:
            return None
        scarce = self.n_columns > 1 and present.min() < self.n_units
        of_class = f", {int(present.min())} of them with class {self.name(rarest)}" if scarce else ""
        return (
            f"only {self.n_units} groups{of_class}: "
            "intervals from so few are approximate and widened to allow for that"
        )

    def name(self, label: int) -> str:
        """What a class is called."""
        return self.classes[label] if label < len(self.classes) else str(label)


def _group_codes(predictions: Predictions | TargetPredictions) -> Ints | None:
    groups = image_groups(predictions)
    return None if groups is None else np.unique(groups, return_inverse=True)[1].astype(np.int64)


def scored(predictions: Predictions) -> Predictions:
    """The predictions without images that no class was given a probability for."""
    known = ~np.all(np.isnan(predictions.probabilities), axis=1)
    return predictions if known.all() else taken(predictions, np.flatnonzero(known))


# The seed of everything that is drawn, as the statistics verbs are given it.


def check_random_state(random_state: int) -> None:
    """Refuse a seed that no generator takes."""
    if random_state < 0:
        raise HistobenchError(f"`random_state` must not be negative ({random_state})")
