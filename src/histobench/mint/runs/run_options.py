"""The options of a run of agents. Flags, Python parameters, checks and help come from this record."""

from __future__ import annotations

from histobench.core.errors import HistobenchError, InvalidParameterError
from histobench.core.records import option, options_of, record
from histobench.mint.agents.completion import ReasoningHistory, Sampling
from histobench.mint.configs.cell import CALLS
from histobench.mint.envs.action import ACTION_GRAMMAR, SOLUTION_GRAMMAR
from histobench.mint.feedback.kind import Form

OUTPUT = "mint-results"
ANSWERS = "answers.sqlite"
#: What every request of runs in the folder cost, below the results.
SPENT = "spent.jsonl"
#: Tokens of one message in Consult by default: five messages are the 4,000 tokens of its protocol.
CONSULT_MAX_TOKENS = 800


_LIMITS, _WRITING = "limits", "advanced: how the model writes"
_PROTOCOL, _PROVIDER = "advanced: the protocol", "advanced: the provider"
_WHAT = "what is run"


@record
class RunOptions:
    """The options of a run of agents: the model, the tasks, the limits and the output folder."""

    agent: str | None = option(
        "the model under test", default=None, default_text="local:, a small model without a key"
    )
    tasks: str | None = option(
        "datasets or families of tasks, comma-separated", default=None, default_text="quickstart"
    )
    data: str | None = option(
        "folder of the datasets", default=None, default_text="data/processed", group=_WHAT
    )
    k: str = option("maximum number of actions in an episode: 5, or 1,3,5, or 1..5", default="5", group=_WHAT)
    limit: int | None = option("only the first N tasks of each dataset", default=None, least=1, group=_WHAT)
    repeat: int = option("play every task N times", default=1, least=1, group=_WHAT)
    calls: str = option(
        "how the model acts: tags in its text, as published (text), or function calls (native)",
        default="text",
        choices=CALLS,
        group=_WHAT,
    )
    feedback: str = option("expert feedback: an agent, placebo or none", default="none", group=_WHAT)
    output: str | None = option(
        "folder of the results",
        default=None,
        flag="--results",
        also=("-o",),
        old=("--output", "--out"),
        default_text=OUTPUT,
    )
    concurrency: int = option("episodes that run at the same time", default=8, least=1, group=_LIMITS)
    max_cost: float | None = option(
        "limit in dollars for all runs in the output folder; a request that could exceed it is not sent",
        default=None,
        above=0,
        group=_LIMITS,
    )
    episode_tokens: int | None = option(
        "limit for the tokens of one episode, input and output", default=None, above=0, group=_LIMITS
    )
    episode_cost: float | None = option(
        "limit in dollars for one episode", default=None, above=0, group=_LIMITS
    )
    episode_seconds: float | None = option(
        "limit in seconds for one episode", default=None, above=0, group=_LIMITS
    )
    max_tokens: int = option("maximum number of tokens in one message", default=512, least=1, group=_WRITING)
    temperature: float = option("sampling temperature", default=0.0, least=0, group=_WRITING)
    top_p: float | None = option(
        "nucleus sampling", default=None, above=0, most=1, default_text="the provider's", group=_WRITING
    )
    seed: int | None = option("seed of the sampling, if the provider has one", default=None, group=_WRITING)
    reasoning_effort: str | None = option(
        "low, medium, high, ...; temperature and stop words are not sent then", default=None, group=_WRITING
    )
    reasoning_history: ReasoningHistory = option(
        "which of its earlier reasoning the model receives: as the provider documents, none, or all",
        default="provider",
        group=_WRITING,
    )
    constrain: bool = option(
        "force every message to be a well-formed action: with a grammar (local: and llama.cpp servers), or "
        "with --calls native by requiring a function call",
        default=False,
        group=_WRITING,
    )
    name: str | None = option(
        "name of the agent in folders and tables", default=None, default_text="the model's", group=_PROTOCOL
    )
    config: str | None = option(
        "a configuration file, or a folder of them, instead of --tasks and --k", default=None, group=_PROTOCOL
    )
    rule: str = option("scoring rule", default="strict", choices=("strict", "published"), group=_PROTOCOL)
    prompts: str = option(
        "prompts of this package (own) or of the published benchmark (official)",
        default="own",
        choices=("own", "official"),
        group=_PROTOCOL,
    )
    prompts_dir: str | None = option(
        "a clone of the published benchmark, for --prompts official", default=None, group=_PROTOCOL
    )
    wikipedia: str = option("live, tape:FILE or folder:DIR", default="live", group=_PROTOCOL)
    sandbox: str = option(
        "the sandbox for code: auto, or one that `histobench doctor` lists", default="auto", group=_PROTOCOL
    )
    feedback_form: Form = option("form of the feedback", default="textual", group=_PROTOCOL)
    gt: bool = option("show the reference solution to the expert", default=False, group=_PROTOCOL)
    cache: str | None = option(
        "file of cached answers, or none",
        default=None,
        default_text=f"{ANSWERS} in the output folder",
        group=_PROVIDER,
    )
    prices: str | None = option(
        "YAML file of prices: MODEL: [input, output], dollars per million tokens",
        default=None,
        group=_PROVIDER,
    )
    attempts: int = option("attempts per request", default=10, least=1, group=_PROVIDER)
    timeout: float = option("seconds to wait for one answer", default=300.0, above=0, group=_PROVIDER)
    rpm: float | None = option(
        "limit of requests per minute, along with the provider's own", default=None, above=0, group=_PROVIDER
    )
    tpm: float | None = option(
        "limit of tokens per minute, along with the provider's own", default=None, above=0, group=_PROVIDER
    )

    @classmethod
    def of(cls, given: object) -> RunOptions:
        values = {each.name: getattr(given, each.name, None) for each in options_of(RunOptions)}
        return cls(**{name: value for name, value in values.items() if value is not None})

    def check(self) -> None:
        if self.temperature == float("inf"):
            raise InvalidParameterError("`temperature`: expected a finite number, found inf")
        if self.calls == "native" and self.prompts != "own":
            raise HistobenchError("`calls` native has prompts of its own; leave out `prompts` official")

    @property
    def sampling(self) -> Sampling:
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
