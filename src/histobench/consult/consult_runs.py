"""Consult for Python users: prepare a study, let agents play it, look at the results as tables."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from histobench.consult.findings import StudyFindings, findings_of
from histobench.consult.playing import play
from histobench.consult.preparing import plan_study
from histobench.consult.preparing import prepare as prepare_study
from histobench.consult.reference_agents import POLICIES
from histobench.consult.study import KIND, RUNS, Study, read_contrasts, register_contrasts
from histobench.consult.study import open_study as read_study
from histobench.consult.study_plan import RUN_OPTIONS, ConsultRun, study_options
from histobench.core.errors import HistobenchError, InvalidParameterError
from histobench.core.files import check_writable
from histobench.core.records import check_keys, checked, from_values, values_from
from histobench.core.renamed import Renamed, renamed_parameters
from histobench.core.text import listed
from histobench.mint.runs.play import no_display
from histobench.mint.runs.run_options import CONSULT_MAX_TOKENS, RunOptions
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.data.source import load_dataset
from histobench.statistics.intervals import Interval

if TYPE_CHECKING:
    import pandas as pd

    from histobench.mint.runs.episode_queue import RunOutcome


class ConsultRuns:
    """The episodes of agents on a study, as tables; `run` and `open_runs` return one.

    Attributes
    ----------
    study : Study
        The study that was played.
    folder : Path
        Where the episodes are.
    outcome : RunOutcome or None
        How the run ended that returned this object; None for runs that were opened.
    findings : StudyFindings
        All numbers, as objects.
    agents : list of str
        The agents by their names in tables, reference agents last.

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> folder = tempfile.mkdtemp()
    >>> data = hb.demo_dataset(f"{folder}/tiles", train_per_class=6, test_per_class=3, size=64)
    >>> study = hb.consult.prepare(data, "tiny-vl", folder=f"{folder}/study", arms="none,strong", cases=6)
    >>> hb.consult.run(study, "policy:always-trust").to_frame()["arm"].unique().tolist()
    ['none', 'strong']
    """

    def __init__(self, study: Study, folder: str | Path, outcome: RunOutcome | None = None) -> None:
        self.study, self.folder, self.outcome = study, Path(folder), outcome

    @cached_property
    def findings(self) -> StudyFindings:
        return findings_of(self.study.folder, runs=self.folder)

    @property
    def agents(self) -> list[str]:
        return self.findings.agents

    table = Renamed("to_frame")

    def to_frame(self) -> pd.DataFrame:
        """Return every measure of every agent in every arm.

        Returns
        -------
        pandas.DataFrame
            One row per number: agent, arm, measure, value, low, high (95 % interval), cases. The measure
            "final" is the accuracy of the final answer, "u_right" and "u_wrong" how often the tool is
            followed when it is right and when it is wrong, "discrimination" their difference.
        """
        rows: list[Any] = []
        for line in self.findings.lines():
            values = {name: (each.value, *_bounds(each.interval)) for name, each in line.estimates.items()}
            values |= {name: (value, None, None) for name, value in line.plain.items()}
            rows += [(line.agent, line.arm, name, *found, line.cases) for name, found in values.items()]
        return _frame(rows, ["agent", "arm", "measure", "value", "low", "high", "cases"])

    def contrasts(self) -> pd.DataFrame:
        """Return the registered contrasts of every agent.

        Returns
        -------
        pandas.DataFrame
            agent, contrast, meaning, value, low, high, p, p (Holm), in_advance (registered before the agent
            played), reason (why there is no p-value).
        """
        rows = [
            (
                *(agent, found.name, found.words, found.value, *_bounds(found.interval)),
                *(found.p_value, found.adjusted, found.in_advance, found.reason),
            )
            for agent in self.agents
            for found in self.findings.contrasts(agent)
        ]
        numbers = ["value", "low", "high", "p", "p (Holm)"]
        return _frame(rows, ["agent", "contrast", "meaning", *numbers, "in_advance", "reason"])

    def compare(self, agent: str, other: str, *, arm: str | None = None) -> pd.DataFrame:
        """Compare two agents on the same cases.

        Parameters
        ----------
        agent, other : str
            Agents by their names in the table.
        arm : str, optional
            One arm (default: every arm that both have played).

        Returns
        -------
        pandas.DataFrame
            One row per arm and measure: arm, measure, difference (agent minus other), low, high (95 %
            interval, paired by case), p, p (Holm, over all rows).
        """
        agent, other = checked(str, agent, "agent"), checked(str, other, "other")
        rows = [
            (
                *(row.arm, row.measure, row.estimate.value, *_bounds(row.estimate.interval)),
                *(row.p_value, row.adjusted),
            )
            for row in self.findings.agents_compared(agent, other, arm=arm)
        ]
        return _frame(rows, ["arm", "measure", "difference", "low", "high", "p", "p (Holm)"])

    def __repr__(self) -> str:
        lines = [f"ConsultRuns in {self.folder}: {len(self.study.cases)} cases of {self.study.facts.dataset}"]
        for line in self.findings.lines():
            final = line.estimates["final"]
            low, high = _bounds(final.interval)
            bounds = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
            value = "-" if final.value is None else f"{final.value:.3f}{bounds}"
            lines.append(f"  {line.agent}, {line.arm}: final accuracy {value}, {line.cases} cases")
        reason = None if self.outcome is None else self.outcome.why_incomplete
        return "\n".join([*lines, *([f"  incomplete: {reason}; run the same again"] if reason else [])])

    def _repr_html_(self) -> str:
        shown = self.to_frame().query("measure in ['final', 'u_right', 'u_wrong', 'discrimination']")
        html: str = shown.to_html(index=False, float_format="{:.3f}".format, na_rep="", escape=True)
        return html


def _bounds(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _frame(rows: list[Any], columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    numbers = {"value", "difference", "low", "high", "p", "p (Holm)"} & set(columns)
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(numbers, float))


def prepare(
    data: Any,
    encoders: str | Iterable[str],
    *,
    folder: str | Path = "consult",
    arms: str | Iterable[str] = "default",
    cases: int = 300,
    seed: int = 0,
    **options: Any,
) -> Study:
    """Prepare a study: select cases, ask every encoder once, record the answers of all tools in all arms.

    The study can be shared without the images; playing it needs neither a GPU nor images.

    Parameters
    ----------
    data : Dataset, str or Path
        What `histobench.load_dataset` returned, a CSV file, a folder of class folders, TAR shards, or the
        name of a public dataset. It needs training, validation and test images.
    encoders : str or list of str
        One to three encoders in the order strong, weak, random, such as
        ["uni_v1", "efficientnet-lite0", "random-vit"].
    folder : str or Path, default "consult"
        Folder of the study.
    arms : str or list of str, default "default"
        Arms by name; "default" are those of the registered contrasts and each encoder's own, "all" is every
        one.
    cases : int, default 300
        Number of test regions.
    seed : int, default 0
        Seed of everything random.
    **options
        blind, organ, region, microns_per_pixel, prompts, measured, similarity, sequences, sequence_length,
        contrasts, size, weights, device, num_workers, precision, compile;
        `histobench consult prepare --help` explains each of them.

    Returns
    -------
    Study

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> folder = tempfile.mkdtemp()
    >>> data = hb.demo_dataset(f"{folder}/tiles", train_per_class=6, test_per_class=3, size=64)
    >>> study = hb.consult.prepare(data, "tiny-vl", folder=f"{folder}/study", arms="none,strong", cases=6)
    >>> len(study.cases), study.facts.arms
    (6, ('none', 'strong'))
    """
    names = tuple(part for each in checked(tuple[str, ...], encoders, "encoders") for part in listed(each))
    target = check_writable(checked(Path, folder, "folder"), "folder")
    values = {**options, "cases": cases, "seed": seed}
    check_keys(values, [each.name for each in study_options()])
    wanted = ",".join(checked(tuple[str, ...], arms, "arms"))
    plan = plan_study(names, wanted, values_from(study_options(), values, ""))
    dataset = getattr(data, "_roi", None)
    if isinstance(data, str | os.PathLike):
        dataset = load_dataset(checked(Path, data, "data"), seed=plan.seed)
    elif not isinstance(dataset, RoiDataset):
        raise InvalidParameterError(
            f"data: expected what hb.load_dataset returned, or a path, found {type(data).__name__}"
        )
    return prepare_study(dataset, plan, target)


@renamed_parameters(output="results")
def run(
    study: Study | str | Path,
    agent: str,
    *,
    arms: str | Iterable[str] = "all",
    results: str | Path | None = None,
    limit: int | None = None,
    outcomes: bool = False,
    pictures: bool = False,
    calls: Literal["text", "native"] | None = None,
    max_cost: float | None = None,
    **options: Any,
) -> ConsultRuns:
    """Let an agent play the cases of a study; an interrupted run continues.

    Parameters
    ----------
    study : Study, str or Path
        What `prepare` or `open_study` returned, or the folder of a study.
    agent : str
        A reference agent from `policies`, such as "policy:reader", or an agent of `histobench.mint.run`, such
        as "openai:gpt-4o-mini".
    arms : str or list of str, default "all"
        Arms of the study; "all" leaves out the arm with an expert.
    results : str or Path, optional
        Folder of the episodes (default: "runs" in the study).
    limit : int, optional
        A random sample of so many cases, stratified by class (in sequence arms: whole sequences).
    outcomes : bool, default False
        In sequence arms, tell the agent after each case whether its final answer was right.
    pictures : bool, default False
        The agent sees the region and may call look(box).
    calls : {"text", "native"}, optional
        How the agent acts: tags in its text, or function calls (default: text; policies call functions).
    max_cost : float, optional
        Dollars that all runs of the folder may cost together.
    **options
        expert (of the arm "expert"), repeat, name, and of `histobench.mint.run`: sandbox, concurrency,
        max_tokens (800), temperature, top_p, seed, reasoning_effort, reasoning_history, constrain, cache,
        prices, attempts, timeout, rpm, tpm.

    Returns
    -------
    ConsultRuns
        All episodes in `results`.

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> folder = tempfile.mkdtemp()
    >>> data = hb.demo_dataset(f"{folder}/tiles", train_per_class=6, test_per_class=3, size=64)
    >>> study = hb.consult.prepare(data, "tiny-vl", folder=f"{folder}/study", arms="none,strong", cases=6)
    >>> hb.consult.run(study, "policy:always-trust").agents
    ['policy-always-trust']
    """
    place = study.folder if isinstance(study, Study) else checked(Path, study, "study")
    expert = options.pop("expert", None)
    check_keys(options, (*RUN_OPTIONS, "expert"))
    values = {
        "max_tokens": CONSULT_MAX_TOKENS,
        **options,
        "agent": agent,
        "output": results,
        "limit": limit,
        "max_cost": max_cost,
    }
    playing = from_values(RunOptions, values, only=True)
    wanted = ConsultRun(
        str(place),
        playing,
        arms=",".join(checked(tuple[str, ...], arms, "arms")),
        calls=calls,
        pictures=pictures,
        expert=expert,
        outcomes=outcomes,
    )
    if playing.output is not None:
        check_writable(Path(playing.output), "results")
    played = play(wanted, display=no_display)
    if played.outcome.failed:
        raise HistobenchError(f"{played.outcome.why_incomplete}; finished episodes are in {played.output}")
    return ConsultRuns(read_study(place), played.output, played.outcome)


def open_study(folder: str | Path) -> Study:
    """Open a study that `prepare` wrote.

    Parameters
    ----------
    folder : str or Path
        The folder of the study.

    Returns
    -------
    Study

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> folder = tempfile.mkdtemp()
    >>> data = hb.demo_dataset(f"{folder}/tiles", train_per_class=6, test_per_class=3, size=64)
    >>> study = hb.consult.prepare(data, "tiny-vl", folder=f"{folder}/study", arms="none,strong", cases=6)
    >>> len(hb.consult.open_study(study.folder).cases)
    6
    """
    return read_study(checked(Path, folder, "folder"))


@renamed_parameters(runs="results")
def open_runs(study: Study | str | Path, *, results: str | Path | None = None) -> ConsultRuns:
    """Open the episodes that agents have played on a study.

    Parameters
    ----------
    study : Study, str or Path
        The study, or its folder.
    results : str or Path, optional
        Folder of the episodes (default: "runs" in the study).

    Returns
    -------
    ConsultRuns

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> folder = tempfile.mkdtemp()
    >>> data = hb.demo_dataset(f"{folder}/tiles", train_per_class=6, test_per_class=3, size=64)
    >>> study = hb.consult.prepare(data, "tiny-vl", folder=f"{folder}/study", arms="none,strong", cases=6)
    >>> _ = hb.consult.run(study, "policy:always-trust")
    >>> hb.consult.open_runs(study).agents
    ['policy-always-trust']
    """
    opened = study if isinstance(study, Study) else open_study(study)
    return ConsultRuns(opened, checked(Path, results or opened.folder / RUNS, "results"))


def register(study: Study | str | Path, file: str | Path) -> Study:
    """Register contrasts that the study is to make, with the time.

    The table says which were registered before an agent played.

    Parameters
    ----------
    study : Study, str or Path
        The study, or its folder.
    file : str or Path
        JSON file: a list such as [{"name": "dose", "measure": "u_wrong", "arm": "wrong-50",
        "against": "strong"}].

    Returns
    -------
    Study
        The study with its contrasts.

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> folder = tempfile.mkdtemp()
    >>> data = hb.demo_dataset(f"{folder}/tiles", train_per_class=6, test_per_class=3, size=64)
    >>> study = hb.consult.prepare(data, "tiny-vl", folder=f"{folder}/study", arms="none,strong", cases=6)
    >>> with open(f"{folder}/mine.json", "w") as file:
    ...     _ = file.write('[{"name": "gain", "measure": "final", "arm": "strong", "against": "none"}]')
    >>> [each.name for each in hb.consult.register(study, f"{folder}/mine.json").contrasts]
    ['over_tool', 'gain']
    """
    opened = study if isinstance(study, Study) else open_study(study)
    register_contrasts(opened.folder, read_contrasts(checked(Path, file, "file")), opened.facts.arms)
    return open_study(opened.folder)


def policies() -> pd.DataFrame:
    """List the reference agents, which need no language model.

    Returns
    -------
    pandas.DataFrame
        agent (as `run` takes it) and final_answer (how it chooses).

    Examples
    --------
    >>> import histobench as hb
    >>> hb.consult.policies()["agent"].tolist()[:3]
    ['policy:always-trust', 'policy:never-trust', 'policy:reader']
    """
    import pandas as pd

    rows = [(f"{KIND}:{name}", rule) for name, (rule, _) in POLICIES.items()]
    return pd.DataFrame(rows, columns=["agent", "final_answer"])
