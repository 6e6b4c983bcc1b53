"""The data of the agent pages: success by budget, turn and family, gain from feedback, conversations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from histobench.mint.results.outcome import NO_FEEDBACK, EpisodeOutcome, by_task
from histobench.mint.results.tables.leaderboard import leaderboard
from histobench.mint.results.uncertainty import gain, rate_interval
from histobench.report.agent_runs import AgentRun, Episode
from histobench.report.payload import rounded, write_payload
from histobench.report.talk_pictures import TalkPictures

#: Conversations of one data file, and characters of one message.
_PER_FILE, _LONGEST = 25, 20_000


def write_agents(site: Path, runs: Sequence[AgentRun]) -> None:
    """Write `agents`, and for every run its list of episodes and their conversations."""
    outcomes = [episode.outcome for run in runs for episode in run.episodes]
    trends = {standing.model: standing.trend for standing in leaderboard(outcomes)}
    write_payload(
        site,
        "agents",
        {
            "runs": [_run(run) for run in runs],
            "gains": _gains(runs),
            "trends": {
                model: {"slope": line.slope, "r2": line.r2}
                for model, line in trends.items()
                if line is not None
            },
        },
    )
    pictures = TalkPictures(site)
    for number, run in enumerate(runs):
        write_payload(site, f"agent/{number}", {"episodes": [_row(episode) for episode in run.episodes]})
        for start in range(0, len(run.episodes), _PER_FILE):
            talks = [talk_payload(episode, pictures) for episode in run.episodes[start : start + _PER_FILE]]
            write_payload(site, f"talk/{number}-{start // _PER_FILE}", talks)


def _run(run: AgentRun) -> dict[str, Any]:
    families: dict[str, list[Episode]] = defaultdict(list)
    datasets: dict[str, list[Episode]] = defaultdict(list)
    for episode in run.episodes:
        families[episode.outcome.family].append(episode)
        datasets[episode.outcome.task].append(episode)
    actions = sum(_actions(episode) for episode in run.episodes)
    return {
        "name": run.name,
        "agent": run.agent,
        "feedback": run.feedback,
        "k": run.k,
        "all": _rate(run.episodes),
        "families": {name: _rate(members) for name, members in sorted(families.items())},
        "datasets": {name: _rate(members) for name, members in sorted(datasets.items())},
        "solvedBy": _solved_by(run),
        "ends": dict(Counter(episode.outcome.terminate_reason or "unknown" for episode in run.episodes)),
        "turns": rounded(float(np.mean([len(episode.turns) for episode in run.episodes]))),
        "invalid": rounded(sum(e.outcome.invalid for e in run.episodes) / actions) if actions else None,
        "tokens": _tokens(run),
    }


def _actions(episode: Episode) -> int:
    return episode.outcome.proposals + episode.outcome.tool_calls + episode.outcome.invalid


def _tokens(run: AgentRun) -> float | None:
    known = [episode.tokens for episode in run.episodes if episode.tokens]
    return rounded(float(np.mean(known))) if known else None


def _rate(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Success with its interval, as `histobench mint table` gives it."""
    outcomes = [episode.outcome for episode in episodes]
    interval = rate_interval(outcomes)
    return {
        "n": len(outcomes),
        "value": rounded(_share(outcomes)),
        "low": rounded(interval.low),
        "high": rounded(interval.high),
    }


def _share(outcomes: Sequence[EpisodeOutcome]) -> float:
    return float(np.mean([outcome.success for outcome in outcomes]))


def _solved_by(run: AgentRun) -> list[float | None]:
    """The share of episodes that had succeeded after 1, 2, ... k turns."""
    taken = np.array([len(e.turns) if e.outcome.success else np.inf for e in run.episodes])
    return [rounded(float((taken <= turn).mean())) for turn in range(1, run.k + 1)]


def _gains(runs: Sequence[AgentRun]) -> list[dict[str, Any]]:
    """Success with an expert minus success without, on the tasks that both runs have."""
    plain = {(run.agent, run.k): run for run in runs if run.feedback_model == NO_FEEDBACK}
    gains = []
    for run in runs:
        base = plain.get((run.agent, run.k))
        if run.feedback_model == NO_FEEDBACK or base is None:
            continue
        helped, alone = ([episode.outcome for episode in one.episodes] for one in (run, base))
        found = gain(helped, alone)
        if found is None:
            continue
        shared = by_task(helped).keys() & by_task(alone).keys()
        gains.append(
            {
                "agent": run.agent,
                "feedback": run.feedback,
                "k": run.k,
                "n": len(shared),
                "without": rounded(_share([one for one in alone if one.key in shared])),
                "with": rounded(_share([one for one in helped if one.key in shared])),
                "difference": rounded(found.difference),
                "low": rounded(found.interval.low),
                "high": rounded(found.interval.high),
                "p": rounded(found.p_value, 4),
            }
        )
    return gains


def _row(episode: Episode) -> list[Any]:
    """Dataset, id, success, turns, how it ended."""
    o = episode.outcome
    return [o.task, o.task_id, int(o.success), len(episode.turns), o.terminate_reason or ""]


def talk_payload(episode: Episode, pictures: TalkPictures) -> dict[str, Any]:
    """A conversation; of each picture its address, or an empty text where it was not kept."""
    shown = [[pictures.address(path) for path in turn.pictures] for turn in episode.turns]
    content: dict[str, Any] = {
        "prompt": _cut(episode.prompt),
        "reference": _cut(episode.reference),
        "error": _cut(episode.error),
        "turns": [
            [
                _cut(turn.text),
                turn.kind,
                None if turn.observation is None else _cut(turn.observation),
                _cut(turn.feedback),
            ]
            for turn in episode.turns
        ],
    }
    if episode.pictures or any(shown):
        content["pictures"] = [[pictures.address(path) for path in episode.pictures], *shown]
    return content


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}\n[... {len(text) - _LONGEST:,} more characters are in the results file]"
