"""Solver and scorer for Inspect: the same turn loop, sandbox and checkers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from anyio import CapacityLimiter, from_thread, to_thread
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageUser,
    GenerateConfig,
    Model,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, grouped, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from histobench.core.errors import HistobenchError
from histobench.mint.agents.agent import EpisodeAgent, EpisodeKey, Player
from histobench.mint.agents.completion import Sampling, Usage
from histobench.mint.agents.factory import EXPERT_STOP_WORDS, agent_stop_words
from histobench.mint.envs.action import classify
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.messages.parts import Message, ToolSpec
from histobench.mint.messages.record import message_from_record
from histobench.mint.prompts.first_message import Wording
from histobench.mint.runs.episode_run import Finished, RunContext, run_episode
from histobench.mint.runs.planned_cell import PlannedCell
from histobench.mint.tasks.base import Task
from histobench.mint.tools.wikipedia_search import open_encyclopedia


class InspectPlayer(Player, EpisodeAgent):
    """Asks a model that Inspect has opened, in one episode. Retries, caching and prices are Inspect's."""

    cost = None  # Inspect keeps the accounts

    def __init__(self, model: Model, sampling: Sampling, config: GenerateConfig) -> None:
        self.name = model.name
        self.outputs: list[ModelOutput] = []
        self._model = model
        self._sampling = sampling
        self._config = config

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        return self

    def __call__(self, history: tuple[Message, ...], functions: Sequence[ToolSpec] = ()) -> str | Message:
        output = from_thread.run(self._ask, as_inspect_messages(history))
        self.outputs.append(output)
        if output.usage is not None:
            self.usage += _usage(output.usage)
        # No tokens: the provider refused. With tokens the answer was merely cut off.
        if output.stop_reason == "model_length" and output.usage is None:
            raise RequestRefusedError(output.error or output.completion or "the conversation is too long")
        if output.stop_reason == "content_filter":
            raise RequestRefusedError(output.error or "the provider withheld the answer", "filtered")
        text = self._sampling.cut(output.completion)
        return Message("assistant", text, ending="length") if output.stop_reason == "max_tokens" else text

    async def _ask(self, messages: list[ChatMessage]) -> ModelOutput:
        return await self._model.generate(messages, config=self._config)


def _usage(usage: ModelUsage) -> Usage:
    """Inspect counts what a provider had in its cache apart from what it read anew."""
    read = usage.input_tokens + (usage.input_tokens_cache_read or 0) + (usage.input_tokens_cache_write or 0)
    return Usage(read, usage.output_tokens)


def as_inspect_messages(history: Sequence[Message]) -> list[ChatMessage]:
    return [
        ChatMessageUser(content=message.content)
        if message.role == "user"
        else ChatMessageAssistant(content=message.content)
        for message in history
    ]


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
    limiter: CapacityLimiter | None = None

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        nonlocal limiter
        limiter = limiter or CapacityLimiter(_THREADS)
        dataset = state.metadata["dataset"]
        planned, task = playbook.cells[dataset], playbook.tasks[dataset, state.metadata["task_id"]]
        model = get_model()
        stop = agent_stop_words(str(model).split("/", 1)[0])  # of the published agent for its provider
        player = InspectPlayer(model, Sampling(stop=stop), GenerateConfig(stop_seqs=list(stop)))
        expert = _expert(planned)

        def play() -> Finished:
            from histobench.mint.sandbox import shared_pool

            encyclopedia = open_encyclopedia(playbook.wikipedia)
            shared = RunContext(shared_pool(), playbook.wording, encyclopedia, threading.Event())
            return run_episode(planned, task, state.epoch, shared=shared, player=player, expert=expert)

        _keep(state, await to_thread.run_sync(play, limiter=limiter), player)
        return state

    return solve


def _expert(planned: PlannedCell) -> InspectPlayer | None:
    if planned.expert is None or planned.expert.kind.form == "placebo":
        return None
    model = get_model(role=EXPERT, required=True)
    sampling = planned.expert.sampling
    config = GenerateConfig(
        temperature=sampling.temperature, max_tokens=sampling.max_tokens, stop_seqs=list(EXPERT_STOP_WORDS)
    )
    return InspectPlayer(model, Sampling(stop=EXPERT_STOP_WORDS), config)


def _keep(state: TaskState, finished: Finished, player: InspectPlayer) -> None:
    episode: dict[str, Any] = finished.episode
    state.messages = as_inspect_messages(
        [message_from_record(entry) for entry in episode["state"]["history"]]
    )
    if player.outputs:
        state.output = player.outputs[-1]
    state.store.set(EPISODE, {**episode, "details": finished.details})
    state.completed = True


@scorer(metrics=[accuracy(), stderr(), grouped(accuracy(), "dataset", all=False)])
def task_success() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        episode = state.store.get(EPISODE)
        if episode is None:
            raise HistobenchError(f"sample {state.sample_id} was not played by histobench/mint_episode")
        end = episode["state"]
        answers = [classify(message.text) for message in state.messages if message.role == "assistant"]
        proposals = [action.content for action in answers if action.kind == "proposal"]
        return Score(
            value=CORRECT if end["success"] else INCORRECT,
            answer=proposals[-1] if proposals else None,
            explanation=end["terminate_reason"],
            metadata={**end["agent_action_count"], "terminate_reason": end["terminate_reason"]},
        )

    return score
