"""How far a metric moves by mistakes that the test set did not show: the second part of every interval.

Labels of a bunch of images turn, a bunch of one side is ranked like its worst image, or has the worst loss. A
bunch is one image, and more where images come in groups (`statistics.jackknife.bunches`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from histobench.roi.comparison.sampling_units import SamplingUnits
from histobench.roi.metrics.formulas import PerImage, label_metrics_of
from histobench.roi.metrics.metric_catalogue import metric_of
from histobench.roi.predictions import Predictions, TargetPredictions
from histobench.statistics.jackknife import (
    TURNING_PART,
    UNSEEN_BUNCHES,
    Floats,
    Ints,
    LeaveOneOut,
    bunch,
    turning,
)

#: An image of an unseen bunch ranks this many standard deviations of its side down, or as the worst seen.
_UNLIKE = 2.0
#: Where every pair was ranked right it still ranks this many images down, of the geometric mean of the sides.
_UNSEEN_RANK = 1.0
#: The correlation of unseen ranks within a unit.
_RANKS_ALIKE = 0.1
#: An area compares pairs: it may be known as well as a share of so many times as many images.
PAIRS_WORTH = 3.0


def parts_of(metric: str) -> tuple[str, int | None]:
    """The name of a metric and the class that it is of: `recall@2` is the recall of class 2."""
    name, _, text = metric.partition("@")
    return name, int(text) if text else None


@dataclass(frozen=True, eq=False)
class UnseenMoves:
    """The unseen moves of these runs (a column each) on these units."""

    runs: Sequence[Predictions]
    units: SamplingUnits
    _areas: dict[tuple[int, str], Floats] = field(default_factory=dict, init=False)

    def of(self, metric: str, found: LeaveOneOut) -> LeaveOneOut:
        """The columns of a metric with their unseen moves, and what the units are worth."""
        units = self.units
        name, label = parts_of(metric)
        facts = metric_of(name)
        moved, pairs = None, 1.0
        among = list(range(units.n_columns)) if label is None else [label]  # classes whose images count
        if facts.kind == "labels":
            unseen = self._label_moves(name, label)
        elif facts.kind in ("auroc", "auprc"):
            columns = [1] if label is None and units.n_columns == 2 else among
            unseen = np.concatenate([self._area_moves(k, facts.kind) for k in columns]) / len(columns)
            moved, pairs = after_moves(found, unseen), PAIRS_WORTH
            among = among if facts.kind == "auroc" else columns
        else:
            unseen = self._loss_moves(name) if facts.kind == "loss" else np.zeros((1, len(self.runs)))
        # With two classes every area is that of class 1, whatever it is called.
        by_size = facts.by_size and not (units.n_columns == 2 and facts.kind in ("auroc", "auprc"))
        freedom = units.freedom(by_class=not by_size, label=label)
        size = pairs * max(int(units.class_sizes[among].sum()), 1)
        grouped = units.group_of is not None
        return replace(found, unseen=unseen, size=size, freedom=freedom, grouped=grouped, moved=moved)

    def _label_moves(self, name: str, label: int | None) -> Floats:
        """Moves [classes, m]; where the metric is a share of all images, they are one class."""
        if label is None and metric_of(name).share:
            return self._turned(slice(None))[None] / len(self._wrong)
        c, m = self.units.n_columns, len(self.runs)
        after = _label_values(name, label, self._moved_confusions.reshape(-1, c, c)).reshape(-1, m)
        return np.nan_to_num(after - _label_values(name, label, self._confusions))

    @cached_property
    def _wrong(self) -> NDArray[np.bool_]:
        return np.stack([run.predicted != run.labels for run in self.runs], axis=1)

    @cached_property
    def _confusions(self) -> Floats:
        return np.stack([confusion_of(run, self.units.n_columns) for run in self.runs]).astype(np.float64)

    @cached_property
    def _moved_confusions(self) -> Floats:
        """The confusion matrices [classes, m, c, c] after a bunch of each class has turned."""
        c, confusions = self.units.n_columns, self._confusions
        changed = np.repeat(confusions[None], len(self._turned_by_class), axis=0)
        for place, (k, turned) in enumerate(self._turned_by_class.items()):
            others = (np.arange(c) != k) & (self.units.class_sizes > 0)
            mistaken = confusions[:, k] * (np.arange(c) != k) + others / max(others.sum(), 1)
            mistaken *= turned[:, None] / np.maximum(mistaken.sum(axis=1, keepdims=True), 1e-9)
            changed[place, :, k] -= mistaken
            changed[place, :, k, k] += turned
        return changed

    @cached_property
    def _turned_by_class(self) -> dict[int, Floats]:
        present = np.flatnonzero(self.units.class_sizes).tolist()
        return {k: self._turned(np.flatnonzero(self.units.labels == k)) for k in present}

    def _turned(self, rows: Ints | slice) -> Floats:
        """How many of these images turn right [m], or wrong."""
        wrong, unit_of = self._wrong[rows], self.units.unit_of[rows]
        if self.units.group_of is None:
            errors = wrong.sum(axis=0, dtype=np.float64)
            return turning(errors[None], np.array([float(len(wrong))]), size=np.ones(wrong.shape[1]))
        by_unit = np.stack([np.bincount(unit_of, column.astype(np.float64)) for column in wrong.T], axis=1)
        return turning(by_unit.astype(np.float64), np.bincount(unit_of).astype(np.float64))

    def _area_moves(self, k: int, kind: str) -> Floats:
        if (k, kind) not in self._areas:
            scores = [np.nan_to_num(run.probabilities[:, [k]], nan=-1.0) for run in self.runs]
            truth = self.units.labels[:, None] == k
            self._areas[k, kind] = area_moves(truth, scores, self.units.unit_of, precision=kind == "auprc")
        return self._areas[k, kind]

    def _loss_moves(self, name: str) -> Floats:
        worst = []
        for run in self.runs:
            each = PerImage.of(np.nan_to_num(run.probabilities), run.labels, run.predicted)
            loss = each.log_loss if name == "log_loss" else each.squared_error
            worst.append(float(loss.max()) / (2 if name == "brier" and self.units.n_columns == 2 else 1))
        return np.array([worst]) * bunch(np.bincount(self.units.unit_of)) / len(self.units.labels)


def confusion_of(predictions: Predictions, c: int) -> NDArray[np.int64]:
    return np.bincount(predictions.labels * c + predictions.predicted, minlength=c * c).reshape(c, c)


def _label_values(name: str, label: int | None, confusions: Floats) -> Floats:
    if label is None:
        return label_metrics_of(confusions, [name])[name]
    hits, support, predicted = (
        confusions[:, label, label], confusions[:, label].sum(axis=1), confusions[:, :, label].sum(axis=1)
    )  # fmt: skip
    over, among = {
        "recall": (hits, support),
        "precision": (hits, predicted),
        "f1_score": (2 * hits, support + predicted),
    }[name]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(over / among)


def area_moves(
    truth: NDArray[np.bool_], scores: Sequence[Floats], unit_of: Ints, *, precision: bool = False
) -> Floats:
    """Moves [problems, m] of the mean area over problems: truth [n, problems], scores [n, problems] each.

    `precision`: of average precision, where a bunch of the others at the top costs every positive below.
    """
    problems = truth.shape[1]
    moves = np.zeros((problems, len(scores)))
    for p in range(problems):
        sides = truth[:, p], ~truth[:, p]
        sizes = [int(side.sum()) for side in sides]
        if min(sizes) == 0:
            continue
        share = [
            TURNING_PART * bunch(np.bincount(unit_of[side]), _RANKS_ALIKE) / size
            for side, size in zip(sides, sizes, strict=True)
        ]
        for m, score in enumerate(scores):
            column = score[:, p]
            positive, negative = column[sides[0]], column[sides[1]]
            unlike = _UNLIKE * _rank_spread(positive, negative)
            for place, (own, other) in enumerate(((positive, negative), (-negative, -positive))):
                worst = own.min()
                beaten = float((other > worst).mean() + (other == worst).mean() / 2)
                rank = min(max(beaten, unlike, _UNSEEN_RANK / (len(own) * len(other)) ** 0.5), 1.0)
                if precision and place == 1:
                    rank = min(rank * np.log(1 + sizes[0]) * sizes[1] / sizes[0], sizes[0])
                moves[p, m] -= min(share[place] * rank, 0.5) / problems
    return moves / UNSEEN_BUNCHES**0.5  # one bunch of either side


def after_moves(found: LeaveOneOut, unseen: Floats) -> Floats:
    return np.asarray(found.values + UNSEEN_BUNCHES**0.5 * unseen.sum(axis=0))


def _rank_spread(positive: Floats, negative: Floats) -> float:
    """The standard deviation of a positive's rank among the negatives at such an area (Hanley and McNeil)."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive).mean() / len(ordered)
    upto = np.searchsorted(ordered, positive, "right").mean() / len(ordered)
    area = max((below + upto) / 2, 1 - (below + upto) / 2)
    return float(max(2 * area**2 / (1 + area) - area**2, 0.0) ** 0.5)


def with_target_moves(
    metric: str, found: LeaveOneOut, runs: Sequence[TargetPredictions], units: SamplingUnits
) -> LeaveOneOut:
    """The columns of runs of a target that is not a class: a unit as bad as the worst one was not seen."""
    name, label = parts_of(metric)
    if runs[0].kind == "multilabel":
        columns = slice(None) if label is None else slice(label, label + 1)
        truth = runs[0].truth[:, columns] > 0
        both = truth.any(axis=0) & ~truth.all(axis=0)
        scores = [run.predicted[:, columns][:, both] for run in runs]
        precision = metric_of(name).kind == "auprc" or name.endswith("_ap")
        moves = area_moves(truth[:, both], scores, units.unit_of, precision=precision)
        size = PAIRS_WORTH * (float(truth[:, both].sum()) if precision else found.size)
        return replace(found, unseen=moves, size=max(size, 1.0), moved=after_moves(found, moves))
    worst = np.abs(found.influences).max(axis=0)[None] / UNSEEN_BUNCHES**0.5
    least = bunch(np.bincount(units.unit_of)) / len(units.labels)
    sign = 1.0 if metric_of(name).lower_is_better else -1.0
    return replace(found, unseen=np.asarray(sign * np.where(worst > 0, worst, least)))
