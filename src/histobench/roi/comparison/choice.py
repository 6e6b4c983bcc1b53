"""Which encoder should I use: those that meet the user's conditions, and what the data say about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.comparison import CompareSettings, Comparison, DatasetTable, compare_runs
from histobench.roi.comparison.grids import Grid
from histobench.roi.comparison.robustness_tables import robustness_tables
from histobench.roi.comparison.selection import select_runs
from histobench.roi.data.sites import PAIR_COLUMN
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.own_name import combined_parts
from histobench.roi.encoders.registry import find_spec
from histobench.roi.results.reader import load_runs
from histobench.roi.results.robustness_files import load_robustness
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import PATIENT

LICENSES = ("any", "commercial")
#: In a results folder; the report shows it.
CHOICE_FILE = "choice.json"
#: Methods of the task Patient, the one that is taken first where several were run.
PATIENT_METHODS = ("abmil", "mean", "votes")
#: Licenses that allow commercial use, with what they ask for in return.
COMMERCIAL = {
    "Apache-2.0": "",
    "MIT": "",
    "BSD-3-Clause": "",
    "CC-BY-4.0": "",
    "GPL-3.0": "copyleft",
    "AGPL-3.0": "copyleft, also for services",
}
_NONCOMMERCIAL = re.compile(r"non-?commercial|\bNC\b|-NC|Commons Clause", re.IGNORECASE)


@dataclass(frozen=True)
class Conditions:
    """What an encoder must meet."""

    license: str = "any"
    max_params: int | None = None
    min_robustness: float | None = None

    def __post_init__(self) -> None:
        if self.license not in LICENSES:
            raise HistobenchError(f"license: {self.license!r} is not one of {', '.join(LICENSES)}")

    def words(self) -> str:
        said = []
        if self.license == "commercial":
            said.append("a license that allows commercial use")
        if self.max_params is not None:
            said.append(f"at most {shown_params(self.max_params)} parameters")
        if self.min_robustness is not None:
            said.append(f"a robustness index of at least {self.min_robustness:g}")
        return ", ".join(said) or "none"


@dataclass(frozen=True)
class Candidate:
    """One encoder with its evidence; `why_not` says which conditions it does not meet."""

    name: str
    license: str
    params: int | None
    robustness: float | None
    why_not: tuple[str, ...] = ()
    #: dataset -> value with the bounds of its interval
    values: dict[str, tuple[float, float | None, float | None]] = field(default_factory=dict)
    #: Datasets on which no other candidate is shown to be better.
    tied_best: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """The shortlist: `candidates` meet the conditions, `best` are those that the data do not tell apart."""

    conditions: str
    task: str
    metric: str
    datasets: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    excluded: tuple[Candidate, ...]
    best: tuple[str, ...]
    paragraph: str


def choose(
    results: Path,
    conditions: Conditions,
    *,
    task: str | None = None,
    preset: str | None = None,
    setting: str | None = None,
    metric: str = "balanced_accuracy",
    patients: bool = False,
) -> Choice:
    """Judge every encoder of a results folder by the conditions, and compare those that meet them.

    With `patients` they are compared by their predictions of patients (the task Patient; `setting` is its
    method).
    """
    stored = load_runs(results)
    if patients:
        task, setting = _patient_task(stored, task, setting)
    runs = select_runs(stored, task=task, preset=preset, setting=setting)
    presets = sorted({run.identity.preset for run in runs})
    if len(presets) > 1:
        raise HistobenchError(f"several presets ({', '.join(presets)}): choose one with `preset`")
    names = list(dict.fromkeys(run.identity.encoder for run in runs))
    robust = _robustness(results)
    everyone = [_judged(name, conditions, robust.get(name)) for name in names]
    left = {each.name for each in everyone if not each.why_not}
    kept = [run for run in runs if run.identity.encoder in left]
    comparison = compare_runs(kept, CompareSettings(metric)) if kept else None
    candidates = [_with_evidence(each, comparison) for each in everyone if not each.why_not]
    candidates.sort(key=lambda each: (-len(each.tied_best), -_mean(each, comparison), each.name))
    most = max((len(each.tied_best) for each in candidates), default=0)
    best = tuple(each.name for each in candidates if most and len(each.tied_best) == most)
    datasets = tuple(table.dataset for table in comparison.tables) if comparison is not None else ()
    excluded = tuple(each for each in everyone if each.why_not)
    choice = Choice(
        conditions.words(),
        f"{runs[0].task}, {runs[0].setting}" if runs[0].task == PATIENT else runs[0].task,
        metric,
        datasets,
        tuple(candidates),
        excluded,
        best,
        "",
    )
    return replace(choice, paragraph=_paragraph(choice))


def _patient_task(
    stored: Sequence[StoredRun], task: str | None, setting: str | None
) -> tuple[str, str | None]:
    """The task Patient and its method: the one asked for, else the first there is of `PATIENT_METHODS`."""
    if task not in (None, PATIENT):
        raise HistobenchError(f"patients: compared by the task {PATIENT}, not {task}; leave `task` out")
    methods = {run.setting for run in stored if run.task == PATIENT}
    if not methods:
        raise HistobenchError(
            f"no results per patient here; add {PATIENT} to the `tasks` of a run (images need a group column)"
        )
    return PATIENT, setting or next((name for name in PATIENT_METHODS if name in methods), None)


def commercial_use(licence: str) -> tuple[bool, str]:
    """Whether a license allows commercial use, and what to say about it.

    >>> commercial_use("MIT")
    (True, '')
    >>> commercial_use("CC-BY-NC-ND-4.0")
    (False, 'CC-BY-NC-ND-4.0 does not allow commercial use')
    >>> commercial_use("Health AI Developer Foundations terms of use")[0]
    False
    """
    if licence in COMMERCIAL:
        return True, COMMERCIAL[licence]
    if _NONCOMMERCIAL.search(licence):
        return False, f"{licence} does not allow commercial use"
    if licence in ("", "unstated", "unknown", "not stated"):
        return False, "its license is not known"
    return False, f"{licence} has terms of its own: read them"


def shown_params(count: int | None) -> str:
    """A number of parameters in millions.

    >>> shown_params(303_350_784), shown_params(None)
    ('303M', '?')
    """
    return "?" if count is None else f"{count / 1e6:.0f}M"


def read_params(text: str) -> int:
    """400M, 1.1B or a plain number.

    >>> read_params("400M"), read_params("1.1B")
    (400000000, 1100000000)
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kKmMbBgG]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise HistobenchError(f"max-params: expected a number such as 400M or 1.1B, found {text!r}")
    scale = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}[match[2].lower()]
    return round(float(match[1]) * scale)


def _judged(name: str, conditions: Conditions, robustness: float | None) -> Candidate:
    specs = [_spec(part) for part in combined_parts(name) or (name,)]
    licenses = [spec.licence if spec is not None else "unknown" for spec in specs]
    sizes = [spec.cost.params if spec is not None and spec.cost is not None else None for spec in specs]
    params = None if None in sizes else sum(size for size in sizes if size is not None)
    why = []
    if conditions.license == "commercial":
        why += [said for licence in licenses for allowed, said in (commercial_use(licence),) if not allowed]
    if conditions.max_params is not None:
        if params is None:
            why.append("its number of parameters is not known")
        elif params > conditions.max_params:
            why.append(f"{shown_params(params)} parameters")
    if conditions.min_robustness is not None:
        if robustness is None:
            why.append("its robustness was not measured (task Robustness)")
        elif robustness < conditions.min_robustness:
            why.append(f"robustness index {robustness:.3f}")
    return Candidate(name, " + ".join(dict.fromkeys(licenses)), params, robustness, tuple(dict.fromkeys(why)))


def _spec(name: str) -> EncoderSpec | None:
    # The license and the size are the encoder's, whoever computed the features.
    try:
        return find_spec(name.removesuffix("@elsewhere"))
    except HistobenchError:
        return None


def _robustness(results: Path) -> dict[str, float]:
    """The least robustness index of every encoder over datasets and site columns."""
    found: dict[str, float] = {}
    for table in robustness_tables(load_robustness(results)):
        for pack in table.packs:
            value = pack.value("robustness_index") if table.column != PAIR_COLUMN else None
            if value is not None:
                found[pack.encoder] = min(value, found.get(pack.encoder, value))
    return found


def _with_evidence(each: Candidate, comparison: Comparison | None) -> Candidate:
    values, tied = {}, []
    for table in comparison.tables if comparison is not None else ():
        entry = next((entry for entry in table.entries if entry.name == each.name), None)
        if entry is None or entry.value is None:
            continue
        values[table.dataset] = (entry.value, entry.interval.low, entry.interval.high)
        if each.name in tied_best(table):
            tied.append(table.dataset)
    return replace(each, values=values, tied_best=tuple(tied))


def tied_best(table: DatasetTable) -> set[str]:
    """The encoders of a table of which none is shown to be worse than another."""
    if table.standings is not None:
        return set(table.standings.best.listed())
    ranked = [entry.name for entry in table.entries if entry.value is not None]
    if not ranked:
        return set()
    found = {ranked[0]}
    for name in ranked[1:]:
        pair = table.pair(ranked[0], name)
        if pair is None or not pair.holds:
            found.add(name)
    return found


def _mean(each: Candidate, comparison: Comparison | None) -> float:
    if not each.values:
        return float("-inf")
    mean = sum(value for value, _, _ in each.values.values()) / len(each.values)
    return -mean if comparison is not None and comparison.lower_is_better else mean


def _paragraph(choice: Choice) -> str:
    total = len(choice.candidates) + len(choice.excluded)
    what = f"{choice.task}, {choice.metric.replace('_', ' ')}"
    said = [
        f"{total} encoders were evaluated with histobench ({what}). Conditions: {choice.conditions}; "
        f"{len(choice.candidates)} of {total} meet them."
    ]
    said.append(_finding(choice))
    left = "; ".join(f"{each.name}: {', '.join(each.why_not)}" for each in choice.excluded)
    if left:
        said.append(f"Excluded: {left}.")
    return " ".join(said)


def _finding(choice: Choice) -> str:
    """What the comparison of the candidates says."""
    if not choice.candidates:
        return "No encoder is left to choose from."
    if len(choice.candidates) == 1:
        return f"{choice.candidates[0].name} is the only one, so nothing was compared."
    count = len(choice.datasets)
    where = f"{count} dataset{'s' if count != 1 else ''} ({', '.join(choice.datasets)})"
    most = max(len(each.tied_best) for each in choice.candidates)
    names = _listed(choice.best)
    sure = "(95% confidence, paired and corrected for all pairs)"
    if len(choice.best) == 1 and most == count:
        others = [each.name for each in choice.candidates if each.tied_best and each.name != choice.best[0]]
        told = (
            f"{names} is the only one that may be the best on all of {where}, but it is not shown to be: "
            f"{_listed(others)} cannot be told apart from it on some"
            if others
            else f"On {where}, {names} is shown to be better than every other one of them"
        )
    elif most < count:
        told = (
            f"No encoder is among the best on all of {where}; on most of them ({most}): {names}, which does "
            "not show which one is better overall"
        )
    else:
        told = f"On {where}, the data do not tell {names} apart: each may be the best"
    return f"{told} {sure}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def choice_grid(choice: Choice) -> Grid:
    """The candidates as a table of text."""
    count = len(choice.datasets)
    rows = []
    for each in choice.candidates:
        mean = sum(value for value, _, _ in each.values.values()) / max(len(each.values), 1)
        single = next(iter(each.values.values()), None)
        text = f"{mean:.3f}" if each.values else "-"
        if len(each.values) == 1 and single is not None and single[1] is not None:
            text += f" [{single[1]:.3f}, {single[2]:.3f}]"
        robust = "-" if each.robustness is None else f"{each.robustness:.3f}"
        rows.append(
            (
                each.name,
                f"{len(each.tied_best)} of {count}",
                text,
                shown_params(each.params),
                robust,
                each.license,
            )
        )
    notes = [
        f"best: datasets on which no other of these is shown to be better; conditions: {choice.conditions}"
    ]
    notes += [f"excluded: {each.name}: {', '.join(each.why_not)}" for each in choice.excluded]
    notes.append("licenses: as the zoo states them; read the text before you rely on it")
    value = "value [95%]" if count == 1 else "mean value"
    return Grid(
        f"shortlist by {choice.task}, {choice.metric}",
        ("encoder", "best", value, "params", "robustness", "license"),
        tuple(rows),
        tuple(notes),
    )
