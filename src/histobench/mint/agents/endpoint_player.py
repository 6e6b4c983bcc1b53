"""A model behind an endpoint."""

from __future__ import annotations

from collections.abc import Callable

from histobench.mint.agents.endpoint import Endpoint
from histobench.mint.agents.player import EpisodeAgent, EpisodeKey, Player
from histobench.mint.envs.state import Message


class EndpointPlayer(Player):
    """Plays with the answers of an endpoint; `on_close` ends what was started for it."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        *,
        max_concurrency: int | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.endpoint = endpoint
        self.max_concurrency = max_concurrency
        self._on_close = on_close

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        """Repeated episodes are asked for anew, not read from the cache."""
        return _EndpointAgent(self.endpoint, key.repeat)

    def stop(self) -> None:
        """Break off all requests."""
        self.endpoint.stop()

    def close(self) -> None:
        """End the connections."""
        self.endpoint.close()
        if self._on_close is not None:
            self._on_close()


class _EndpointAgent(EpisodeAgent):
    def __init__(self, endpoint: Endpoint, sample: int) -> None:
        self._endpoint = endpoint
        self._sample = sample

    def __call__(self, history: tuple[Message, ...]) -> str:
        completion = self._endpoint.ask(history, sample=self._sample)
        self.usage += completion.usage
        if not completion.cached and self.cost is not None:
            cost = self._endpoint.cost(completion)
            self.cost = None if cost is None else self.cost + cost
        return completion.text
