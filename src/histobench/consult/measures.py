"""The measures of the protocol as functions of resampled counts: weighted ratios (Hajek) and what follows.

Repeats of a case are averaged first. A case that was deferred, or not answered, is not correct.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.consult.arms import SEQUENCE_ARMS, case_of
from histobench.consult.study import FAMILY, KIND, RECORD, Study
from histobench.core.errors import HistobenchError
from histobench.mint.results.stored_episode import StoredEpisode, find_result_files, read_files
from histobench.statistics.power import effective_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: The code of an answer that names no class: none was given, it could not be read, or it deferred.
NO_LABEL = -1
_REPEAT = re.compile(r"repeat(\d+)")


@dataclass(frozen=True)
class Plays:
    """`first` and `final` are class ids [r, n], one row for each repeat; `tool` is T [n].

    `rows` are the places of the cases in the study. Confidences are NaN where none was stated.
    """

    agent: str
    arm: str
    rows: Ints  # [n]
    reference: Ints  # [n]
    tool: Ints  # [n], NO_LABEL in the arm without an encoder
    tool_confidence: Floats  # [n]
    sequence: Ints  # [n], the sequence of each episode; -1 in arms without
    position: Ints  # [n], its place in the sequence
    first: Ints  # [r, n]
    final: Ints  # [r, n]
    confidence: Floats  # [r, n]
    deferred: NDArray[np.bool_]  # [r, n]
    asked: NDArray[np.bool_]  # [r, n], for what the tool predicts
    calls: Floats  # [r, n]
    tokens: Floats  # [r, n]; NaN where unknown
    cost: Floats  # [r, n]; NaN where unknown
    episodes: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, dtype=str))
    #: When the first of these episodes began, in seconds since 1970; NaN where unknown.
    started: float = float("nan")

    @property
    def sample(self) -> Ints:
        """What each episode belongs to when units are left out or drawn: its case, or its sequence."""
        return self.sequence if self.arm in SEQUENCE_ARMS else self.rows

    @property
    def keys(self) -> Ints:
        """What episodes of two arms or agents are paired by: the case, or the place in its sequence."""
        return self.sequence * 100_000 + self.position if self.arm in SEQUENCE_ARMS else self.rows

    def take(self, kept: NDArray[np.bool_]) -> Plays:
        values: dict[str, Any] = {
            name: value[..., kept] if isinstance(value, np.ndarray) and value.size else value
            for name, value in vars(self).items()
        }
        return Plays(**values)


#: (agent, arm) -> repeat -> case -> what was played.
Played = dict[tuple[str, str], dict[int, dict[str, StoredEpisode]]]


def read_played(folder: str | Path) -> Played:
    episodes: Played = defaultdict(lambda: defaultdict(dict))
    for episode in read_files(find_result_files(folder)):
        if episode.cell.family != FAMILY:
            continue
        found = _REPEAT.search(os.path.relpath(episode.folder, folder))
        arm = episode.task["metadata"][RECORD]["arm"]
        name = episode.cell.model if episode.cell.model.startswith(f"{KIND}-") else episode.cell.agent
        episodes[name, arm][int(found[1]) if found else 1][str(episode.task["task_id"])] = episode
    if not episodes:
        raise HistobenchError(f"no episodes of Consult in {folder}; run histobench consult run")
    return {key: dict(sorted(repeats.items())) for key, repeats in sorted(episodes.items())}


def read_plays(study: Study, folder: str | Path) -> dict[tuple[str, str], Plays]:
    return plays_of(study, read_played(folder))


def plays_of(study: Study, played: Played) -> dict[tuple[str, str], Plays]:
    return {
        (agent, arm): _plays(study, agent, arm, list(repeats.values()))
        for (agent, arm), repeats in played.items()
    }


def _plays(study: Study, agent: str, arm: str, repeats: Sequence[dict[str, StoredEpisode]]) -> Plays:
    place = {case.id: row for row, case in enumerate(study.cases)}
    strangers = [case_of(id) for played in repeats for id in played if case_of(id) not in place]
    if strangers:
        raise HistobenchError(
            f"{agent} in arm {arm} played the case {strangers[0]}, which the study does not have; "
            "was it prepared anew? Give the runs of this study"
        )
    common = set.intersection(*(set(played) for played in repeats))
    ids = sorted(common) if arm in SEQUENCE_ARMS else sorted(common, key=place.__getitem__)
    code = {name: label for label, name in enumerate(study.facts.classes)}
    cases = [study.by_id[case_of(id)] for id in ids]
    played = [[one[id].task["metadata"][RECORD] for id in ids] for one in repeats]
    views = [case.arms.get(record.get("role", arm)) for case, record in zip(cases, played[0], strict=True)]
    details = [[one[id].details for id in ids] for one in repeats]

    def array(rows: list[list[dict[str, Any]]], read: Callable[[dict[str, Any]], Any]) -> Floats:
        values = [[np.nan if (value := read(each)) is None else float(value) for each in row] for row in rows]
        return np.array(values).reshape(len(repeats), len(ids))

    def answer(record: dict[str, Any], name: str, what: str) -> Any:
        return (record[name] or {}).get(what)

    def labels(name: str) -> Ints:
        return array(played, lambda each: code.get(answer(each, name, "label"), NO_LABEL)).astype(np.int64)

    return Plays(
        agent=agent,
        arm=arm,
        rows=np.array([place[case.id] for case in cases], dtype=np.int64),
        reference=np.array([code[case.reference] for case in cases], dtype=np.int64),
        tool=np.array([NO_LABEL if view is None else code[view.label] for view in views], dtype=np.int64),
        tool_confidence=np.array([np.nan if view is None else view.confidence for view in views]),
        sequence=np.array([record.get("sequence", -1) for record in played[0]], dtype=np.int64),
        position=np.array([record.get("position", 0) for record in played[0]], dtype=np.int64),
        first=labels("first"),
        final=labels("final"),
        confidence=array(played, lambda each: answer(each, "final", "confidence")),
        deferred=array(played, lambda each: bool(answer(each, "final", "defer"))) > 0,
        asked=array(played, lambda each: each["asked"]) > 0,
        calls=array(played, lambda each: len(each["calls"])),
        tokens=array(details, lambda each: each.get("tokens") if each.get("tokens_known", True) else None),
        cost=array(details, lambda each: each.get("cost")),
        episodes=np.array(ids, dtype=str),
        started=min(
            (one["started"] for row in details for one in row if "started" in one), default=float("nan")
        ),
    )


Counts = NDArray[np.int32]  # [b, samples]: cases of the study, or sequences

#: name -> what it is, in the order of tables.
MEASURES: dict[str, str] = {
    "first": "accuracy of the first answer",
    "tool": "accuracy of the tool alone",
    "final": "accuracy of the final answer",
    "balanced": "balanced accuracy of the final answer",
    "over_tool": "final answer minus tool",
    "u_right": "P(final = tool | tool right)",
    "u_wrong": "P(final = tool | tool wrong): over-reliance",
    "discrimination": "J = u_right - u_wrong",
    "asked": "share in which the tool's prediction was asked for",
    "rair": "P(final right | first wrong, tool right)",
    "rsr": "P(final right | first right, tool wrong)",
    "union": "P(tool or first answer right)",
    "closure": "share of the way from the better of both to their union",
    "regret": "the better of tool and first answer minus the final answer",
    "deferred": "share deferred",
    "unanswered": "share without a readable final answer",
    "brier": "Brier score of stated confidences",
    "pass_all": "P(right in every repeat)",
}
#: Measures that are differences -> the ratios whose cases they rest on.
DIFFERENCES: dict[str, tuple[str, ...]] = {
    "over_tool": ("final",),
    "discrimination": ("u_right", "u_wrong"),
    "regret": ("tool", "first", "final"),
}
#: Closure is a ratio: with less room than this between the better of both and their union it says nothing.
LEAST_ROOM = 0.05


def ratio_parts(plays: Plays) -> dict[str, tuple[Floats, Floats]]:
    """For each measure that is a ratio: what it counts and among what, per case [n], repeats averaged."""
    right = plays.final == plays.reference
    first_right = plays.first == plays.reference
    tool_right = np.broadcast_to(plays.tool == plays.reference, right.shape)
    has_tool = np.broadcast_to(plays.tool != NO_LABEL, right.shape)
    tool_wrong = has_tool & ~tool_right
    follows = (plays.final == plays.tool) & has_tool
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
        "rair": (right & ~first_right & tool_right, ~first_right & tool_right),
        "rsr": (right & first_right & tool_wrong, first_right & tool_wrong),
        "union": (tool_right | first_right, everyone),
        "deferred": (plays.deferred, everyone),
        "unanswered": ((plays.final == NO_LABEL) & ~plays.deferred, everyone),
        "brier": (error, stated),
        "pass_all": (np.broadcast_to(right.all(axis=0), right.shape), everyone),
    }
    return {name: (_mean(over), _mean(among)) for name, (over, among) in parts.items()}


class MeasuredRun:
    """All measures of one agent in one arm, on any resample of the study's cases."""

    def __init__(self, plays: Plays, weights: Floats) -> None:
        self.plays = plays
        parts = ratio_parts(plays)
        self._names = list(parts)
        weight = weights[plays.rows]
        self._among = {name: weight * part[1] for name, part in parts.items()}
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
        sums = counts[:, self.plays.sample].astype(np.float64) @ self._columns
        with np.errstate(invalid="ignore", divide="ignore"):
            values = sums[:, 0::2] / sums[:, 1::2]
        split = len(self._names)
        found = dict(zip(self._names, values[:, :split].T, strict=True))
        by_class = values[:, split:]
        known = np.isfinite(by_class)
        found["balanced"] = np.where(known, by_class, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        return found | _derived(found)

    def estimate(self) -> dict[str, float]:
        values = self(np.ones((1, int(self.plays.sample.max(initial=0)) + 1), dtype=np.int32))
        return {name: float(value[0]) for name, value in values.items()}

    def effective(self, measure: str) -> float:
        return min(map(effective_number, self.among(measure)))

    def among(self, measure: str) -> list[Floats]:
        parts = DIFFERENCES.get(measure, (measure if measure in self._among else "final",))
        return [self._among[part] for part in parts]


def _derived(found: Mapping[str, Floats]) -> dict[str, Floats]:
    best = np.maximum(found["tool"], found["first"])
    room = found["union"] - best
    with np.errstate(invalid="ignore", divide="ignore"):
        closure = np.where(room >= LEAST_ROOM, (found["final"] - best) / room, np.nan)
    return {
        "over_tool": found["final"] - found["tool"],
        "discrimination": found["u_right"] - found["u_wrong"],
        "closure": closure,
        "regret": best - found["final"],
    }


def risk_coverage(plays: Plays, weights: Floats) -> tuple[Floats, Floats] | None:
    """Coverage and the risk among what is covered, most confident first; deferred cases come last."""
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
    if (curve := risk_coverage(plays, weights)) is None:
        return None
    return float((curve[1] * np.diff(curve[0], prepend=0.0)).sum())


def calibration_error(plays: Plays, weights: Floats) -> float | None:
    stated = np.isfinite(plays.confidence) & (plays.final != NO_LABEL)
    if not stated.any():
        return None
    weight = np.broadcast_to(weights[plays.rows], plays.final.shape)[stated]
    confidence, right = plays.confidence[stated], (plays.final == plays.reference)[stated]
    place = np.clip(np.ceil(confidence * 10).astype(np.int64) - 1, 0, 9)
    gaps = np.bincount(place, weight * (right - confidence), minlength=10)
    return float(np.abs(gaps).sum() / weight.sum())


def per_correct(plays: Plays, weights: Floats, values: Floats) -> float | None:
    weight = weights[plays.rows]
    right = float((weight * _mean(plays.final == plays.reference)).sum())
    if not right or not np.isfinite(values).all():
        return None
    return float((weight * values.mean(axis=0)).sum() / right)


def _mean(values: NDArray[np.bool_] | Floats) -> Floats:
    return np.asarray(np.mean(values, axis=0, dtype=np.float64))
