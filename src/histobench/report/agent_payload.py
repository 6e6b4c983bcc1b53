"""The data of the agent pages: success by budget, turn and family, gain from feedback, conversations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.statistics.intervals import percentile_interval
from histobench.core.statistics.paired import paired_bootstrap
from histobench.core.statistics.resampling import Metric, replicates, sampling_design
from histobench.mint.results.leaderboard import leaderboard
from histobench.mint.results.outcome import NO_FEEDBACK
from histobench.report.agent_runs import AgentRun, Episode, family_of
from histobench.report.payload import rounded, write_payload

#: Conversations of one data file, and characters of one message.
_PER_FILE, _LONGEST = 25, 20_000
_RESAMPLES, _SEED = 2000, 42


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
    for number, run in enumerate(runs):
        write_payload(site, f"agent/{number}", {"episodes": [_row(episode) for episode in run.episodes]})
        for start in range(0, len(run.episodes), _PER_FILE):
            talks = [_talk(episode) for episode in run.episodes[start : start + _PER_FILE]]
            write_payload(site, f"talk/{number}-{start // _PER_FILE}", talks)


def _run(run: AgentRun) -> dict[str, Any]:
    families: dict[str, list[Episode]] = defaultdict(list)
    datasets: dict[str, list[Episode]] = defaultdict(list)
    for episode in run.episodes:
        families[family_of(episode.outcome.task)].append(episode)
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
    """Success with its interval; repeated plays of a task are drawn together."""
    success = np.array([episode.outcome.success for episode in episodes], dtype=np.float64)
    tasks = [f"{episode.outcome.task}/{episode.outcome.task_id}" for episode in episodes]
    design = sampling_design(len(success), clusters=tasks)
    interval = percentile_interval(replicates(_mean(success), design, n_resamples=_RESAMPLES, seed=_SEED))
    return {
        "n": len(success),
        "value": rounded(float(success.mean())),
        "low": rounded(interval.low),
        "high": rounded(interval.high),
    }


def _mean(values: NDArray[np.float64]) -> Metric:
    def metric(counts: NDArray[np.int32]) -> NDArray[np.float64]:
        return np.asarray((counts @ values) / counts.sum(axis=1), dtype=np.float64)

    return metric


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
        helped, alone = _by_task(run), _by_task(base)
        shared = sorted(helped.keys() & alone.keys())
        if len(shared) < 2:
            continue
        first = np.array([helped[task] for task in shared])
        second = np.array([alone[task] for task in shared])
        found = paired_bootstrap(
            _mean(first), _mean(second), sampling_design(len(shared)), n_resamples=5000, seed=_SEED
        )
        gains.append(
            {
                "agent": run.agent,
                "feedback": run.feedback,
                "k": run.k,
                "n": len(shared),
                "without": rounded(float(second.mean())),
                "with": rounded(float(first.mean())),
                "difference": rounded(found.difference),
                "low": rounded(found.interval.low),
                "high": rounded(found.interval.high),
                "p": rounded(found.p_value, 4),
            }
        )
    return gains


def _by_task(run: AgentRun) -> dict[tuple[str, str], float]:
    plays: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for episode in run.episodes:
        plays[episode.outcome.task, episode.outcome.task_id].append(episode.outcome.success)
    return {task: float(np.mean(results)) for task, results in plays.items()}


def _row(episode: Episode) -> list[Any]:
    """Dataset, id, success, turns, how it ended."""
    o = episode.outcome
    return [o.task, o.task_id, int(o.success), len(episode.turns), o.terminate_reason or ""]


def _talk(episode: Episode) -> dict[str, Any]:
    return {
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


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}\n[... {len(text) - _LONGEST:,} more characters are in the results file]"
