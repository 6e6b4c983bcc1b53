"""The data of the agents page: finished episodes by agent, expert and budget."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from histobench.core.errors import HistobenchError, error_text
from histobench.mint.envs.action import classify
from histobench.mint.messages.parts import FEEDBACK_HEADING, Message, Reasoning
from histobench.mint.results.episode_outcome import NO_FEEDBACK, OUTCOMES, UNFINISHED, EpisodeOutcome, by_task
from histobench.mint.results.recording import SUFFIX, read_recordings
from histobench.mint.results.recording import Episode as Played
from histobench.mint.results.result_tables import leaderboard
from histobench.mint.results.stored_episode import (
    FILE,
    EachOnce,
    StoredEpisode,
    read_episodes,
    read_unfinished,
)
from histobench.mint.results.uncertainty import gain, rate_interval
from histobench.report.inventory import without_folder
from histobench.report.payload import facts_of, rounded, write_payload
from histobench.report.thumbnails import Cache, Pictures

log = logging.getLogger(__name__)


@dataclass
class AgentRun:
    """All episodes of an agent with one expert (or none) and one budget."""

    agent: str
    feedback_model: str
    feedback_type: str
    k: int
    episodes: list[Played] = field(default_factory=list)
    outcomes: list[EpisodeOutcome] = field(default_factory=list)
    #: Outcome -> episodes that could not be played to their end, which no rate counts.
    unfinished: Counter[str] = field(default_factory=Counter)

    @property
    def feedback(self) -> str:
        return f"{self.feedback_model} ({self.feedback_type})" if self.feedback_model != NO_FEEDBACK else ""

    @property
    def name(self) -> str:
        return f"{self.agent}{f' + {self.feedback}' if self.feedback else ''}, k = {self.k}"


def find_agent_runs(results_dir: Path, *, elsewhere: Sequence[Path] = ()) -> tuple[list[AgentRun], list[str]]:
    """Every run below a folder (`results.jsonl`, or recordings `*.k5.jsonl.gz`), and what cannot be read.

    Files in the folders `elsewhere` have pages of their own.
    """
    runs: dict[tuple[str, str, str, int], AgentRun] = {}
    problems: list[str] = []
    files = [*sorted(results_dir.rglob(FILE)), *sorted(results_dir.rglob(f"*.k*{SUFFIX}"))]
    once, read = EachOnce(), set[Path]()
    for path in files:
        if any(path.is_relative_to(folder) for folder in elsewhere):
            continue
        try:
            found = once.of(path, read_episodes(path)) if path.name == FILE else read_recordings(path)
            for episode in found:
                outcome = episode.outcome
                run = runs.setdefault(_run_key(outcome), AgentRun(*_run_key(outcome)))
                run.episodes.append(episode)
                run.outcomes.append(outcome)
            read.add(path)
        except (HistobenchError, OSError) as error:
            problems.append(without_folder(error_text(error), results_dir))
    alone: Counter[str] = Counter()
    for outcome in read_unfinished(path for path in files if path in read and path.name == FILE):
        key = _run_key(outcome)
        if key in runs:
            runs[key].unfinished[outcome.outcome] += 1
        else:
            alone[AgentRun(*key).name] += 1
    problems += [f"{name}: {n} episodes, none could be played to its end" for name, n in alone.items()]
    order = sorted(runs, key=lambda key: (key[0].lower(), key[1] != NO_FEEDBACK, key[1], key[2], key[3]))
    return [runs[key] for key in order], problems


def _run_key(outcome: EpisodeOutcome) -> tuple[str, str, str, int]:
    return outcome.model, outcome.feedback_model, outcome.feedback_type, outcome.k


def _turn(message: Message, answer: str | None) -> list[str | None]:
    """Text, kind, observation and feedback; what the model thought stands before what it wrote."""
    thoughts = [part.text for part in message.parts if isinstance(part, Reasoning)]
    text = "\n".join(
        [*(f"[reasoning]\n{thought or '(not shown)'}\n" for thought in thoughts), message.content]
    )
    observation, _, feedback = (answer or "").partition(FEEDBACK_HEADING)
    observation = observation.removeprefix("Observation:\n").rstrip("\n")
    return [
        text,
        classify(message.content).kind,
        None if answer is None else observation,
        feedback.rstrip("\n"),
    ]


#: Conversations of one data file, and characters of one message.
_PER_FILE, _LONGEST = 25, 20_000


def write_agents(site: Path, runs: Sequence[AgentRun], cache: Cache) -> None:
    """Write `agents`, and for every run its list of episodes and their conversations."""
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    trends = {standing.model: standing.trend for standing in leaderboard(outcomes)}
    write_payload(
        site,
        "agents",
        {
            "runs": [_run(run) for run in runs],
            "gains": _gains(runs),
            "trends": {model: {"slope": line.slope, "r2": line.r2} for model, line in trends.items() if line},
        },
    )
    pictures = talk_pictures(site, "talk", cache)
    for number, run in enumerate(runs):
        write_payload(site, f"agent/{number}", {"episodes": list(map(_row, run.episodes, run.outcomes))})
        for start in range(0, len(run.episodes), _PER_FILE):
            talks = [talk_payload(episode, pictures) for episode in run.episodes[start : start + _PER_FILE]]
            write_payload(site, f"talk/{number}-{start // _PER_FILE}", talks)


def _run(run: AgentRun) -> dict[str, Any]:
    outcomes = run.outcomes
    families, datasets = sorted({o.family for o in outcomes}), sorted({o.task for o in outcomes})
    invalid = sum(o.invalid for o in outcomes)
    actions = sum(o.proposals + o.tool_calls for o in outcomes) + invalid
    tokens = [outcome.tokens for outcome in outcomes if outcome.tokens]
    return {
        **facts_of(run, "name", "agent", "feedback", "k"),
        "all": _rate(outcomes),
        "families": {name: _rate([o for o in outcomes if o.family == name]) for name in families},
        "datasets": {name: _rate([o for o in outcomes if o.task == name]) for name in datasets},
        "solvedBy": _solved_by(run),
        "outcomes": _outcomes(run),
        "turns": rounded(float(np.mean([len(episode.messages) for episode in run.episodes]))),
        "invalid": rounded(invalid / actions) if actions else None,
        "tokens": rounded(float(np.mean(tokens))) if tokens else None,
    }


def _outcomes(run: AgentRun) -> list[list[Any]]:
    """Outcome, episodes, and whether they enter the rate, in the order of `mint table`."""
    found = Counter(outcome.outcome for outcome in run.outcomes) + run.unfinished
    return [[name, found[name], int(name not in UNFINISHED)] for name in OUTCOMES if found[name]]


def _rate(outcomes: Sequence[EpisodeOutcome]) -> dict[str, Any]:
    """Success with its interval, as `histobench mint table` gives it."""
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
    pairs = zip(run.episodes, run.outcomes, strict=True)
    taken = np.array([len(episode.messages) if outcome.success else np.inf for episode, outcome in pairs])
    return [rounded(float((taken <= turn).mean())) for turn in range(1, run.k + 1)]


def _gains(runs: Sequence[AgentRun]) -> list[dict[str, Any]]:
    """Success with an expert minus success without, on the tasks that both runs have."""
    plain = {(run.agent, run.k): run.outcomes for run in runs if run.feedback_model == NO_FEEDBACK}
    gains = []
    for run in runs:
        helped, alone = run.outcomes, plain.get((run.agent, run.k), [])
        if run.feedback_model == NO_FEEDBACK or (found := gain(helped, alone)) is None:
            continue
        shared = by_task(helped).keys() & by_task(alone).keys()
        gains.append(
            {
                **facts_of(run, "agent", "feedback", "k"),
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


def _row(episode: Played, outcome: EpisodeOutcome) -> list[Any]:
    return [outcome.task, outcome.task_id, int(outcome.success), len(episode.messages), outcome.outcome]


def talk_pictures(site: Path, folder: str, cache: Cache) -> Pictures:
    return Pictures(site, folder, cache, side=448, square=False)


def talk_payload(episode: Played, pictures: Pictures) -> dict[str, Any]:
    """A conversation; of each picture its address, or an empty text where it was not kept."""
    prompt, reference = "", ""
    shown: list[list[str]] = []
    if isinstance(episode, StoredEpisode):
        history = episode.state["history"]
        prompt = str(history[0]["content"]) if history and history[0]["role"] == "user" else ""
        reference = str(episode.task.get("reference", ""))
        shown = [[pictures.address(str(path)) for path in files] for files in episode.pictures]
        answers = [answer for _, answer in episode.exchanges]
        turns = [_turn(*each) for each in zip(episode.written, answers, strict=True)]
    else:
        turns = [[each.assistant, each.kind, each.observation, each.feedback] for each in episode.turns]
    content: dict[str, Any] = {
        "prompt": _cut(prompt),
        "reference": _cut(reference),
        "error": _cut(str(episode.error or "")),
        "turns": [[text if text is None else _cut(text) for text in turn] for turn in turns],
    }
    if any(shown):
        content["pictures"] = shown
    return content


def _cut(text: str) -> str:
    more = f"\n[... {len(text) - _LONGEST:,} more characters are in the results file]"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + more
