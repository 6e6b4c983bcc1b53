"""From a string to a player, which stops writing where the published agents of its kind do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from histobench.core.http import RetryPolicy
from histobench.mint.agents.agent import EndpointPlayer, EpisodeLimits, HumanPlayer, Player
from histobench.mint.agents.agent_spec import AgentSpec, parse_agent
from histobench.mint.agents.answer_cache import AnswerCache
from histobench.mint.agents.client import Endpoint
from histobench.mint.agents.completion import Sampling
from histobench.mint.agents.costs import CostTracker
from histobench.mint.agents.local_model import MODEL, LocalServer, find_model
from histobench.mint.agents.prices import FREE, Price, find_price
from histobench.mint.agents.providers import provider_format
from histobench.mint.agents.providers.openai import ChatCompletionsAPI
from histobench.mint.agents.replay import ReplayExpert, ReplayPlayer

_AGENT = ("Observation:", "Expert feedback:", "Task:", "---")
EXPERT_STOP_WORDS = ("\nObservation:", "\nTask:", "\nAssistant:")


@dataclass(frozen=True)
class Terms:
    concurrency: int = 8
    retry: RetryPolicy = RetryPolicy()  # noqa: RUF009 - immutable
    cache: AnswerCache | None = None
    prices: dict[str, Price] = field(default_factory=dict)
    costs: CostTracker = field(default_factory=CostTracker)
    limits: dict[str, float | None] = field(default_factory=dict)
    #: Of the model under test, for each episode.
    episode: EpisodeLimits = EpisodeLimits()  # noqa: RUF009 - immutable


def open_player(
    spec: AgentSpec | str,
    terms: Terms,
    *,
    sampling: Sampling | None = None,
    as_expert: bool = False,
    stop: tuple[str, ...] | None = None,
) -> Player:
    spec = parse_agent(spec) if isinstance(spec, str) else spec
    if spec.kind == "human":
        return HumanPlayer()
    if spec.kind == "replay":
        return ReplayExpert(spec.target) if as_expert else ReplayPlayer(spec.target)
    sampling = sampling or Sampling(max_tokens=1024 if as_expert else 512)
    if stop is None:
        stop = EXPERT_STOP_WORDS if as_expert else agent_stop_words(spec.kind)
    sampling = replace(sampling, stop=stop)
    limits = EpisodeLimits() if as_expert else terms.episode
    if spec.kind == "local":
        path = find_model(spec.target or None)
        server, name = LocalServer(path), player_name(spec)
        endpoint = Endpoint(
            ChatCompletionsAPI(name, server.base_url),
            sampling,
            concurrency=1,
            retry=replace(terms.retry, answer_timeout=1800.0),  # a slow machine is no failure
            cache=terms.cache,
            price=FREE,
            costs=terms.costs,
            identity=f"local:{path.name}",
        )
        return EndpointPlayer(name, endpoint, max_concurrency=1, on_close=server.close, limits=limits)
    endpoint = Endpoint(
        provider_format(spec.kind)(spec.target, spec.base_url or "", spec.api_key()),
        sampling,
        limits=terms.limits,
        concurrency=terms.concurrency,
        retry=terms.retry,
        cache=terms.cache,
        price=find_price(spec.target, terms.prices),
        costs=terms.costs,
    )
    return EndpointPlayer(spec.folder_name, endpoint, limits=limits)


def player_name(spec: AgentSpec, *, as_expert: bool = False) -> str:
    """The name in folders and tables, known without opening a connection or loading a model."""
    if spec.kind == "human":
        return "human"
    if spec.kind == "replay":
        return open_player(spec, Terms(), as_expert=as_expert).name
    if spec.kind == "local":
        return Path(spec.target).stem if spec.target else MODEL
    return spec.folder_name


def agent_stop_words(kind: str) -> tuple[str, ...]:
    """For the model under test, as the published agents for each kind of provider have them."""
    if kind == "anthropic":
        return (*_AGENT, "\n\nHuman:")
    words = tuple(f"\n{word}" for word in _AGENT)
    return (*words, "\nHuman:") if kind == "vllm" else words
