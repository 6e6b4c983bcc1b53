"""The independent units of a test set: patients, slides or images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.predictions import Predictions, TargetPredictions
from histobench.statistics.jackknife import FEWEST_DEGREES, Ints, freedom_of_sizes

AnyPredictions = TypeVar("AnyPredictions", Predictions, TargetPredictions)


def image_groups(predictions: Predictions | TargetPredictions) -> list[str] | None:
    """A group for every image; one without a group stands alone. None where no image has a group."""
    if predictions.groups is None or not any(predictions.groups):
        return None
    return [f"group {group}" if group else f"image {k}" for k, group in enumerate(predictions.groups)]


def aligned(runs: Mapping[str, AnyPredictions], *, dataset: str = "") -> dict[str, AnyPredictions]:
    """The runs with their rows in the order of the first; refused where the test sets are not the same."""
    # A run that knows the patients comes first: it speaks for runs that do not.
    first = next((name for name, run in runs.items() if run.groups is not None), next(iter(runs)))
    where = f" of {dataset}" if dataset else ""
    return {
        name: run if name == first else _align(runs[first], run, (first, name), where)
        for name, run in runs.items()
    }


def _align(
    reference: AnyPredictions, run: AnyPredictions, who: tuple[str, str], where: str
) -> AnyPredictions:
    def refused(why: str) -> HistobenchError:
        message = f"cannot compare {who[0]} with {who[1]}: {why}; evaluate both on the same test set"
        return HistobenchError(message)

    (classes, truth), (others, _) = _known(reference), _known(run)
    if classes != others:
        raise refused(f"their class maps differ ({_shown(classes)} and {_shown(others)})")
    names = reference.img_names
    only = [set(names) - set(run.img_names), set(run.img_names) - set(names)]
    if any(only) or len(reference) != len(run):
        counts = f"{len(reference)} and {len(run)}"
        more = " and ".join(
            f"{len(some)} only for {name} (such as {min(some)})"
            for name, some in zip(who, only, strict=True)
            if some
        )
        raise refused(f"they were tested on different images{where}: {counts}{more and f', {more}'}")
    if names != run.img_names:
        place = {name: k for k, name in enumerate(run.img_names)}
        if len(place) < len(names):
            raise refused(f"image names{where} repeat and their order differs; give every image its own name")
        run = taken(run, np.array([place[name] for name in names]))
    wrong = np.flatnonzero((truth != _known(run)[1]).any(axis=1))
    if len(wrong):
        k = int(wrong[0])
        raise refused(
            f"the true labels of {len(wrong)} test images{where} differ, such as {names[k] or f'image {k}'}: "
            f"{_value(reference, k)} and {_value(run, k)}"
        )
    if run.groups is not None and reference.groups != run.groups:
        raise refused(f"the groups (patients or slides) of the test images{where} differ")
    return replace(run, groups=reference.groups)


def _known(run: Predictions | TargetPredictions) -> tuple[tuple[str, ...], NDArray[Any]]:
    """What the classes or columns of the truth are called, and the truth [n, columns]."""
    return (run.classes, run.labels[:, None]) if isinstance(run, Predictions) else (run.columns, run.truth)


def _value(run: Predictions | TargetPredictions, k: int) -> str:
    if isinstance(run, TargetPredictions):
        return ", ".join(f"{value:g}" for value in run.truth[k])
    label = int(run.labels[k])
    return run.classes[label] if label < len(run.classes) else str(label)


def _shown(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:6]) + (f", ... {len(classes)} classes" if len(classes) > 6 else "")


#: What has an entry for each row.
_BY_ROW = ("probabilities", "labels", "truth", "predicted", "img_names", "groups", "episodes", "weights")


def taken(predictions: AnyPredictions, order: Ints) -> AnyPredictions:
    def part(values: Any) -> Any:
        return tuple(values[k] for k in order) if isinstance(values, tuple) else values[order]

    by_row = {name: getattr(predictions, name, None) for name in _BY_ROW}
    return replace(
        predictions,
        sites={column: part(values) for column, values in predictions.sites.items()},
        **{name: part(values) for name, values in by_row.items() if values is not None},
    )


#: Fewer groups than this have no interval; that of a class metric needs some groups of every class.
FEWEST_GROUPS = 5
FEWEST_GROUPS_OF_CLASS = 3
#: An average precision over fewer positive images than this has no interval.
FEWEST_POSITIVES = 5
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

    @classmethod
    def of(cls, predictions: Predictions) -> SamplingUnits:
        return cls(predictions.labels, _group_codes(predictions), predictions.classes, predictions.n_columns)

    @classmethod
    def of_target(cls, predictions: TargetPredictions) -> SamplingUnits:
        """Of a target without classes: all images are of one kind."""
        labels = np.zeros(len(predictions), dtype=np.int64)
        return cls(labels, _group_codes(predictions), (predictions.kind,), 1)

    @property
    def unit_of(self) -> Ints:
        return np.arange(len(self.labels)) if self.group_of is None else self.group_of

    @cached_property
    def n_units(self) -> int:
        return int(self.unit_of.max(initial=-1)) + 1

    @property
    def n_groups(self) -> int | None:
        return None if self.group_of is None else self.n_units

    @property
    def resampled(self) -> str:
        return RESAMPLED["plain" if self.group_of is None else "cluster"]

    @property
    def word(self) -> str:
        return "images" if self.group_of is None else "groups"

    @cached_property
    def class_sizes(self) -> Ints:
        return np.bincount(self.labels, minlength=self.n_columns)

    @cached_property
    def units_of_class(self) -> Ints:
        occurs = np.zeros((self.n_units, self.n_columns), dtype=bool)
        occurs[self.unit_of, self.labels] = True
        return occurs.sum(axis=0)

    def freedom(self, *, by_class: bool, label: int | None = None) -> float:
        """Degrees of freedom that the sizes of the units allow; `by_class` for means over classes."""
        if self.group_of is None:
            return self.n_units - 1.0
        if label is not None:
            sizes = np.bincount(self.group_of[self.labels == label])
            return freedom_of_sizes(sizes) if len(sizes) else 0.0
        if not by_class:
            return freedom_of_sizes(np.bincount(self.group_of))
        c, u = self.n_columns, self.n_units
        cells = np.bincount(self.labels * u + self.group_of, minlength=c * u).reshape(c, u)
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
        return self.classes[label] if label < len(self.classes) else str(label)


def _group_codes(predictions: Predictions | TargetPredictions) -> Ints | None:
    groups = image_groups(predictions)
    return None if groups is None else np.unique(groups, return_inverse=True)[1].astype(np.int64)


def scored(predictions: Predictions) -> Predictions:
    """The predictions without images that no class was given a probability for."""
    known = ~np.all(np.isnan(predictions.probabilities), axis=1)
    return predictions if known.all() else taken(predictions, np.flatnonzero(known))
