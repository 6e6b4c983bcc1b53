"""Which encoder should I use: those that meet the user's conditions, and what the data say about them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_note
from histobench.roi.comparison.answer import LEFT_OUT, Answer, Evidence, Value, answer, listed_names
from histobench.roi.comparison.comparison import compare_runs
from histobench.roi.comparison.comparison_files import grid_text
from histobench.roi.comparison.grids import Grid
from histobench.roi.comparison.robustness_tables import robustness_tables
from histobench.roi.comparison.selection import by_dataset, distinct_names, select_runs
from histobench.roi.comparison.splits_compared import SplitTable, compare_splits, evidence_with_splits
from histobench.roi.data.sites import PAIR_COLUMN
from histobench.roi.encoders.encoder_spec import Facts
from histobench.roi.encoders.own_name import combined_parts
from histobench.roi.encoders.registry import known_spec
from histobench.roi.metrics.metric_catalogue import LOWER_IS_BETTER
from histobench.roi.options import LEAVE_ONE_GROUP_OUT, Origin
from histobench.roi.result_options import ChooseOptions, CompareSettings, Conditions
from histobench.roi.results.reader import load_runs, split_runs
from histobench.roi.results.robustness_files import load_robustness
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import PATIENT

if TYPE_CHECKING:
    import pandas as pd

#: In a results folder; the report shows it.
CHOICE_FILE = "choice.json"
#: In a results folder: how each dataset was read.
DATASETS = "datasets.json"
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
class Candidate:
    """One encoder with its evidence; `why_not` says which conditions it does not meet."""

    name: str
    license: str
    params: int | None  # of the image tower, which computes the features
    robustness: float | None
    why_not: tuple[str, ...] = ()
    #: dataset -> value with the bounds of its interval
    values: dict[str, Value] = field(default_factory=dict)
    #: Datasets that were tested and on which no other candidate is shown to be better.
    tied_best: tuple[str, ...] = ()
    text_params: int = 0
    obligations: str = ""  # what the license asks for in return


@dataclass(frozen=True, repr=False)
class Choice:
    """The shortlist: `candidates` meet the conditions.

    `best` may be the best on every dataset that was `tested`; it is empty where nothing was tested, or where
    no encoder may be the best on all. `missing` names the runs that are missing, with their commands.
    """

    conditions: str
    task: str
    metric: str
    datasets: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    excluded: tuple[Candidate, ...]
    best: tuple[str, ...]
    paragraph: str
    tested: tuple[str, ...] = ()
    tested_metric: str = ""
    missing: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "\n".join([*([grid_text(choice_grid(self))] if self.candidates else []), self.paragraph])

    def to_frame(self) -> pd.DataFrame:
        """Return one row per encoder: what the report's table of choices shows, and why some are excluded."""
        import pandas as pd

        rows = [
            {
                "encoder": each.name,
                "best": each.name in self.best,
                **{dataset: each.values.get(dataset, (None,))[0] for dataset in self.datasets},
                "params": each.params,
                "robustness": each.robustness,
                "license": each.license,
                "excluded": ", ".join(each.why_not),
            }
            for each in (*self.candidates, *self.excluded)
        ]
        return pd.DataFrame(rows)


def choose(results: Path, options: ChooseOptions) -> Choice:
    """Judge every encoder of a results folder by the conditions, and compare those that meet them."""
    stored = load_runs(results)
    task, setting, metric = options.task, options.setting, options.metric
    if options.patients or task == PATIENT:
        task, setting = _patient_task(stored, task, setting)
    runs = select_runs(stored, task=task, preset=options.preset, setting=setting)
    presets = sorted({run.identity.preset for run in runs})
    if len(presets) > 1:
        raise HistobenchError(f"several presets ({', '.join(presets)}): choose one with `preset`")
    robust = _robustness(results)
    tables = {dataset: distinct_names(members) for dataset, members in by_dataset(runs).items()}
    everyone = [
        _judged(name, options, robust.get(_plain(name)))
        for name in dict.fromkeys(name for named in tables.values() for name in named)
    ]
    left = {_plain(each.name) for each in everyone if not each.why_not}
    kept = [run for run in runs if run.identity.encoder in left]
    comparison = compare_runs(kept, CompareSettings(metric)) if kept else None
    evidence: list[Evidence] = []
    if comparison is not None:
        evidence = evidence_with_splits(comparison, _split_tables(results, kept, metric))
        metric = comparison.metric
    shown_task = f"{runs[0].task}, {runs[0].setting}" if runs[0].task == PATIENT else runs[0].task
    found = answer(evidence, task=runs[0].task, metric=metric, setting=runs[0].setting)
    candidates = [_with_evidence(each, evidence) for each in everyone if not each.why_not]
    sign = 1 if metric in LOWER_IS_BETTER else -1

    def order(each: Candidate) -> tuple[bool, int, float, str]:
        mean = sign * _mean(each) if each.values else float("inf")
        return each.name not in found.best, -len(each.tied_best), mean, each.name

    candidates.sort(key=order)
    excluded = tuple(each for each in everyone if each.why_not)
    known = options.words(), shown_task, metric, tuple(tables), tuple(candidates), excluded, found.best, ""
    choice = Choice(*known, found.tested, found.metric, tuple(_missing(results, runs, tables, candidates)))
    return replace(choice, paragraph=_paragraph(choice, found))


def _plain(name: str) -> str:
    """The encoder of a name in a table, where several runs of one are `name [what differs]`."""
    return name.partition(" [")[0]


def _split_tables(results: Path, kept: Sequence[StoredRun], metric: str) -> list[SplitTable]:
    """The tables over splits of the same encoders, task and setting; none where there are no splits."""
    first, encoders = kept[0], {run.identity.encoder for run in kept}
    try:
        runs = [
            run
            for run in split_runs(results)
            if (run.task, run.setting, run.identity.preset)
            == (first.task, first.setting, first.identity.preset)
            and run.identity.encoder in encoders
            and run.info["split"]["scheme"] != LEAVE_ONE_GROUP_OUT
        ]
        return compare_splits(runs, metric=metric) if runs else []
    except (HistobenchError, OSError):  # no splits, or splits that cannot be compared: the test set decides
        return []


def _missing(
    results: Path,
    runs: Sequence[StoredRun],
    tables: Mapping[str, Mapping[str, StoredRun]],
    candidates: Sequence[Candidate],
) -> Iterator[str]:
    for dataset, named in tables.items():
        absent = [each.name for each in candidates if each.name not in named]
        if absent:
            command = run_command(results, dataset, absent, runs[0])
            verb = "was" if len(absent) == 1 else "were"
            yield f"{listed_names(absent)} {verb} not run on {dataset}: `{command}`"


def run_command(
    results: Path,
    dataset: str,
    names: Sequence[str],
    like: StoredRun,
    *,
    splits: str = "",
    seen_from: Path | None = None,
) -> str:
    """The command that runs encoders, by their names in a table, on a dataset of a results folder.

    Task, preset and seed are those of the run `like`. `seen_from`: the folder that paths are relative to.
    """
    note = (read_note(results / DATASETS) or {}).get(dataset) or {}
    outside = [name.removesuffix("@elsewhere") for name in names if name.endswith("@elsewhere")]

    def path(name: Any) -> Any:
        seen = seen_from is not None and name and os.path.isabs(name)
        return os.path.relpath(name, seen_from) if seen else name

    flags = {
        "data": path(note.get("source", dataset)),
        "classes": path(note.get("classes_file")),
        **{each.name: note.get(each.name) for each in fields(Origin)},
        "encoders": ",".join(name for name in map(_plain, names) if not name.endswith("@elsewhere")),
        "features": ",".join(f"{name}=FILE" for name in outside),
        "seed": like.identity.seed,
        "tasks": like.task,
        "presets": like.identity.preset,
        "splits": splits,
        "on_bad_image": "skip" if any(LEFT_OUT in text for text in like.caveats) else "",
        "results": path(str(results)),
    }
    command = ["histobench", "run"]
    for key, value in flags.items():
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        command += [f"--{key.replace('_', '-')}", text] if value else []
    return shlex.join(command)


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


def commercial_use(license: str, facts: Facts | None = None) -> tuple[str, str]:
    """Whether a license allows commercial use (allowed, restricted or unclear), and why not.

    >>> commercial_use("CC-BY-NC-ND-4.0")
    ('restricted', 'CC-BY-NC-ND-4.0 does not allow commercial use')
    """
    if facts is not None and facts.why:
        return facts.commercial, f"{license}, but {facts.why}"
    if license in COMMERCIAL:
        return "allowed", ""
    if _NONCOMMERCIAL.search(license):
        return "restricted", f"{license} does not allow commercial use"
    if license in ("", "unstated", "unknown", "not stated"):
        return "unclear", "its license is not known"
    return "unclear", f"{license} is a custom license; read its terms"


def shown_params(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e6:.0f}M"


def _judged(name: str, conditions: Conditions, robustness: float | None) -> Candidate:
    # The license and the size are the encoder's, also for features from elsewhere.
    parts = combined_parts(_plain(name)) or (_plain(name),)
    specs = [known_spec(part.removesuffix("@elsewhere")) for part in parts]
    licenses = dict.fromkeys(spec.license if spec is not None else "unknown" for spec in specs)
    costs = [None if spec is None else spec.cost for spec in specs]
    known = [cost for cost in costs if cost is not None]
    params = sum(cost.params for cost in known) if len(known) == len(costs) else None
    why = []
    if conditions.license != "any":
        enough = ("allowed",) if conditions.license == "commercial" else ("allowed", "unclear")
        uses = [commercial_use(*(spec.license, spec.facts) if spec else ("unknown",)) for spec in specs]
        why += [said for use, said in uses if use not in enough]
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
    return Candidate(
        name,
        " + ".join(licenses),
        params,
        robustness,
        tuple(dict.fromkeys(why)),
        text_params=sum(cost.text_params for cost in known),
        obligations=", ".join(filter(None, (COMMERCIAL.get(license, "") for license in licenses))),
    )


def _robustness(results: Path) -> dict[str, float]:
    """The least robustness index of every encoder over datasets and site columns."""
    found: dict[str, float] = {}
    for table in robustness_tables(load_robustness(results)):
        for pack in table.packs:
            value = pack.value("robustness_index") if table.column != PAIR_COLUMN else None
            if value is not None:
                found[pack.encoder] = min(value, found.get(pack.encoder, value))
    return found


def _with_evidence(each: Candidate, evidence: Sequence[Evidence]) -> Candidate:
    values = {found.dataset: found.values[each.name] for found in evidence if each.name in found.values}
    # Where the metric could not be tested, accuracy may have been.
    judged = [found.instead or found for found in evidence]
    best = tuple(found.dataset for found in judged if each.name in found.may_be_best)
    return replace(each, values=values, tied_best=best)


def _mean(each: Candidate) -> float:
    return sum(value for value, _, _ in each.values.values()) / len(each.values)


def _paragraph(choice: Choice, found: Answer) -> str:
    total, left = len(choice.candidates) + len(choice.excluded), len(choice.candidates)
    who = "1 encoder was" if total == 1 else f"{total} encoders were"
    said = [f"{who} evaluated with histobench by {choice.task}."]
    if choice.conditions != "none":
        meet = "meets" if left == 1 else "meet"
        said.append(f"Conditions: {choice.conditions}; {left} of {total} {meet} them.")
    if not choice.candidates:
        said.append("No encoder is left to choose from.")
    elif left == 1:
        said.append(f"{choice.candidates[0].name} is the only one, so nothing was compared.")
    else:
        said.append(found.text)
    if found.tested and left > 1:
        said.append("Tests are paired, and corrected for all pairs of encoders of a dataset.")
    said += [f"{text}." for text in choice.missing]
    excluded = "; ".join(f"{each.name}: {', '.join(each.why_not)}" for each in choice.excluded)
    said += [f"Excluded: {excluded}."] if excluded else []
    owed = "; ".join(f"{e.name}: {e.license} ({e.obligations})" for e in choice.candidates if e.obligations)
    said += [f"License obligations: {owed}."] if owed else []
    return " ".join(said)


def choice_grid(choice: Choice) -> Grid:
    count = len(choice.datasets)
    measured = any(each.robustness is not None for each in choice.candidates)
    rows = []
    for each in choice.candidates:
        text = f"{_mean(each):.3f}" if each.values else "-"
        single = next(iter(each.values.values()), None)
        if count == 1 and single is not None and single[1] is not None:
            text += f" [{single[1]:.3f}, {single[2]:.3f}]"
        elif 0 < len(each.values) < count:
            text += f" (on {len(each.values)} of {count})"
        tower = f" + {shown_params(each.text_params)} text" if each.text_params else ""
        best = f"{len(each.tied_best)} of {len(choice.tested)}" if choice.tested else "not tested"
        robust = "-" if each.robustness is None else f"{each.robustness:.3f}"
        license = f"{each.license} ({each.obligations})" if each.obligations else each.license
        cells = each.name, best, text, f"{shown_params(each.params)}{tower}"
        rows.append((*cells, *([robust] if measured else []), license))
    notes = [f"conditions: {choice.conditions}"]
    if choice.tested:
        by = "" if choice.tested_metric == choice.metric else f", by {choice.tested_metric}"
        notes.append(f"may be best: tested datasets on which no other of these is shown to be better{by}")
    notes += [f"excluded: {each.name}: {', '.join(each.why_not)}" for each in choice.excluded]
    notes.append("params: of the image tower; licenses: as in `histobench models`; read the text first")
    value = "value [95%]" if count == 1 else "mean value"
    return Grid(
        f"shortlist by {choice.task}, {choice.metric}",
        ("encoder", "may be best", value, "params", *(["robustness"] if measured else []), "license"),
        tuple(rows),
        tuple(notes),
    )
