"""Plays one episode of a run, from the task to the lines that are kept."""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from histobench.mint.agents.agent import EpisodeAgent, EpisodeKey, Player
from histobench.mint.agents.completion import Usage
from histobench.mint.envs.episode import play
from histobench.mint.envs.general_env import open_environment
from histobench.mint.envs.turn_loop import Budget, State
from histobench.mint.feedback.expert import EpisodeExpert
from histobench.mint.messages.parts import Image, Message, ToolSpec
from histobench.mint.prompts.first_message import Wording, calls_message, first_message
from histobench.mint.runs.planned_cell import PlannedCell
from histobench.mint.runs.task_source import episode_tools
from histobench.mint.sandbox import SandboxPool
from histobench.mint.tasks.base import Task
from histobench.mint.tools.wikipedia_search import Encyclopedia


class EpisodeStoppedError(Exception):
    """The run is being stopped; the episode is played again next time."""


@dataclass(frozen=True)
class RunContext:
    pool: SandboxPool
    wording: Wording
    encyclopedia: Encyclopedia | None
    stopping: threading.Event


@dataclass(frozen=True)
class Finished:
    episode: dict[str, Any]
    details: dict[str, Any]
    success: bool
    usage: Usage
    images: tuple[Image, ...] = ()


def run_episode(
    planned: PlannedCell,
    task: Task,
    repeat: int,
    *,
    shared: RunContext,
    player: Player,
    expert: Player | None,
) -> Finished:
    """Play to the end; whatever is raised is not the model's failure: the episode has to be played again."""
    key = EpisodeKey(planned.dataset.name, task.task_id, repeat)
    task = copy.copy(task)  # the same task may be played several times at once
    task.rule = planned.rule
    cell = planned.cell
    budget = Budget(cell.max_steps, cell.max_propose_solution, cell.count_down)
    tools = episode_tools(planned.dataset, shared.encyclopedia)
    with open_environment(task, tools, pool=shared.pool) as environment:
        agent = player.open(key)  # inside: an environment learns of an episode that cannot begin
        timed = _Timed(agent, shared.stopping)
        episode_expert = None
        if planned.expert is not None:
            writer = expert.open(key) if expert is not None else None
            episode_expert = EpisodeExpert(
                planned.expert.kind, task, environment.tools, shared.wording, writer
            )
        native = cell.calls == "native"
        prompt = environment.own_prompt(budget, native=native) or (
            calls_message(task, budget, with_feedback=episode_expert is not None)
            if native
            else first_message(
                task,
                environment.tools,
                budget,
                with_feedback=episode_expert is not None,
                wording=shared.wording,
            )
        )
        state = play(
            environment,
            timed,
            prompt=prompt,
            budget=budget,
            expert=episode_expert,
            feedback_type=planned.expert.kind.state_type if planned.expert else "no_feedback",
            functions=environment.functions if native else None,
        )
        described = task.to_dict()
    return _finished(state, described, agent, episode_expert, planned, repeat, timed)


def _finished(
    state: State,
    described: dict[str, Any],
    agent: EpisodeAgent,
    episode_expert: EpisodeExpert | None,
    planned: PlannedCell,
    repeat: int,
    timed: _Timed,
) -> Finished:
    tokens = agent.usage.as_published()
    usage, cost = agent.usage, agent.cost
    if episode_expert is not None:
        tokens |= episode_expert.usage.as_published("feedback_")
        usage += episode_expert.usage
        cost = None if cost is None or episode_expert.cost is None else cost + episode_expert.cost
    details: dict[str, Any] = {
        "task_id": described["task_id"],
        "repeat": repeat,
        "success": state.success,
        "outcome": state.outcome,
        "rule": planned.rule,
        "seconds": timed.now(),
        "started": round(timed.started, 3),
        "times": timed.times,
        "tokens": usage.total_tokens,
        "tokens_known": usage.known,
        "cost": cost,
    }
    for name in ("cached_tokens", "reasoning_tokens"):
        if count := getattr(usage, name):
            details[name] = count
    if agent.turns:
        details["turns"] = list(agent.turns)
    if agent.function_sets:
        details["functions"] = list(agent.function_sets)
    if state.faults:
        details["faults"] = dict(Counter(state.faults))
    if episode_expert is not None:
        details["feedback"] = episode_expert.as_record()
    episode = {"state": state.as_published(tokens), "task": described}
    images = tuple(image for message in state.history for image in message.images)
    return Finished(episode, details, state.success, usage, images)


class _Timed:
    """An agent that can be stopped, with the seconds at which each answer was asked for and came."""

    def __init__(self, agent: EpisodeAgent, stopping: threading.Event) -> None:
        self.started = time.time()
        self.times: list[tuple[float, float]] = []
        self._agent, self._stopping = agent, stopping
        self._start = time.monotonic()

    def now(self) -> float:
        return round(time.monotonic() - self._start, 3)

    def __call__(self, history: tuple[Message, ...], functions: Sequence[ToolSpec] = ()) -> str | Message:
        if self._stopping.is_set():
            raise EpisodeStoppedError
        asked = self.now()
        answer = self._agent(history, functions)
        self.times.append((asked, self.now()))
        return answer
