"""From a string to a player."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from histobench.mint.agents.answer_cache import AnswerCache
from histobench.mint.agents.completion import Sampling
from histobench.mint.agents.ledger import Ledger
from histobench.mint.agents.patience import Patience
from histobench.mint.agents.player import Player
from histobench.mint.agents.prices import FREE, Price, find_price
from histobench.mint.agents.spec import AgentSpec, parse_agent
from histobench.mint.agents.stop_words import agent_stop_words, expert_stop_words
from histobench.mint.agents.wire import Wire


@dataclass(frozen=True)
class Terms:
    """What all endpoints of a run share."""

    concurrency: int = 8
    patience: Patience = Patience()  # noqa: RUF009 - immutable
    cache: AnswerCache | None = None
    prices: dict[str, Price] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)


def open_player(
    spec: AgentSpec | str, terms: Terms, *, sampling: Sampling | None = None, as_expert: bool = False
) -> Player:
    """The player that a specification names. An expert stops writing at other words than an agent."""
    spec = parse_agent(spec) if isinstance(spec, str) else spec
    if spec.kind == "human":
        from histobench.mint.agents.human_player import HumanPlayer

        return HumanPlayer()
    if spec.kind == "replay":
        from histobench.mint.agents.replay_expert import ReplayExpert
        from histobench.mint.agents.replay_player import ReplayPlayer

        return ReplayExpert(spec.target) if as_expert else ReplayPlayer(spec.target)
    sampling = sampling or Sampling(max_tokens=1024 if as_expert else 512)
    stop = expert_stop_words() if as_expert else agent_stop_words(spec.kind)
    sampling = replace(sampling, stop=stop)
    return _local(spec, terms, sampling) if spec.kind == "local" else _remote(spec, terms, sampling)


def player_name(spec: AgentSpec, *, as_expert: bool = False) -> str:
    """The name in folders and tables, known without opening a connection or loading a model."""
    if spec.kind == "human":
        return "human"
    if spec.kind == "replay":
        return open_player(spec, Terms(), as_expert=as_expert).name
    if spec.kind == "local":
        from histobench.mint.agents.local_model import MODEL

        return Path(spec.target).stem if spec.target else MODEL
    return spec.folder_name


def _remote(spec: AgentSpec, terms: Terms, sampling: Sampling) -> Player:
    from histobench.mint.agents.anthropic_wire import AnthropicWire
    from histobench.mint.agents.endpoint import Endpoint
    from histobench.mint.agents.endpoint_player import EndpointPlayer
    from histobench.mint.agents.gemini_wire import GeminiWire
    from histobench.mint.agents.openai_wire import OpenAIWire

    wires: dict[str, type[Wire]] = {
        "openai": OpenAIWire,
        "vllm": OpenAIWire,
        "anthropic": AnthropicWire,
        "gemini": GeminiWire,
    }
    wire = wires[spec.kind](spec.target, spec.base_url or "", spec.api_key())
    endpoint = Endpoint(
        wire,
        sampling,
        concurrency=terms.concurrency,
        patience=terms.patience,
        cache=terms.cache,
        price=find_price(spec.target, terms.prices),
        ledger=terms.ledger,
    )
    return EndpointPlayer(spec.folder_name, endpoint)


def _local(spec: AgentSpec, terms: Terms, sampling: Sampling) -> Player:
    from histobench.mint.agents.endpoint import Endpoint
    from histobench.mint.agents.endpoint_player import EndpointPlayer
    from histobench.mint.agents.local_model import LocalServer, find_model
    from histobench.mint.agents.openai_wire import OpenAIWire

    path = find_model(spec.target or None)
    server = LocalServer(path)
    name = player_name(spec)
    endpoint = Endpoint(
        OpenAIWire(name, server.base_url),
        sampling,
        concurrency=1,
        patience=replace(terms.patience, answer_timeout=1800.0),  # a slow machine is no failure
        cache=terms.cache,
        price=FREE,
        ledger=terms.ledger,
        identity=f"local:{path.name}",
    )
    return EndpointPlayer(name, endpoint, max_concurrency=1, on_close=server.close)
