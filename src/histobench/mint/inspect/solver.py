"""Plays one sample with the turn loop, the sandbox and the checkers of this project."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from anyio import CapacityLimiter, to_thread
from inspect_ai.model import GenerateConfig, Model, get_model
from inspect_ai.solver import Generate, Solver, TaskState, solver

from histobench.mint.agents.completion import Sampling
from histobench.mint.agents.factory import agent_stop_words, expert_stop_words
from histobench.mint.inspect.player import InspectPlayer, as_inspect_messages
from histobench.mint.messages.record import message_from_record
from histobench.mint.prompts.first_message import Wording
from histobench.mint.runs.episode_run import Finished, RunContext, run_episode
from histobench.mint.runs.planned_cell import PlannedCell
from histobench.mint.tasks.base import Task
from histobench.mint.tools.wikipedia.source import open_encyclopedia

#: Where the finished episode lies in the store of a sample.
EPISODE = "histobench:episode"
#: The role of the model that gives feedback: `--model-role expert=MODEL`.
EXPERT = "expert"
#: Episodes at a time; Inspect's --max-samples is the limit that matters.
_THREADS = 1000


class Playbook:
    """What all samples share. Not a dataclass: Inspect would write all of it into the log."""

    def __init__(
        self,
        cells: Mapping[str, PlannedCell],
        tasks: Mapping[tuple[str, str], Task],
        wording: Wording,
        wikipedia: str = "live",
    ) -> None:
        self.cells = cells
        self.tasks = tasks
        self.wording = wording
        self.wikipedia = wikipedia


@solver
def mint_episode(playbook: Playbook) -> Solver:
    """Turns until the task is solved or the budget is spent."""
    limiter: CapacityLimiter | None = None

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        nonlocal limiter
        limiter = limiter or CapacityLimiter(_THREADS)
        dataset = state.metadata["dataset"]
        planned, task = playbook.cells[dataset], playbook.tasks[dataset, state.metadata["task_id"]]
        model = get_model()
        stop = stop_words(model)
        player = InspectPlayer(model, Sampling(stop=stop), GenerateConfig(stop_seqs=list(stop)))
        expert = _expert(planned)

        def play() -> Finished:
            from histobench.mint.sandbox import shared_pool

            encyclopedia = open_encyclopedia(playbook.wikipedia)
            shared = RunContext(shared_pool(), playbook.wording, encyclopedia, threading.Event())
            return run_episode(planned, task, state.epoch, shared=shared, player=player, expert=expert)

        finished = await to_thread.run_sync(play, limiter=limiter)
        _keep(state, finished, player)
        return state

    return solve


def stop_words(model: Model) -> tuple[str, ...]:
    """Those of the published agent for the model's provider."""
    return agent_stop_words(str(model).split("/", 1)[0])


def _expert(planned: PlannedCell) -> InspectPlayer | None:
    if planned.expert is None or planned.expert.kind.form == "placebo":
        return None
    model = get_model(role=EXPERT, required=True)
    sampling = planned.expert.sampling
    stop = expert_stop_words()
    config = GenerateConfig(
        temperature=sampling.temperature, max_tokens=sampling.max_tokens, stop_seqs=list(stop)
    )
    return InspectPlayer(model, Sampling(stop=stop), config)


def _keep(state: TaskState, finished: Finished, player: InspectPlayer) -> None:
    episode: dict[str, Any] = finished.episode
    state.messages = as_inspect_messages(
        [message_from_record(entry) for entry in episode["state"]["history"]]
    )
    if player.outputs:
        state.output = player.outputs[-1]
    state.store.set(EPISODE, {**episode, "details": finished.details})
    state.completed = True
