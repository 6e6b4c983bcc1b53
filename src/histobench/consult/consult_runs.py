"""Consult for Python users: prepare a study, let agents play it, look at the results as tables."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from histobench.consult.arms import parse_arms
from histobench.consult.findings import StudyFindings, findings_of
from histobench.consult.playing import play
from histobench.consult.preparing import prepare as prepare_study
from histobench.consult.reference_agents import KIND, RULES
from histobench.consult.study import RUNS, Study, read_contrasts, register_contrasts
from histobench.consult.study import open_study as read_study
from histobench.consult.study_plan import ConsultRun, StudyPlan, assign_roles, extraction_options
from histobench.core.errors import HistobenchError
from histobench.core.parameters import (
    InvalidParameterError,
    file_path,
    folder_path,
    text,
    texts,
)
from histobench.core.records import options_of
from histobench.core.renamed import Renamed
from histobench.mint.runs.play import no_display
from histobench.mint.runs.run_options import CONSULT_MAX_TOKENS, RunOptions
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.data.source import load_dataset
from histobench.roi.options import Settings

if TYPE_CHECKING:
    import pandas as pd

    from histobench.mint.runs.episode_queue import RunOutcome


class LoadedDataset(Protocol):
    """What `histobench.load_dataset` returns."""

    @property
    def roi(self) -> RoiDataset:
        """The images and their splits."""
        ...


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
    """

    def __init__(self, study: Study, folder: str | Path, outcome: RunOutcome | None = None) -> None:
        self.study, self.folder, self.outcome = study, Path(folder), outcome

    @cached_property
    def findings(self) -> StudyFindings:
        """All numbers, as objects."""
        return findings_of(self.study.folder, runs=self.folder)

    @property
    def agents(self) -> list[str]:
        """The agents by their names in tables, reference agents last."""
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
        import pandas as pd

        lines = self.findings.lines()
        rows: list[tuple[Any, ...]] = [
            (line.agent, line.arm, name, found.value, found.interval.low, found.interval.high, line.cases)
            for line in lines
            for name, found in line.estimates.items()
        ]
        rows += [
            (line.agent, line.arm, name, value, None, None, line.cases)
            for line in lines
            for name, value in line.plain.items()
        ]
        frame = pd.DataFrame(rows, columns=["agent", "arm", "measure", "value", "low", "high", "cases"])
        return frame.astype({"value": float, "low": float, "high": float})

    def contrasts(self) -> pd.DataFrame:
        """Return the registered contrasts of every agent.

        Returns
        -------
        pandas.DataFrame
            agent, contrast, meaning, value, low, high, p, p (Holm), in_advance (registered before the agent
            played), reason (why there is no p-value).
        """
        import pandas as pd

        rows = [
            (
                agent,
                found.name,
                found.words,
                found.value,
                None if found.interval is None else found.interval.low,
                None if found.interval is None else found.interval.high,
                found.p_value,
                found.adjusted,
                found.in_advance,
                found.reason,
            )
            for agent in self.agents
            for found in self.findings.contrasts(agent)
        ]
        numbers = ["value", "low", "high", "p", "p (Holm)"]
        frame = pd.DataFrame(rows, columns=["agent", "contrast", "meaning", *numbers, "in_advance", "reason"])
        return frame.astype(dict.fromkeys(numbers, float))

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
        import pandas as pd

        rows = [
            (
                row.arm,
                row.measure,
                row.estimate.value,
                row.estimate.interval.low,
                row.estimate.interval.high,
                row.p_value,
                row.adjusted,
            )
            for row in self.findings.agents_compared(text(agent, "agent"), text(other, "other"), arm=arm)
        ]
        numbers = ["difference", "low", "high", "p", "p (Holm)"]
        return pd.DataFrame(rows, columns=["arm", "measure", *numbers]).astype(dict.fromkeys(numbers, float))

    def __repr__(self) -> str:
        lines = [f"ConsultRuns in {self.folder}: {len(self.study.cases)} cases of {self.study.facts.dataset}"]
        for line in self.findings.lines():
            final = line.estimates["final"]
            low, high = final.interval.low, final.interval.high
            bounds = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
            value = "-" if final.value is None else f"{final.value:.3f}{bounds}"
            lines.append(f"  {line.agent}, {line.arm}: final accuracy {value}, {line.cases} cases")
        reason = None if self.outcome is None else self.outcome.why_incomplete
        return "\n".join([*lines, *([f"  incomplete: {reason}; run the same again"] if reason else [])])

    def _repr_html_(self) -> str:
        shown = self.to_frame().query("measure in ['final', 'u_right', 'u_wrong', 'discrimination']")
        html: str = shown.to_html(index=False, float_format="{:.3f}".format, na_rep="", escape=True)
        return html


def prepare(
    data: LoadedDataset | str | Path,
    encoders: str | Iterable[str],
    *,
    folder: str | Path = "consult",
    arms: str | Iterable[str] = "default",
    # The options below are written by scripts/write_signatures.py from the records.
    cases: int = 300,
    seed: int = 0,
    blind: bool = False,
    organ: str = "",
    region: str = "a tissue region, stained with haematoxylin and eosin",
    microns_per_pixel: float | None = None,
    prompts: str | Path | None = None,
    measured: int = 50,
    similarity: Literal["percentile", "none"] = "percentile",
    sequences: int = 8,
    sequence_length: int = 40,
    contrasts: str | Path | None = None,
    size: int | None = None,
    weights: str | Path | None = None,
    device: str | None = None,
    num_workers: int = 8,
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
    compile: Literal["auto", "on", "off"] = "auto",
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
    blind : bool, default False
        Call the classes "class A", "class B" and so on.
    organ : str, default ""
        Organ named in the prompt.
    region : str, default "a tissue region, stained with haematoxylin and eosin"
        Description of the picture in the prompt.
    microns_per_pixel : float, optional
        Resolution, if known.
    prompts : str or Path, optional
        Prompt file; adds the tool zero_shot() if every encoder has a text tower.
    measured : int, default 50
        Regions of each class that are measured for the tool typical().
    similarity : {"percentile", "none"}, default "percentile"
        What the tool neighbours() reports about the nearest one.
    sequences : int, default 8
        Sequences of the sequence arms.
    sequence_length : int, default 40
        Cases in each sequence.
    contrasts : str or Path, optional
        JSON file of contrasts to register (default: the protocol's four).
    size : int, optional
        Image size in pixels as the encoder sees it (default: the encoder's own).
    weights : str or Path, optional
        Checkpoint, folder of checkpoints, or table such as model_weights.json.
    device : str, optional
        Device: cpu, cuda:0, mps, or several: cuda:0,cuda:1 (default: the GPU if there is one).
    num_workers : int, default 8
        Processes that load images, at most one per core.
    precision : {"auto", "fp32", "bf16", "fp16"}, default "auto"
        Numeric precision; auto follows the encoder's authors on a GPU and uses fp32 on a CPU.
    compile : {"auto", "on", "off"}, default "auto"
        Compile the network; auto: for long jobs.

    Returns
    -------
    Study
    """
    given = dict(locals())
    names = tuple(name.strip() for each in texts(encoders, "encoders") for name in each.split(",") if name)
    chosen = tuple(parse_arms(",".join(texts(arms, "arms")), list(assign_roles(names))))
    target = folder_path(folder, "folder")
    settings = Settings(**{each.name: given[each.name] for each in extraction_options()})
    options = {each.name: given[each.name] for each in options_of(StudyPlan)}
    options["weights"] = None if weights is None else os.fspath(weights)
    plan = StudyPlan(names, chosen, **options, settings=settings)
    return prepare_study(_images(data, plan.seed), plan, target)


def _images(data: Any, seed: int) -> RoiDataset:
    if isinstance(data, str | os.PathLike):
        return load_dataset(file_path(data, "data"), seed=seed)
    dataset = getattr(data, "roi", None)
    if not isinstance(dataset, RoiDataset):
        raise InvalidParameterError(
            f"data: expected what hb.load_dataset returned, or a path, found {type(data).__name__}"
        )
    return dataset


def run(
    study: Study | str | Path,
    agent: str,
    *,
    arms: str | Iterable[str] = "all",
    limit: int | None = None,
    outcomes: bool = False,
    repeat: int = 1,
    calls: Literal["text", "native"] | None = None,
    pictures: bool = False,
    expert: str | None = None,
    name: str | None = None,
    output: str | Path | None = None,
    sandbox: str = "auto",
    concurrency: int = 8,
    max_cost: float | None = None,
    max_tokens: int = CONSULT_MAX_TOKENS,
    # The options below are written by scripts/write_signatures.py from the records.
    temperature: float = 0.0,
    top_p: float | None = None,
    seed: int | None = None,
    reasoning_effort: str | None = None,
    reasoning_history: Literal["provider", "none", "all"] = "provider",
    constrain: bool = False,
    cache: str | Path | None = None,
    prices: str | Path | None = None,
    attempts: int = 10,
    timeout: float = 300.0,
    rpm: float | None = None,
    tpm: float | None = None,
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
    limit : int, optional
        A random sample of so many cases, stratified by class (in sequence arms: whole sequences).
    outcomes : bool, default False
        In sequence arms, tell the agent after each case whether its final answer was right.
    repeat : int, default 1
        Play everything so many times.
    calls : {"text", "native"}, optional
        How the agent acts: tags in its text, or function calls (default: text; policies: native).
    pictures : bool, default False
        The agent sees the region and may look(box).
    expert : str, optional
        The agent that gives feedback in the arm "expert".
    name : str, optional
        The agent's name in folders and tables (default: the model's).
    output : str or Path, optional
        Folder of the episodes (default: "runs" in the study).
    sandbox : str, default "auto"
        Where the model's code runs; `histobench doctor` lists the choices.
    concurrency : int, default 8
        Episodes at a time.
    max_cost : float, optional
        Dollars that all runs of the folder may cost together.
    max_tokens : int, default 800
        Most tokens of one message.
    temperature : float, default 0.0
        Sampling temperature.
    top_p : float, optional
        Nucleus sampling (default: the provider's).
    seed : int, optional
        Seed of the sampling, if the provider has one.
    reasoning_effort : str, optional
        Low, medium, high, ...; temperature and stop words are not sent then.
    reasoning_history : {"provider", "none", "all"}, default "provider"
        Which of its earlier reasoning the model receives: as the provider documents, none, or all.
    constrain : bool, default False
        Force every message to be a well-formed action: with a grammar (local: and llama.cpp servers), or with
        `calls` native by requiring a function call.
    cache : str or Path, optional
        File of cached answers, or none (default: answers.sqlite in the output folder).
    prices : str or Path, optional
        YAML file of prices: MODEL: [input, output], dollars per million tokens.
    attempts : int, default 10
        Attempts per request.
    timeout : float, default 300.0
        Seconds to wait for one answer.
    rpm : float, optional
        Limit of requests per minute, besides the provider's own.
    tpm : float, optional
        Limit of tokens per minute, besides the provider's own.

    Returns
    -------
    ConsultRuns
        All episodes in `output`.

    Raises
    ------
    HistobenchError
        If a parameter is wrong, or if the run cannot continue.

    Examples
    --------
    >>> import histobench as hb
    >>> runs = hb.consult.run("study", "policy:reader", arms="none,strong")  # doctest: +SKIP
    >>> hb.consult.table(runs)  # doctest: +SKIP
    """
    given = dict(locals())
    place = _folder(study)
    for path in ("output", "cache", "prices"):
        if isinstance(given[path], os.PathLike):
            given[path] = os.fspath(given[path])
    shared = {key: given[key] for key in given if key in RunOptions.__dataclass_fields__}
    options = RunOptions(**{key: value for key, value in shared.items() if key != "calls"})
    wanted = ConsultRun(
        str(place),
        options,
        arms=",".join(texts(arms, "arms")),
        calls=calls,
        pictures=pictures,
        expert=expert,
        outcomes=outcomes,
    )
    if options.output is not None:
        folder_path(options.output, "output")
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
    """
    return read_study(file_path(folder, "folder"))


def open_runs(study: Study | str | Path, *, runs: str | Path | None = None) -> ConsultRuns:
    """Open the episodes that agents have played on a study.

    Parameters
    ----------
    study : Study, str or Path
        The study, or its folder.
    runs : str or Path, optional
        Folder of the episodes (default: "runs" in the study).

    Returns
    -------
    ConsultRuns
    """
    opened = study if isinstance(study, Study) else open_study(study)
    return ConsultRuns(opened, opened.folder / RUNS if runs is None else file_path(runs, "runs"))


def table(study: ConsultRuns | Study | str | Path, *, runs: str | Path | None = None) -> pd.DataFrame:
    """Return every measure of every agent in every arm.

    Parameters
    ----------
    study : ConsultRuns, Study, str or Path
        What `run` returned, the study, or its folder.
    runs : str or Path, optional
        Folder of the episodes (default: "runs" in the study).

    Returns
    -------
    pandas.DataFrame
        As `ConsultRuns.table`.
    """
    return _opened(study, runs).to_frame()


def contrasts(study: ConsultRuns | Study | str | Path, *, runs: str | Path | None = None) -> pd.DataFrame:
    """Return the registered contrasts of every agent.

    Parameters
    ----------
    study : ConsultRuns, Study, str or Path
        What `run` returned, the study, or its folder.
    runs : str or Path, optional
        Folder of the episodes (default: "runs" in the study).

    Returns
    -------
    pandas.DataFrame
        As `ConsultRuns.contrasts`.
    """
    return _opened(study, runs).contrasts()


def compare(
    study: ConsultRuns | Study | str | Path,
    agent: str,
    other: str,
    *,
    arm: str | None = None,
    runs: str | Path | None = None,
) -> pd.DataFrame:
    """Compare two agents on the same cases.

    Parameters
    ----------
    study : ConsultRuns, Study, str or Path
        What `run` returned, the study, or its folder.
    agent, other : str
        Agents by their names in the table.
    arm : str, optional
        One arm (default: every arm that both have played).
    runs : str or Path, optional
        Folder of the episodes (default: "runs" in the study).

    Returns
    -------
    pandas.DataFrame
        As `ConsultRuns.compare`.
    """
    return _opened(study, runs).compare(agent, other, arm=arm)


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
    """
    opened = open_study(_folder(study))
    register_contrasts(opened.folder, read_contrasts(file_path(file, "file")), opened.facts.arms)
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

    rows = [(f"{KIND}:{name}", rule) for name, rule in RULES.items()]
    return pd.DataFrame(rows, columns=["agent", "final_answer"])


def _folder(study: Any) -> Path:
    return study.folder if isinstance(study, Study) else file_path(study, "study")


def _opened(study: ConsultRuns | Study | str | Path, runs: str | Path | None) -> ConsultRuns:
    if isinstance(study, ConsultRuns):
        return study
    return open_runs(study, runs=runs)
