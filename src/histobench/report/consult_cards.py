"""Failure cards: a region that an agent got wrong, what the tool said of it, and how they talked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from histobench.consult.consultation import RECORD
from histobench.consult.measures import NO_LABEL, Plays
from histobench.consult.study import Case, Study
from histobench.consult.tool_text import read_neighbours, read_percentile
from histobench.core.errors import HistobenchError
from histobench.report.agent_payload import talk_payload
from histobench.report.agent_runs import conversation
from histobench.report.payload import rounded
from histobench.report.talk_pictures import TalkPictures
from histobench.report.thumbnails import Cache, thumbnail

if TYPE_CHECKING:
    from histobench.report.consult_payload import PlayedStudy

#: Cards of one kind, agent and arm; those of which the agent was surest.
MOST_CARDS = 12
SHOWN_NEIGHBOURS = 5
SIDE = 256
#: Kinds of failures, worst first.
KINDS = ("followed", "left", "own", "deferred", "unanswered")


class CardPictures:
    """Small pictures of cases and neighbours, each written once; none where the images are not at hand."""

    def __init__(self, site: Path, study: Study, folder: str, cache: Cache) -> None:
        self._site, self._folder, self._cache = site, folder, cache
        self._known: dict[str, str] = {}
        try:
            self._paths = study.pictures()
        except HistobenchError:  # a study may be shared without its pictures
            self._paths = {}

    def address(self, image: str) -> str:
        """The address of a picture by its content hash; empty where it cannot be read."""
        if image not in self._known:
            self._known[image] = self._write(image)
        return self._known[image]

    def _write(self, image: str) -> str:
        path = self._paths.get(image)
        content = None if path is None else thumbnail(path, self._cache, side=SIDE)
        if content is None:
            return ""
        place = f"thumbs/{self._folder}/{len(self._known)}.webp"
        (self._site / place).parent.mkdir(parents=True, exist_ok=True)
        (self._site / place).write_bytes(content)
        return place


def failure_kinds(plays: Plays) -> list[str]:
    """For each case the kind of failure in the first repeat; empty where the final answer is right."""
    final, tool, reference = plays.final[0], plays.tool, plays.reference
    kinds = np.full(len(final), "own", dtype=object)
    kinds[(final == tool) & (tool != NO_LABEL)] = "followed"
    kinds[(tool == reference) & (final != tool)] = "left"
    kinds[final == NO_LABEL] = "unanswered"
    kinds[plays.deferred[0]] = "deferred"
    kinds[final == reference] = ""
    return [str(kind) for kind in kinds]


def failure_cards(
    played: PlayedStudy, agent: str, arm: str, pictures: CardPictures, talk: TalkPictures
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The cards of an agent in an arm, and how many failures of each kind there are."""
    plays = played.findings.plays[agent, arm]
    kinds = failure_kinds(plays)
    confidence = np.nan_to_num(plays.confidence[0], nan=-1.0)
    rows = sorted(
        (row for row, kind in enumerate(kinds) if kind),
        key=lambda row: (KINDS.index(kinds[row]), -confidence[row], row),
    )
    seen: dict[str, int] = {}
    cards = []
    for row in rows:
        seen[kinds[row]] = seen.get(kinds[row], 0) + 1
        if seen[kinds[row]] <= MOST_CARDS:
            case = played.study.cases[plays.rows[row]]
            cards.append(_card(played, plays, row, case, kinds[row], pictures, talk))
    return cards, seen


def _card(
    played: PlayedStudy,
    plays: Plays,
    row: int,
    case: Case,
    kind: str,
    pictures: CardPictures,
    talk: TalkPictures,
) -> dict[str, Any]:
    names = played.study.facts.classes

    def label(code: int) -> str | None:
        return None if code == NO_LABEL else names[code]

    repeats = played.episodes[plays.agent, plays.arm]
    episode = next(iter(repeats.values()))[plays.episodes[row]]
    arm = str(episode.task["metadata"][RECORD].get("role", plays.arm))
    view = case.arms.get(arm)
    content: dict[str, Any] = {
        "kind": kind,
        "id": case.id[:12],
        "group": case.group,
        "picture": pictures.address(case.id),
        "reference": case.reference,
        "first": label(plays.first[0, row]),
        "final": label(plays.final[0, row]),
        "confidence": rounded(float(plays.confidence[0, row])),
        "tool": None,
        "talk": talk_payload(conversation(episode), talk),
    }
    if view is not None:
        recorded = {"image": case.id, "encoder": view.encoder, "arm": arm}
        cassette = played.study.cassette
        told = cassette.answer(
            "neighbours", {"k": min(SHOWN_NEIGHBOURS, played.study.facts.most_neighbours)}, **recorded
        )
        content["tool"] = {
            "label": view.label,
            "confidence": rounded(view.confidence),
            "manipulated": view.manipulated,
            "says": cassette.answer("predict", {"n": min(3, len(names))}, **recorded),
            "neighbours": [[near.label, pictures.address(near.image)] for near in read_neighbours(told)],
            "percentile": read_percentile(told),
        }
    return content
