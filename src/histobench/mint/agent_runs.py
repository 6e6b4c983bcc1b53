"""Agents for Python users: play tasks, and look at what was played as tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError
from histobench.core.parameters import (
    InvalidParameterError,
    file_path,
    folder_path,
    text,
    texts,
    whole_number,
)
from histobench.mint.exchange.reading import read_all_outcomes
from histobench.mint.results.outcome import EpisodeOutcome, counted
from histobench.mint.results.result_tables import group_rows, leaderboard
from histobench.mint.results.uncertainty import rate_interval
from histobench.mint.runs.options import RunOptions
from histobench.mint.runs.play import no_display, play

if TYPE_CHECKING:
    import pandas as pd

    from histobench.mint.runs.run import RunOutcome


class AgentRuns:
    """The episodes below a folder (or in a table of outcomes), as tables."""

    def __init__(self, folder: str | Path, outcome: RunOutcome | None = None) -> None:
        self.folder = Path(folder)
        #: How the run ended that made this object; None for runs that were opened.
        self.outcome = outcome
        self._all = list(read_all_outcomes(self.folder))
        self._outcomes = counted(self._all)

    @property
    def complete(self) -> bool:
        """Whether every episode that was asked for has been played."""
        return self.outcome is None or self.outcome.complete

    def episodes(self) -> pd.DataFrame:
        """One row per episode: model, feedback, k, task, success, outcome, actions, tokens.

        Episodes that could not be played to their end (provider failure, checker error) are among them; the
        tables leave them out.
        """
        import pandas as pd

        return pd.DataFrame([asdict(outcome) for outcome in self._all])

    def table(self) -> pd.DataFrame:
        """Success of each model with each expert at each k on each dataset.

        Columns: model, feedback_model, feedback_type, k, dataset, episodes, success, low, high (the 95 %
        interval over tasks), invalid (actions of an episode) and tokens (of an episode).
        """
        import pandas as pd

        groups: dict[tuple[Any, ...], list[EpisodeOutcome]] = {}
        for outcome in self._outcomes:
            key = (outcome.model, outcome.feedback_model, outcome.feedback_type, outcome.k, outcome.task)
            groups.setdefault(key, []).append(outcome)
        rows = []
        for key in sorted(groups):
            members = groups[key]
            interval = rate_interval(members)
            counted = [outcome.tokens for outcome in members if outcome.tokens is not None]
            rows.append(
                (
                    *key,
                    len(members),
                    sum(outcome.success for outcome in members) / len(members),
                    interval.low,
                    interval.high,
                    sum(outcome.invalid for outcome in members) / len(members),
                    sum(counted) / len(counted) if len(counted) == len(members) else None,
                )
            )
        names = ["model", "feedback_model", "feedback_type", "k", "dataset"]
        return pd.DataFrame(rows, columns=[*names, "episodes", "success", "low", "high", "invalid", "tokens"])

    def leaderboard(self) -> pd.DataFrame:
        """One row per model, best first: success in percent for each k, slope per turn, episodes."""
        import pandas as pd

        standings = leaderboard(self._outcomes)
        rows = [
            {
                "model": standing.model,
                **{f"SR{k}": rate for k, rate in sorted(standing.rates.items())},
                "slope": standing.trend.slope if standing.trend else None,
                "episodes": standing.episodes,
            }
            for standing in standings
        ]
        table = pd.DataFrame(rows)
        rates = [name for name in table if str(name).startswith("SR")]
        return table.sort_values(rates[-1], ascending=False, ignore_index=True) if rates else table

    def __repr__(self) -> str:
        shown = [
            f"{row.model}: {row.rates[row.k]:.1f} % of {row.episodes} at k={row.k}"
            for row in group_rows(self._outcomes)
        ]
        reason = self.outcome.why_incomplete if self.outcome is not None else None
        missing = f"; incomplete: {reason}; run the same again" if reason else ""
        return f"AgentRuns in {self.folder} ({'; '.join(shown) or 'no episodes'}{missing})"

    def _repr_html_(self) -> str:
        html: str = self.table().to_html(index=False, float_format="{:.3f}".format, na_rep="", escape=True)
        return html


def run(agent: str = "local:", tasks: str | Iterable[str] = "quickstart", **options: Any) -> AgentRuns:
    """Play tasks with an agent; a run that was stopped goes on where it was.

    A run that cannot go on (a wrong key, no such model, a checker that raises) raises `HistobenchError`; one
    that ended early for another reason says why in its `repr` and in `outcome.why_incomplete`.

    Parameters
    ----------
    agent : who plays: openai:MODEL, openai:MODEL@http://localhost:8000/v1, anthropic:MODEL, local:, ...
    tasks : datasets or families, such as "reasoning" or ["gsm8k", "math"]
    options : whatever `histobench mint run` has as a flag, with underscores: k (most actions of an episode: a
        number, several, or a text such as "1..5"; default 5), limit, repeat, calls, feedback, output, data,
        concurrency, max_cost, temperature, ...
    """
    values = {**options, "agent": text(agent, "agent"), "tasks": ",".join(texts(tasks, "tasks"))}
    if "k" in values:
        values["k"] = _budgets(values["k"])
    for name in ("output", "data", "config", "prices", "prompts_dir", "cache"):
        if isinstance(values.get(name), os.PathLike):
            values[name] = os.fspath(values[name])
    unknown = sorted(set(values) - set(RunOptions.__dataclass_fields__))
    if unknown:
        raise TypeError(f"run() got an unexpected keyword argument {unknown[0]!r}")
    chosen = RunOptions(**values)
    if chosen.output is not None:
        folder_path(chosen.output, "output")
    played = play(chosen, no_display)
    if played.outcome.failed:
        raise HistobenchError(f"{played.outcome.why_incomplete}; what was played is in {played.output}")
    return AgentRuns(played.output, played.outcome)


def open_runs(folder: str | Path) -> AgentRuns:
    """Runs that are there already: a folder of results, recordings, or a table of outcomes."""
    return AgentRuns(file_path(folder, "folder"))


def _budgets(k: Any) -> str:
    """The largest numbers of actions as the command line writes them."""
    several = list(k) if isinstance(k, Iterable) and not isinstance(k, str | bytes | Mapping) else [k]
    if not several:
        raise InvalidParameterError("k: give at least one number")
    return ",".join(
        each if isinstance(each, str) else str(whole_number(each, "k", least=1)) for each in several
    )
