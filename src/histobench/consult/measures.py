"""The measures of the protocol as functions of resampled counts: weighted ratios (Hajek) and what follows.

Repeats of a case are averaged first. A case that was deferred, or not answered, is not correct.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from histobench.consult.plays import NO_LABEL, Plays

Floats = NDArray[np.float64]
Counts = NDArray[np.int32]  # [b, N], over all cases of the study
Bools = NDArray[np.bool_]

#: name -> what it is, in the order of tables.
MEASURES: dict[str, str] = {
    "first": "accuracy of the first answer",
    "tool": "accuracy of the tool alone",
    "final": "accuracy of the final answer",
    "balanced": "balanced accuracy of the final answer",
    "over_tool": "final answer minus tool",
    "u_right": "P(final = tool | tool right)",
    "u_wrong": "P(final = tool | tool wrong): over-reliance",
    "discrimination": "u_right - u_wrong",
    "under_reliance": "1 - u_right",
    "asked": "share in which the tool's prediction was asked for",
    "accept": "P(final = tool | first answer differs)",
    "rair": "P(final right | first wrong, tool right)",
    "rsr": "P(final right | first right, tool wrong)",
    "union": "P(tool or first answer right)",
    "closure": "share of the way from the better of both to their union",
    "mis_reliance": "best fixed acceptance rate minus the agent",
    "regret_always": "tool minus final answer",
    "regret_never": "first minus final answer",
    "deferred": "share deferred",
    "unanswered": "share without a readable final answer",
    "brier": "Brier score of stated confidences",
    "pass_all": "P(right in every repeat)",
}


def ratio_parts(plays: Plays) -> dict[str, tuple[Floats, Floats]]:
    """For each measure that is a ratio: what it counts and among what, per case [n], repeats averaged."""
    right = plays.final == plays.reference
    first_right = plays.first == plays.reference
    tool_right = np.broadcast_to(plays.tool == plays.reference, right.shape)
    has_tool = np.broadcast_to(plays.tool != NO_LABEL, right.shape)
    tool_wrong = has_tool & ~tool_right
    follows = (plays.final == plays.tool) & has_tool
    differs = has_tool & (plays.first != plays.tool)
    stated = np.isfinite(plays.confidence) & (plays.final != NO_LABEL)
    error = np.where(stated, (np.nan_to_num(plays.confidence) - right) ** 2, 0.0)
    everyone = np.ones_like(right)
    parts = {
        "first": (first_right, everyone),
        "tool": (tool_right, has_tool),
        "final": (right, everyone),
        "u_right": (follows & tool_right, tool_right),
        "u_wrong": (follows & tool_wrong, tool_wrong),
        "asked": (plays.asked & has_tool, has_tool),
        "accept": (follows & differs, differs),
        "rair": (right & ~first_right & tool_right, ~first_right & tool_right),
        "rsr": (right & first_right & tool_wrong, first_right & tool_wrong),
        "union": (tool_right | first_right, everyone),
        "deferred": (plays.deferred, everyone),
        "unanswered": ((plays.final == NO_LABEL) & ~plays.deferred, everyone),
        "brier": (error, stated),
        "pass_all": (np.broadcast_to(right.all(axis=0), right.shape), everyone),
    }
    return {name: (_mean(over), _mean(among)) for name, (over, among) in parts.items()}


class Evaluation:
    """All measures of one agent in one arm, on any resample of the study's cases."""

    def __init__(self, plays: Plays, weights: Floats) -> None:
        self.plays = plays
        parts = ratio_parts(plays)
        self._names = list(parts)
        weight = weights[plays.rows]
        columns = [weight * part for name in self._names for part in parts[name]]
        classes = np.unique(plays.reference)
        right = _mean(plays.final == plays.reference)
        for label in classes:
            here = plays.reference == label
            columns += [weight * right * here, weight * here]
        self._columns = np.stack(columns, axis=1)  # [n, 2 m]
        self._n_classes = len(classes)

    def __call__(self, counts: Counts) -> Mapping[str, Floats]:
        """Measure -> its value on each resample [b]; NaN where there is nothing to count among."""
        sums = counts[:, self.plays.rows].astype(np.float64) @ self._columns
        with np.errstate(invalid="ignore", divide="ignore"):
            values = sums[:, 0::2] / sums[:, 1::2]
        split = len(self._names)
        found = dict(zip(self._names, values[:, :split].T, strict=True))
        by_class = values[:, split:]
        known = np.isfinite(by_class)
        found["balanced"] = np.where(known, by_class, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        return found | _derived(found)

    def estimate(self, n_cases: int) -> dict[str, float]:
        """The values on the cases as they are."""
        values = self(np.ones((1, n_cases), dtype=np.int32))
        return {name: float(value[0]) for name, value in values.items()}


def _derived(found: Mapping[str, Floats]) -> dict[str, Floats]:
    best = np.maximum(found["tool"], found["first"])
    room = found["union"] - best
    with np.errstate(invalid="ignore", divide="ignore"):
        closure = np.where(room > 1e-12, (found["final"] - best) / room, np.nan)
    return {
        "over_tool": found["final"] - found["tool"],
        "discrimination": found["u_right"] - found["u_wrong"],
        "under_reliance": 1 - found["u_right"],
        "closure": closure,
        "mis_reliance": best - found["final"],
        "regret_always": found["tool"] - found["final"],
        "regret_never": found["first"] - found["final"],
    }


def risk_coverage(plays: Plays, weights: Floats) -> tuple[Floats, Floats] | None:
    """Coverage and the risk among what is covered, most confident first; deferred cases come last.

    Ties are covered together. None where no confidence was stated.
    """
    weight = np.tile(weights[plays.rows], len(plays.final))
    wrong = (plays.final != plays.reference).ravel()
    confidence = plays.confidence.ravel().copy()
    if not np.isfinite(confidence).any():
        return None
    confidence[~np.isfinite(confidence) | (plays.final == NO_LABEL).ravel()] = -1
    levels, place = np.unique(-confidence, return_inverse=True)
    covered = np.cumsum(np.bincount(place, weight, minlength=len(levels)))
    risk = np.cumsum(np.bincount(place, weight * wrong, minlength=len(levels))) / covered
    return covered / covered[-1], risk


def area_under_risk_coverage(plays: Plays, weights: Floats) -> float | None:
    """The mean risk over all coverages. Less is better. None where no confidence was stated."""
    curve = risk_coverage(plays, weights)
    if curve is None:
        return None
    coverage, risk = curve
    return float((risk * np.diff(coverage, prepend=0.0)).sum())


def calibration_error(plays: Plays, weights: Floats, *, bins: int = 10) -> float | None:
    """Weighted expected calibration error of stated confidences in bins of equal width."""
    stated = np.isfinite(plays.confidence) & (plays.final != NO_LABEL)
    if not stated.any():
        return None
    weight = np.broadcast_to(weights[plays.rows], plays.final.shape)[stated]
    confidence, right = plays.confidence[stated], (plays.final == plays.reference)[stated]
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(place, weight * (right - confidence), minlength=bins)
    return float(np.abs(gaps).sum() / weight.sum())


def swap_noticed(plays: Plays, weights: Floats) -> float | None:
    """AUC of low confidence against the hidden flag; None where all or none of the cases have it."""
    stated = np.isfinite(plays.confidence)
    confidence = plays.confidence[stated]
    flag = np.broadcast_to(plays.manipulated, plays.final.shape)[stated]
    weight = np.broadcast_to(weights[plays.rows], plays.final.shape)[stated]
    if not flag.any() or flag.all():
        return None
    lower = np.sign(confidence[~flag][None, :] - confidence[flag][:, None]) / 2 + 0.5
    return float(weight[flag] @ lower @ weight[~flag] / (weight[flag].sum() * weight[~flag].sum()))


def per_correct(plays: Plays, weights: Floats, values: Floats) -> float | None:
    """The weighted mean of what an episode takes for each right answer; None where that is unknown."""
    weight = weights[plays.rows]
    right = float((weight * _mean(plays.final == plays.reference)).sum())
    if not right or not np.isfinite(values).all():
        return None
    return float((weight * values.mean(axis=0)).sum() / right)


def _mean(values: Bools | Floats) -> Floats:
    mean: Floats = np.asarray(values, dtype=np.float64).mean(axis=0)
    return mean
