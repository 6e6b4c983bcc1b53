"""A model of Inspect as a player, so that Inspect's runs and this project's share one way to play."""

from __future__ import annotations

from collections.abc import Sequence

from anyio import from_thread
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageUser,
    GenerateConfig,
    Model,
    ModelOutput,
    ModelUsage,
)

from histobench.mint.agents.agent import EpisodeAgent, EpisodeKey, Player
from histobench.mint.agents.completion import Sampling, Usage
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.messages.parts import Message, ToolSpec


class InspectPlayer(Player):
    """Asks a model that Inspect has opened. Retries, time-outs, caching and prices are Inspect's."""

    def __init__(self, model: Model, sampling: Sampling, config: GenerateConfig) -> None:
        self.name = model.name
        self.outputs: list[ModelOutput] = []
        self._model = model
        self._sampling = sampling
        self._config = config

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        """The agent of one sample."""
        return _InspectAgent(self._model, self._sampling, self._config, self.outputs)


class _InspectAgent(EpisodeAgent):
    """Lives in a worker thread; the question is put on Inspect's own event loop."""

    def __init__(
        self, model: Model, sampling: Sampling, config: GenerateConfig, outputs: list[ModelOutput]
    ) -> None:
        self._model = model
        self._sampling = sampling
        self._config = config
        self._outputs = outputs
        self.cost = None  # Inspect keeps the accounts

    def __call__(self, history: tuple[Message, ...], functions: Sequence[ToolSpec] = ()) -> str | Message:
        output = from_thread.run(self._ask, as_inspect_messages(history))
        self._outputs.append(output)
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
    """The conversation as Inspect stores and sends it."""
    return [
        ChatMessageUser(content=message.content)
        if message.role == "user"
        else ChatMessageAssistant(content=message.content)
        for message in history
    ]
