"""Agents for Python users: play tasks, and look at what was played as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError, InvalidParameterError
from histobench.core.files import check_writable
from histobench.core.records import checked, from_values
from histobench.core.renamed import Renamed, renamed_parameters
from histobench.mint.outcomes import read_all_outcomes
from histobench.mint.results.agent_comparison import compare_agents, side_by_name
from histobench.mint.results.episode_outcome import EpisodeOutcome, counted, mean_tokens
from histobench.mint.results.result_tables import group_rows, leaderboard
from histobench.mint.results.uncertainty import rate_interval
from histobench.mint.runs.play import no_display, play
from histobench.mint.runs.run_options import RunOptions

if TYPE_CHECKING:
    import pandas as pd

    from histobench.mint.runs.episode_queue import RunOutcome


class AgentRuns:
    """The episodes of agents in a folder, as tables; `run` and `open_runs` return one.

    Attributes
    ----------
    folder : Path
        Where the episodes are.
    outcome : RunOutcome or None
        How the run ended that returned this object; None for runs that were opened.
    complete : bool
        Whether every episode that was asked for has been played.

    Examples
    --------
    >>> from importlib.resources import files
    >>> import histobench as hb
    >>> recording = files("histobench.mint.runs") / "demo_recording"
    >>> hb.mint.open_runs(recording).leaderboard()["episodes"].tolist()
    [48]
    """

    def __init__(self, folder: str | Path, outcome: RunOutcome | None = None) -> None:
        self.folder = Path(folder)
        self.outcome = outcome
        self._all = list(read_all_outcomes(self.folder))
        self._outcomes = counted(self._all)

    @property
    def complete(self) -> bool:
        """Whether every episode that was asked for has been played."""
        return self.outcome is None or self.outcome.complete

    def episodes(self) -> pd.DataFrame:
        """Return every episode.

        Returns
        -------
        pandas.DataFrame
            One row per episode: model, feedback, k, task, success, outcome, actions, tokens. Episodes that
            could not be finished (provider failure, checker error) are included; the tables leave them out.
        """
        import pandas as pd

        return pd.DataFrame([asdict(outcome) for outcome in self._all])

    table = Renamed("to_frame")

    def to_frame(self) -> pd.DataFrame:
        """Return the success of each model with each expert at each k on each dataset.

        Returns
        -------
        pandas.DataFrame
            model, feedback_model, feedback_type, k, dataset, episodes, success, low, high (95 % interval over
            tasks), invalid (actions per episode) and tokens (per episode).
        """
        import pandas as pd

        groups: dict[tuple[Any, ...], list[EpisodeOutcome]] = {}
        for outcome in self._outcomes:
            key = (outcome.model, outcome.feedback_model, outcome.feedback_type, outcome.k, outcome.task)
            groups.setdefault(key, []).append(outcome)
        rows = []
        for key, members in sorted(groups.items()):
            interval = rate_interval(members)
            success, invalid = (
                sum(getattr(outcome, name) for outcome in members) / len(members)
                for name in ("success", "invalid")
            )
            numbers = (success, interval.low, interval.high, invalid, mean_tokens(members))
            rows.append((*key, len(members), *numbers))
        names = ["model", "feedback_model", "feedback_type", "k", "dataset"]
        return pd.DataFrame(rows, columns=[*names, "episodes", "success", "low", "high", "invalid", "tokens"])

    def leaderboard(self) -> pd.DataFrame:
        """Return one row per model, best first.

        Returns
        -------
        pandas.DataFrame
            model, SR1, SR2, ... (success in percent for each k), slope (per turn), episodes.
        """
        import pandas as pd

        rows = [
            {
                "model": standing.model,
                **{f"SR{k}": rate for k, rate in sorted(standing.rates.items())},
                "slope": standing.trend.slope if standing.trend else None,
                "episodes": standing.episodes,
            }
            for standing in leaderboard(self._outcomes)
        ]
        table = pd.DataFrame(rows)
        rates = [name for name in table if str(name).startswith("SR")]
        return table.sort_values(rates[-1], ascending=False, ignore_index=True) if rates else table

    def compare(self, first: str, second: str, *, k: int = 5) -> pd.DataFrame:
        """Compare two agents on the tasks that both have played.

        Parameters
        ----------
        first, second : str
            A model, or MODEL+EXPERT for a run with feedback (MODEL+EXPERT/KIND if an expert gave several
            kinds).
        k : int, default 5
            The budget: most actions of an episode.

        Returns
        -------
        pandas.DataFrame
            One row for all tasks, each family and each dataset: tasks (the group), n, first, second (success
            rates), difference, low, high (95 % interval, paired by task), p, p (Holm). The test is Student's
            t over tasks within datasets, with two tasks added of which each agent wins one (Bonett and Price
            2012): with few tasks p is larger than that of `scipy.stats.ttest_rel`.
        """
        import pandas as pd

        sides = side_by_name(
            self._outcomes,
            checked(str, first, "first"),
            checked(str, second, "second"),
            k=checked(int, k, "k", least=1),
        )
        compared = compare_agents(*sides)
        if not compared:
            raise HistobenchError(f"{first} and {second} have played fewer than two tasks in common")
        rows = [
            (
                *(row.group, row.tasks, row.first_rate, row.second_rate, row.difference.difference),
                *(row.difference.interval.low, row.difference.interval.high),
                *(row.difference.p_value, row.p_holm),
            )
            for row in compared
        ]
        names = ["tasks", "n", "first", "second", "difference", "low", "high", "p", "p (Holm)"]
        return pd.DataFrame(rows, columns=names)

    def __repr__(self) -> str:
        shown = [
            f"{row.model}: {row.rates[row.k]:.1f} % of {row.episodes} at k={row.k}"
            for row in group_rows(self._outcomes)
        ]
        reason = self.outcome.why_incomplete if self.outcome is not None else None
        missing = f"; incomplete: {reason}; run the same again" if reason else ""
        return f"AgentRuns in {self.folder} ({'; '.join(shown) or 'no episodes'}{missing})"

    def _repr_html_(self) -> str:
        html: str = self.to_frame().to_html(index=False, float_format="{:.3f}".format, na_rep="", escape=True)
        return html


@renamed_parameters(output="results")
def run(
    agent: str = "local:",
    tasks: str | Iterable[str] = "quickstart",
    *,
    k: int | str | Iterable[int] = "5",
    results: str | Path | None = None,
    limit: int | None = None,
    feedback: str = "none",
    max_cost: float | None = None,
    **options: Any,
) -> AgentRuns:
    """Let a language model solve tasks in several turns; an interrupted run continues.

    Parameters
    ----------
    agent : str, default "local:"
        The model: openai:MODEL, openai:MODEL@http://localhost:8000/v1, anthropic:MODEL, gemini:MODEL,
        local: (a small model that needs no key), local:FILE.gguf, replay:FILE, human.
    tasks : str or list of str, default "quickstart"
        Datasets or families, such as "reasoning" or ["gsm8k", "math"].
    k : int, str or list of int, default 5
        Most actions of an episode: a number, several, or text such as "1..5".
    results : str or Path, optional
        Folder of the results (default: mint-results).
    limit : int, optional
        Only the first N tasks of each dataset.
    feedback : str, default "none"
        Expert feedback: an agent, placebo or none.
    max_cost : float, optional
        Limit in dollars for all runs in the folder; a request that could exceed it is not sent.
    **options
        Further options; `histobench mint run --help` explains each of them:
        tasks: data, repeat, calls, config, rule, prompts, prompts_dir, wikipedia, sandbox, name;
        feedback: feedback_form, gt; limits: concurrency, episode_tokens, episode_cost, episode_seconds;
        sampling: max_tokens, temperature, top_p, seed, reasoning_effort, reasoning_history, constrain;
        provider: cache, prices, attempts, timeout, rpm, tpm.

    Returns
    -------
    AgentRuns
        All episodes in `results`. One that ended early says why in its `repr`.

    Examples
    --------
    >>> from importlib.resources import files
    >>> import tempfile, histobench as hb
    >>> recording = files("histobench.mint.runs") / "demo_recording"
    >>> agent = f"replay:{recording}/CodeActAgent-Mistral-7b-v0.1.k5.jsonl.gz"  # or openai:gpt-4o-mini
    >>> hb.mint.run(agent, "gsm8k", limit=1, data=recording, results=tempfile.mkdtemp()).complete
    True
    """
    if not agent:
        raise HistobenchError("`agent` is empty; name a model, such as openai:MODEL or local:")
    values = {
        **options,
        "agent": agent,
        "tasks": ",".join(checked(tuple[str, ...], tasks, "tasks")),
        "k": _budgets(k),
        "output": results,
        "limit": limit,
        "feedback": feedback,
        "max_cost": max_cost,
    }
    chosen = from_values(RunOptions, values, only=True)
    if chosen.output is not None:
        check_writable(Path(chosen.output), "results")
    played = play(chosen, no_display)
    if played.outcome.failed:
        raise HistobenchError(f"{played.outcome.why_incomplete}; finished episodes are in {played.output}")
    return AgentRuns(played.output, played.outcome)


def open_runs(folder: str | Path) -> AgentRuns:
    """Open runs of agents.

    Parameters
    ----------
    folder : str or Path
        A folder of results, recordings, or a table of outcomes.

    Returns
    -------
    AgentRuns

    Examples
    --------
    >>> from importlib.resources import files
    >>> import histobench as hb
    >>> recording = files("histobench.mint.runs") / "demo_recording"
    >>> len(hb.mint.open_runs(recording).episodes())
    48
    """
    return AgentRuns(checked(Path, folder, "folder"))


def table(results: AgentRuns | str | Path) -> pd.DataFrame:
    """Return the success of each model with each expert at each k on each dataset.

    Parameters
    ----------
    results : AgentRuns, str or Path
        What `run` or `open_runs` returned, or a folder.

    Returns
    -------
    pandas.DataFrame
        As `AgentRuns.to_frame`.

    Examples
    --------
    >>> from importlib.resources import files
    >>> import histobench as hb
    >>> recording = files("histobench.mint.runs") / "demo_recording"
    >>> hb.mint.table(recording)[["dataset", "k", "episodes"]].values.tolist()
    [['gsm8k', 5, 48]]
    """
    return (results if isinstance(results, AgentRuns) else open_runs(results)).to_frame()


def compare(results: AgentRuns | str | Path, first: str, second: str, *, k: int = 5) -> pd.DataFrame:
    """Compare two agents, or one with and without an expert, on the tasks that both have played.

    Parameters
    ----------
    results : AgentRuns, str or Path
        What `run` or `open_runs` returned, or a folder.
    first, second : str
        A model, or MODEL+EXPERT for a run with feedback (MODEL+EXPERT/KIND if an expert gave several kinds).
    k : int, default 5
        The budget: most actions of an episode.

    Returns
    -------
    pandas.DataFrame
        As `AgentRuns.compare`.

    Examples
    --------
    >>> from importlib.resources import files
    >>> import histobench as hb
    >>> recording, agent = files("histobench.mint.runs") / "demo_recording", "CodeActAgent-Mistral-7b-v0.1"
    >>> hb.mint.compare(recording, agent, agent)["difference"].tolist()  # usually with another agent
    [0.0, 0.0, 0.0]
    """
    return (results if isinstance(results, AgentRuns) else open_runs(results)).compare(first, second, k=k)


def _budgets(k: Any) -> str:
    """The largest numbers of actions as the command line writes them."""
    several = list(k) if isinstance(k, Iterable) and not isinstance(k, str | bytes | Mapping) else [k]
    if not several:
        raise InvalidParameterError("k: give at least one number")
    return ",".join(
        each if isinstance(each, str) else str(checked(int, each, "k", least=1)) for each in several
    )
