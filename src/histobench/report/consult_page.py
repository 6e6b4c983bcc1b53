"""The data of the Consult page: agents against their tool in every arm, trust, curves and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from histobench.consult.arms import ARMS
from histobench.consult.findings import Contrast, Estimate, Line, SequenceFindings, StudyFindings
from histobench.consult.measures import NO_LABEL, Played, Plays, plays_of, read_played, risk_coverage
from histobench.consult.study import RECORD, RUNS, STUDY, Study, open_study
from histobench.consult.tool_text import read_neighbours, read_percentile
from histobench.core.errors import HistobenchError, error_text
from histobench.report.agents import talk_payload, talk_pictures
from histobench.report.inventory import without_folder
from histobench.report.payload import facts_of, rounded, write_payload
from histobench.report.thumbnails import Cache, Pictures

#: Failure cards of one kind, agent and arm; those of which the agent was surest.
MOST_CARDS = 12
SHOWN_NEIGHBOURS = 5
SIDE = 256
#: Kinds of failures, worst first.
KINDS = ("followed", "left", "own", "deferred", "unanswered")


def _card_pictures(site: Path, study: Study, folder: str, cache: Cache) -> Pictures:
    """Small pictures of cases and neighbors by their content hashes."""
    try:
        paths = study.pictures()
    except (HistobenchError, OSError):  # a study may be shared without its pictures
        paths = {}
    return Pictures(site, folder, cache, paths.get, side=SIDE)


def failure_kinds(plays: Plays) -> list[str]:
    """For each case the kind of failure in the first repeat; empty where the final answer is right."""
    final, tool, reference = plays.final[0], plays.tool, plays.reference
    which = [final == reference, plays.deferred[0], final == NO_LABEL, tool == reference, final == tool]
    return list(map(str, np.select(which, ["", "deferred", "unanswered", "left", "followed"], "own")))


def failure_cards(
    played: PlayedStudy, agent: str, arm: str, pictures: Pictures, talk: Pictures
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    plays = played.findings.plays[agent, arm]
    kinds = failure_kinds(plays)
    confidence = np.nan_to_num(plays.confidence[0], nan=-1.0)
    rows = sorted(
        (row for row, kind in enumerate(kinds) if kind),
        key=lambda row: (KINDS.index(kinds[row]), -confidence[row], row),
    )
    cards, seen = [], Counter[str]()
    for row in rows:
        seen[kinds[row]] += 1
        if seen[kinds[row]] <= MOST_CARDS:
            cards.append(_card(played, plays, row, kinds[row], pictures, talk))
    return cards, dict(seen)


def _card(
    played: PlayedStudy, plays: Plays, row: int, kind: str, pictures: Pictures, talk: Pictures
) -> dict[str, Any]:
    case, names = played.study.cases[plays.rows[row]], played.study.facts.classes

    def label(code: int) -> str | None:
        return None if code == NO_LABEL else names[code]

    episode = next(iter(played.episodes[plays.agent, plays.arm].values()))[plays.episodes[row]]
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
        "talk": talk_payload(episode, talk),
    }
    if view is not None:
        recorded = {"image": case.id, "encoder": view.encoder, "arm": arm}
        cassette = played.study.cassette
        reply = cassette.answer(
            "neighbours", {"k": min(SHOWN_NEIGHBOURS, played.study.facts.most_neighbours)}, **recorded
        )
        content["tool"] = {
            "label": view.label,
            "confidence": rounded(view.confidence),
            "manipulated": view.manipulated,
            "says": cassette.answer("predict", {"n": min(3, len(names))}, **recorded),
            "neighbours": [[near.label, pictures.address(near.image)] for near in read_neighbours(reply)],
            "percentile": read_percentile(reply),
        }
    return content


#: Points of a curve that are kept: more than a screen shows.
_MOST_POINTS = 200


@dataclass(frozen=True)
class PlayedStudy:
    """A study with episodes; `name` tells it from the others of a folder."""

    name: str
    study: Study
    episodes: Played
    findings: StudyFindings


def find_studies(results_dir: Path) -> tuple[list[PlayedStudy], list[str]]:
    """Every study below a folder that agents have played, and what cannot be read."""
    found: list[PlayedStudy] = []
    problems: list[str] = []
    for path in sorted(results_dir.rglob(STUDY)):
        if not (path.parent / RUNS).is_dir():
            continue
        try:
            study = open_study(path.parent)
            episodes = read_played(study.folder / RUNS)
            findings = StudyFindings(study, plays_of(study, episodes))
        except (HistobenchError, OSError) as error:
            problems.append(without_folder(error_text(error), results_dir))
            continue
        place = path.parent.relative_to(results_dir).as_posix()
        name = study.facts.dataset if place == "." else f"{study.facts.dataset} ({place})"
        found.append(PlayedStudy(name, study, episodes, findings))
    if len({played.study.facts.dataset for played in found}) == len(found):
        found = [replace(played, name=played.study.facts.dataset) for played in found]
    return found, problems


def write_studies(site: Path, studies: Sequence[PlayedStudy], cache: Cache) -> None:
    """Write `consult/NUMBER` for each study, and the failures of each agent in each arm."""
    talk = talk_pictures(site, "talk-consult", cache)
    for number, played in enumerate(studies):
        pictures = _card_pictures(site, played.study, f"consult-{number}", cache)
        content = study_payload(played)
        for place, line in enumerate(content["lines"]):
            agent, arm = line["agent"], line["arm"]
            cards, line["failures"] = failure_cards(played, agent, arm, pictures, talk)
            if cards:
                write_payload(site, f"failures/{number}-{place}", cards)
        write_payload(site, f"consult/{number}", content)


def study_payload(played: PlayedStudy) -> dict[str, Any]:
    findings, facts = played.findings, played.study.facts
    return {
        "name": played.name,
        "dataset": facts.dataset,
        "classes": list(facts.classes),
        "trueClasses": None if facts.true_classes is None else list(facts.true_classes),
        "cases": len(played.study.cases),
        "groups": len({case.group for case in played.study.cases if case.group}) or None,
        "cautions": list(facts.cautions),
        "encoders": [
            {
                "role": encoder.role,
                "name": encoder.name,
                "probe": rounded(encoder.probe_accuracy),
                "knn": rounded(encoder.knn_accuracy),
            }
            for encoder in facts.encoders
        ],
        "arms": [{"name": arm, "words": ARMS.get(arm, "")} for arm in facts.arms],
        "agents": findings.agents,
        "lines": [_line(findings, line) for line in findings.lines()],
        "sequences": {
            agent: _sequences(found) for agent in findings.agents if (found := findings.sequences(agent))
        },
        "blinding": [
            {
                "first": check.first,
                "second": check.second,
                "auc": [rounded(check.auc), rounded(check.low), rounded(check.high)],
            }
            for check in facts.blinding
        ],
        "contrasts": [
            _contrast(contrast) for agent in findings.agents for contrast in findings.contrasts(agent)
        ],
        "reader": [
            {"agent": verdict.agent, "arm": verdict.arm, "beats": verdict.beats, "text": verdict.sentence}
            for verdict in findings.against_reader()
        ],
        "usefulness": {agent: findings.usefulness(agent) for agent in findings.agents},
        "doseSlope": {agent: findings.dose_slope(agent) for agent in findings.agents},
    }


def _line(findings: StudyFindings, line: Line) -> dict[str, Any]:
    curve = risk_coverage(findings.plays[line.agent, line.arm], findings.weights)
    return {
        **facts_of(line, "agent", "arm", "cases", "repeats"),
        "effective": rounded(line.effective),
        "effectiveWrong": rounded(line.effective_wrong),
        "values": {name: _estimate(estimate) for name, estimate in line.estimates.items()},
        "plain": {name: rounded(value) for name, value in line.plain.items()},
        "reliance": {
            # Confidence, number of cases, acceptance with its interval.
            kind: [[rounded(each.confidence), each.cases, *_estimate(each.accepted)] for each in bins]
            for kind, bins in findings.reliance(line.agent, line.arm).items()
        },
        "risk": None if curve is None else _thinned(list(zip(*map(list, curve), strict=True))),
    }


def _sequences(found: SequenceFindings) -> dict[str, Any]:
    return {
        **facts_of(found, "length", "change", "median"),
        "until": list(found.cases_until),
        "falseAlarms": rounded(found.false_alarms),
        "parts": [
            {
                "part": each.part,
                "measure": each.measure,
                "changed": _estimate(each.changed),
                "same": None if each.same is None else _estimate(each.same),
                "difference": None if each.difference is None else _estimate(each.difference),
            }
            for each in found.parts
        ],
    }


def _contrast(contrast: Contrast) -> dict[str, Any]:
    return {
        **facts_of(contrast, "agent", "name", "words", "registered", "groups", "reason"),
        "inAdvance": contrast.in_advance,
        "effective": rounded(contrast.effective),
        "value": _estimate(contrast),
        "p": rounded(contrast.p_value),
        "adjusted": rounded(contrast.adjusted),
    }


def _estimate(found: Estimate | Contrast) -> list[float | None]:
    bounds = (None, None) if found.interval is None else (found.interval.low, found.interval.high)
    return [rounded(value) for value in (found.value, *bounds)]


def _thinned(points: list[tuple[float, float]]) -> list[list[float | None]]:
    step = max(1, -(-len(points) // _MOST_POINTS))
    kept = points[::step] if (len(points) - 1) % step == 0 else [*points[::step], points[-1]]
    return [[rounded(x), rounded(y)] for x, y in kept]
