"""Finished episodes of one agent in one arm as arrays over the cases of the study."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.consult.policies import KIND
from histobench.consult.study import Study
from histobench.consult.task import FAMILY, RECORD
from histobench.core.errors import HistobenchError
from histobench.mint.results.stored_episode import EachOnce, StoredEpisode, find_result_files, read_episodes

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
    manipulated: NDArray[np.bool_]  # [n]
    position: Ints  # [n]
    first: Ints  # [r, n]
    final: Ints  # [r, n]
    confidence: Floats  # [r, n]
    deferred: NDArray[np.bool_]  # [r, n]
    asked: NDArray[np.bool_]  # [r, n], for what the tool predicts
    calls: Floats  # [r, n]
    tokens: Floats  # [r, n]; NaN where unknown
    cost: Floats  # [r, n]; NaN where unknown

    def among(self, kept: NDArray[np.bool_]) -> Plays:
        """Some of the cases, by a mask over all cases of the study."""
        here = kept[self.rows]
        values: dict[str, Any] = {
            name: value[..., here] if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }
        return Plays(**values)


#: (agent, arm) -> repeat -> case -> what was played.
Played = dict[tuple[str, str], dict[int, dict[str, StoredEpisode]]]


def read_played(folder: str | Path) -> Played:
    """Every finished episode of Consult below a folder, with the agents' names of the tables."""
    episodes: Played = defaultdict(lambda: defaultdict(dict))
    once = EachOnce()
    for file in find_result_files(folder):
        found = _REPEAT.search(str(file.relative_to(folder) if file != Path(folder) else file.name))
        repeat = int(found[1]) if found else 1
        for episode in once.of(file, read_episodes(file)):
            if episode.cell.family != FAMILY:
                continue
            record = _record(file, episode)
            name = episode.cell.model if episode.cell.model.startswith(f"{KIND}-") else episode.cell.agent
            episodes[name, record["arm"]][repeat][str(episode.task["task_id"])] = episode
    if not episodes:
        raise HistobenchError(f"no episodes of Consult in {folder}; run histobench consult run")
    return dict(sorted(episodes.items()))


def read_plays(study: Study, folder: str | Path) -> dict[tuple[str, str], Plays]:
    """(agent, arm) -> what was played; of several repeats only cases that all of them have finished."""
    return plays_of(study, read_played(folder))


def plays_of(study: Study, played: Played) -> dict[tuple[str, str], Plays]:
    """The same of episodes that have been read."""
    return {
        (agent, arm): _plays(study, agent, arm, list(repeats.values()))
        for (agent, arm), repeats in played.items()
    }


def _record(file: Path, episode: StoredEpisode) -> dict[str, Any]:
    record = (episode.task.get("metadata") or {}).get(RECORD)
    if not isinstance(record, dict):
        raise HistobenchError(f"{file}: an episode without the record of Consult; give the runs of a study")
    return record


def _plays(study: Study, agent: str, arm: str, repeats: Sequence[dict[str, StoredEpisode]]) -> Plays:
    place = {case.id: row for row, case in enumerate(study.cases)}
    strangers = [id for played in repeats for id in played if id not in place]
    if strangers:
        raise HistobenchError(
            f"{agent} in arm {arm} played the case {strangers[0]}, which the study does not have; "
            "was it prepared anew? Give the runs of this study"
        )
    common = set.intersection(*(set(played) for played in repeats))
    ids = sorted(common, key=place.__getitem__)
    code = {name: label for label, name in enumerate(study.facts.classes)}
    cases = [study.by_id[id] for id in ids]
    views = [case.arms.get(arm) for case in cases]
    played = [[_record(study.folder, one[id]) for id in ids] for one in repeats]
    details = [[one[id].details for id in ids] for one in repeats]

    def answers(name: str) -> Ints:
        return np.array(
            [[code.get(_said(record, name, "label"), NO_LABEL) for record in row] for row in played],
            dtype=np.int64,
        ).reshape(len(repeats), len(ids))

    def numbers(rows: list[list[Any]]) -> Floats:
        values = [[np.nan if value is None else float(value) for value in row] for row in rows]
        return np.array(values).reshape(len(repeats), len(ids))

    return Plays(
        agent=agent,
        arm=arm,
        rows=np.array([place[id] for id in ids], dtype=np.int64),
        reference=np.array([code[case.reference] for case in cases], dtype=np.int64),
        tool=np.array([NO_LABEL if view is None else code[view.label] for view in views], dtype=np.int64),
        tool_confidence=np.array([np.nan if view is None else view.confidence for view in views]),
        manipulated=np.array([view is not None and view.manipulated for view in views], dtype=bool),
        position=np.array([0 if view is None else view.position for view in views], dtype=np.int64),
        first=answers("first"),
        final=answers("final"),
        confidence=numbers([[_said(record, "final", "confidence") for record in row] for row in played]),
        deferred=numbers([[bool(_said(record, "final", "defer")) for record in row] for row in played]) > 0,
        asked=numbers([[bool(record["asked"]) for record in row] for row in played]) > 0,
        calls=numbers([[len(record["calls"]) for record in row] for row in played]),
        tokens=numbers([[_tokens(one) for one in row] for row in details]),
        cost=numbers([[one.get("cost") for one in row] for row in details]),
    )


def _said(record: dict[str, Any], answer: str, what: str) -> Any:
    """A part of the first or final answer; None where there is no such answer."""
    return (record[answer] or {}).get(what)


def _tokens(details: dict[str, Any]) -> int | None:
    return details.get("tokens") if details.get("tokens_known", True) else None
