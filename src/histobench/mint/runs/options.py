"""What a run of agents may be told; the command line and Python take names and defaults from here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from histobench.core.errors import HistobenchError
from histobench.core.parameters import InvalidParameterError, flag, one_of, text
from histobench.mint.agents.completion import ReasoningHistory, Sampling
from histobench.mint.agents.limits import Balance
from histobench.mint.configs.cell import CALLS
from histobench.mint.envs.action import ACTION_GRAMMAR, SOLUTION_GRAMMAR
from histobench.mint.feedback.kind import Form

OUTPUT = "mint-results"
ANSWERS = "answers.sqlite"


@dataclass(frozen=True)
class RunOptions:
    """Who plays what, how, and where the episodes go; docs/how-to/agents.md tells each one's meaning."""

    agent: str | None = None
    tasks: str | None = None
    data: str | None = None
    k: str = "5"
    limit: int | None = None
    repeat: int = 1
    calls: str = "text"
    feedback: str = "none"
    output: str | None = None
    concurrency: int = 8
    max_cost: float | None = None
    episode_tokens: int | None = None
    episode_cost: float | None = None
    episode_seconds: float | None = None
    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    reasoning_history: ReasoningHistory = "provider"
    constrain: bool = False
    name: str | None = None
    config: str | None = None
    rule: str = "strict"
    prompts: str = "own"
    prompts_dir: str | None = None
    wikipedia: str = "live"
    sandbox: str = "auto"
    feedback_form: Form = "textual"
    gt: bool = False
    cache: str | None = None
    prices: str | None = None
    attempts: int = 10
    timeout: float = 300.0
    rpm: float | None = None
    tpm: float | None = None
    balance: Balance = "least-busy"
    batch: str | None = None

    @classmethod
    def of(cls, given: object) -> RunOptions:
        """From an object that has some of the options as attributes (parsed arguments); None is unsaid."""
        values = vars(given)
        known = {field.name: values.get(field.name) for field in fields(cls)}
        return cls(**{name: value for name, value in known.items() if value is not None})

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            object.__setattr__(self, name, _of_kind(getattr(self, name), f"`{name}`", kind))
        one_of(self.calls, "`calls`", CALLS)
        for name in ("concurrency", "repeat", "limit", "attempts", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise HistobenchError(f"`{name}` must be at least 1, not {value}")
        for name in ("max_cost", "episode_tokens", "episode_cost", "episode_seconds"):
            if (value := getattr(self, name)) is not None and not value > 0:  # also "nan"
                raise HistobenchError(f"`{name}` must be more than 0, not {value}")
        if not self.timeout > 0:  # also "nan"
            raise HistobenchError(f"`timeout` must be more than 0 seconds, not {self.timeout}")
        if not 0 <= self.temperature < float("inf"):
            raise HistobenchError(f"`temperature` must be 0 or more, not {self.temperature}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise HistobenchError(f"`top_p` must be more than 0 and at most 1, not {self.top_p}")
        if self.calls == "native" and self.prompts != "own":
            raise HistobenchError("`calls` native has words of its own; leave out `prompts` official")

    @property
    def sampling(self) -> Sampling:
        """How the model under test writes."""
        in_tags = self.constrain and self.calls == "text"
        return Sampling(
            self.temperature,
            self.max_tokens,
            top_p=self.top_p,
            seed=self.seed,
            reasoning_effort=self.reasoning_effort,
            reasoning_history=self.reasoning_history,
            grammar=ACTION_GRAMMAR if in_tags else None,
            last_grammar=SOLUTION_GRAMMAR if in_tags else None,
            must_call=self.constrain and not in_tags,
        )


def _of_kind(value: Any, name: str, kind: Any) -> Any:
    """The value, if it is of the kind that the option is declared with; NumPy's numbers become Python's.

    Options end up in names of folders and in files of settings, so that another kind would do harm there.
    """
    kinds = get_args(kind) if get_origin(kind) is not Literal else ()
    if value is None and NoneType in kinds:
        return None
    kind = next((each for each in kinds if each is not NoneType), kind)
    if get_origin(kind) is Literal:
        return one_of(value, name, get_args(kind))
    if kind is bool:
        return flag(value, name)
    if kind is str:
        return text(value, name)
    if kind not in (int, float):
        raise TypeError(f"{name} is declared as {kind!r}, which this check does not know")
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        raise InvalidParameterError(
            f"{name}: expected a {'whole ' if kind is int else ''}number, found {value!r}"
        )
    number: int | float = kind(value)
    return number
