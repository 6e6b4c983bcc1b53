"""What a plan file may say, checked before anything runs."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.parameters import whole_number
from histobench.core.plain_data import read_yaml
from histobench.core.plain_file import HAND_WRITTEN, check_plain, read_plain_text
from histobench.core.plain_name import check_plain_name
from histobench.core.slurm import read_options
from histobench.roi.data.cross_validation import Scheme, scheme_of
from histobench.roi.data.source import DatasetSource
from histobench.roi.evaluation.request import Options
from histobench.roi.features.settings import Settings
from histobench.roi.registry.catalogue import is_name
from histobench.roi.registry.install import require
from histobench.roi.task_catalogue import DEFAULT_TASKS, canonical_task

#: Of the knobs of the tasks, those that a plan may turn; all of the extraction's settings are keys of a plan.
TASK_KEYS = ("n_shot", "n_way", "n_iter", "n_neighbors", "choose_by")
DEFAULT_SETTINGS = Settings(batch_size="auto")
DEFAULT_OPTIONS = Options(n_way=())  # all classes at once, and no subsets of them
#: The least value that makes sense for each number.
_LEAST = {
    "seed": 0,
    "size": 1,
    "num_workers": 0,
    "n_shot": 1,
    "n_way": 2,
    "n_iter": 1,
    "n_neighbors": 1,
    "n_bootstrap": 2,
    "folds": 2,
    "repeats": 1,
}


@dataclass(frozen=True)
class DatasetEntry:
    """One dataset of a plan: where it is and how it is split."""

    name: str
    source: Path
    class2id: Path | None = None
    prompts: Path | None = None
    split: str | None = None
    group_regex: str | None = None
    group_column: str | None = None
    site_regex: str | None = None
    site_columns: tuple[str, ...] = ()

    def reading(self, seed: int) -> DatasetSource:
        """How the dataset is read."""
        return DatasetSource(
            str(self.source),
            classes_file=None if self.class2id is None else str(self.class2id),
            name=self.name,
            split=self.split,
            group_regex=self.group_regex,
            group_column=self.group_column,
            site_regex=self.site_regex,
            site_columns=self.site_columns,
            seed=seed,
        )


@dataclass(frozen=True)
class Plan:
    """Every combination of datasets, encoders, tasks and presets, and where the results go."""

    datasets: tuple[DatasetEntry, ...]
    encoders: tuple[str, ...]
    results: Path
    tasks: tuple[str, ...] = DEFAULT_TASKS
    presets: tuple[str, ...] = ("uni",)
    seed: int = 0
    size: int | None = None
    weights: str | None = None
    allow_revision: bool = False
    #: How features are computed, and the knobs of the tasks: keys of the plan file like all others.
    settings: Settings = DEFAULT_SETTINGS
    options: Options = DEFAULT_OPTIONS
    n_bootstrap: int | None = None  # write older bootstrap intervals, too, from this many resamples
    splits: str | None = None  # "5x2", or "leave-one-group-out": many splits beside the given one
    folds: int | None = None
    repeats: int | None = None
    slurm: str | None = None  # options of jobs, "partition=gpu,gres=gpu:1"; used with that engine
    slurm_cpu: str | None = None

    @property
    def scheme(self) -> Scheme | None:
        """The repeated cross-validation that is asked for."""
        return scheme_of(self.splits, self.folds, self.repeats)

    def values(self) -> dict[str, Any]:
        """The keys of a plan file with what this plan says for each."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        settings, options = own.pop("settings"), own.pop("options")
        return {
            **own,
            **{each.name: getattr(settings, each.name) for each in fields(settings)},
            "batch_size": str(settings.batch_size),
            **{name: getattr(options, name) for name in TASK_KEYS},
        }


def json_schema() -> str:
    """The schema of plan files that editors complete and check by, as JSON."""
    return files(__package__).joinpath("plan.schema.json").read_text(encoding="utf-8")


def read_plan(path: str | Path) -> Plan:
    """Read and check a plan file; relative paths in it are relative to the file."""
    return plan_from(read_plan_values(path), where=str(path), base=Path(path).parent)


def read_plan_values(path: str | Path) -> dict[str, Any]:
    """The plain values of a plan file, not yet checked."""
    path = Path(path)
    try:
        text = read_plain_text(path, limit=HAND_WRITTEN, encoding="utf-8-sig")
    except OSError as error:
        raise HistobenchError(f"cannot read the plan {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise HistobenchError(f"the plan {path} is not UTF-8 text") from None
    content = read_yaml(text, where=str(path))
    return dict(_mapping(content, str(path)))


def plan_from(content: Any, *, where: str, base: Path) -> Plan:
    """A checked plan from plain values; `where` starts every error message."""
    values = _mapping(content, where)
    _known_keys(values, list(Plan((), (), Path()).values()), where)
    datasets = tuple(
        _dataset(entry, f"{where}: datasets[{position}]", base)
        for position, entry in enumerate(_sequence(values, "datasets", where))
    )
    duplicates = sorted({d.name for d in datasets if sum(d.name == other.name for other in datasets) > 1})
    if duplicates:
        raise HistobenchError(f"{where}: two datasets are called {duplicates[0]!r}; give each its own name")
    encoders = tuple(str(name) for name in _sequence(values, "encoders", where))
    plan = Plan(datasets, encoders, results=base / str(values.get("results", "results")))
    given = _given(values, where)
    settings = {each.name: given.pop(each.name) for each in fields(Settings) if each.name in given}
    options = {name: given.pop(name) for name in TASK_KEYS if name in given}
    return _check_words(replace(plan, **given, options=replace(plan.options, **options)), settings, where)


def _given(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a plan says beside datasets, encoders and results, each value of its kind."""
    given: dict[str, Any] = {}
    for name in ("tasks", "presets"):
        if name in values:
            given[name] = tuple(str(item) for item in _sequence(values, name, where))
    for name in ("n_shot", "n_way"):
        if name in values:
            given[name] = tuple(_number(item, name, where) for item in _sequence(values, name, where))
    numbers = ("seed", "size", "num_workers", "n_iter", "n_neighbors", "n_bootstrap")
    for name in (*numbers, "folds", "repeats"):
        if values.get(name) is not None:
            given[name] = _number(values[name], name, where)
    for name in ("splits", "device", "weights", "precision", "compile", "on_bad_image", "choose_by", "stage"):
        if values.get(name) is not None:
            given[name] = str(values[name])
    for name in ("slurm", "slurm_cpu"):
        if values.get(name) is not None:
            given[name] = _job_options(values[name], f"{where}: {name}")
    for name in ("batch_size", "recheck"):
        if values.get(name) is not None:
            images = str(values[name])
            given[name] = int(images) if images.isdecimal() else images
    for name in ("allow_revision", "no_cache"):
        if values.get(name) is not None:
            given[name] = _flag(values[name], name, where)
    return given


def _job_options(value: Any, where: str) -> str:
    """A block of options, or `partition=gpu,gres=gpu:1`, in the second form."""
    if not isinstance(value, str):
        for key, option in _mapping(value, where).items():
            # YAML takes 4:00:00 for 14400, which Slurm would take for minutes.
            allowed = str if key in ("time", "time-min", "begin", "deadline") else (str, int)
            if isinstance(option, bool) or not isinstance(option, allowed) or "," in str(option):
                found = reprlib.repr(option)
                raise HistobenchError(
                    f'{where}: {key}: expected a text such as "4:00:00" in quotes, found {found}'
                )
        value = ",".join(f"{key}={option}" for key, option in value.items())
    read_options(value, where)
    return str(value)


def _check_words(plan: Plan, settings: Mapping[str, Any], where: str) -> Plan:
    """The plan with these settings; a mistyped task is an error now, and not after hours of extraction."""
    from histobench.roi.protocols.presets import check_choice, get_preset

    try:
        _ = plan.scheme
        for task in plan.tasks:
            canonical_task(task)
        for preset in plan.presets:
            get_preset(preset)
        check_choice(plan.options.choose_by)
        return replace(plan, settings=replace(plan.settings, **settings))
    except HistobenchError as error:
        raise HistobenchError(f"{where}: {error}") from None


def _dataset(entry: Any, where: str, base: Path) -> DatasetEntry:
    if isinstance(entry, str):
        entry = {"source": entry}
    values = _mapping(entry, where)
    _known_keys(values, [each.name for each in fields(DatasetEntry)], where)
    if "source" not in values:
        raise HistobenchError(f"{where}: 'source' is missing (a CSV file or a folder of class folders)")
    source, public = base / Path(str(values["source"])).expanduser(), None
    if not source.exists() and is_name(str(values["source"])):
        public = require(str(values["source"]), recommended=not values.get("split"))
        source = public.table
        values = {"name": public.name, **values}
    if not source.exists():
        raise HistobenchError(f"{where}: source {source} does not exist")
    given: dict[str, Any] = {
        "name": check_plain_name(
            # A folder may be given as `.` or `..`, which are no names.
            re.sub(r"[\[\]/\\]", "_", str(values.get("name") or source.resolve().stem)),
            what=f"{where}: dataset",
        ),
        "source": source,
    }
    for name in ("class2id", "prompts"):
        if values.get(name):
            given[name] = base / Path(str(values[name])).expanduser()
            try:
                check_plain(given[name])
            except FileNotFoundError:
                raise HistobenchError(f"{where}: {name} {given[name]} does not exist") from None
            except OSError as error:
                raise HistobenchError(
                    f"{where}: cannot read {name} {given[name]}: {error.strerror}"
                ) from None
    if public is not None:
        given.setdefault("class2id", public.classes_file)
    for name in ("split", "group_regex", "group_column", "site_regex"):
        if values.get(name):
            given[name] = str(values[name])
    if values.get("site_columns"):
        given["site_columns"] = tuple(map(str, _sequence(values, "site_columns", where)))
    return DatasetEntry(**given)


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise HistobenchError(f"{where}: expected `key: value` lines, found {type(value).__name__}")
    return value


def _sequence(values: Mapping[str, Any], name: str, where: str) -> Sequence[Any]:
    value: Any = values.get(name)
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",") if item.strip()]
    elif hasattr(value, "tolist"):  # an array, from Python
        value = value.tolist()
    if not isinstance(value, Sequence) or not value:
        raise HistobenchError(f"{where}: '{name}' must be a list with at least one entry")
    return value


def _number(value: Any, name: str, where: str) -> int:
    return whole_number(value, f"{where}: {name}", least=_LEAST[name])


def _flag(value: Any, name: str, where: str) -> bool:
    if not isinstance(value, bool):
        raise HistobenchError(f"{where}: {name}: expected true or false, found {value!r}")
    return value


def _known_keys(values: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in values:
        if key not in known:
            raise HistobenchError(f"{where}: unknown key {key!r}; {did_you_mean(str(key), known)}")
