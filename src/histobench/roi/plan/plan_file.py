"""What a plan file may say, checked before anything runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError, located
from histobench.core.files import read_plain_text
from histobench.core.plain_data import read_yaml
from histobench.core.records import check_keys, options_of, schema_of, values_from
from histobench.core.text import check_plain_name
from histobench.roi.data.hub_dataset import HUB, hub_name, is_hub_dataset
from histobench.roi.data.split import parse_fractions
from histobench.roi.data.targets import TargetColumns
from histobench.roi.data.task_folders import PLISM, kind_of_folder, target_of_folder
from histobench.roi.encoders.own_name import ELSEWHERE, combined_parts, label_of, names_features
from histobench.roi.encoders.registry import zoo_name
from histobench.roi.options import (
    SETTINGS_OF_PLANS,
    TASK_KEYS,
    DatasetEntry,
    Options,
    Origin,
    Plan,
    Settings,
    plan_options,
)
from histobench.roi.presets import PRESETS, get_preset
from histobench.roi.registry.dataset_entry import is_name, not_found
from histobench.roi.registry.install import require
from histobench.roi.task_catalogue import (
    CLASS,
    FINE_TUNE,
    LINEAR_PROBE,
    MASK,
    ROBUSTNESS,
    TARGETS,
    canonical_task,
    not_applicable,
)
from histobench.work.clusters import read_options

#: A plan of this task alone predicts masks.
SEGMENTATION = TARGETS[MASK].task.lower()


def json_schema() -> str:
    """The schema of plan files that editors complete and check by, as JSON."""
    text = {"type": "string"}
    jobs = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
    pair = {"type": "array", "items": text, "minItems": 2}
    source = "CSV file, folder, TAR shards or public dataset; relative to the plan"
    entry = {
        "type": "object",
        "additionalProperties": False,
        "required": ["source"],
        "properties": {
            "source": {"description": source, **text},
            "name": {"description": "name in tables and folders (default: that of the source)", **text},
            **schema_of(options_of(DatasetEntry)),
        },
    }
    encoders = "names of the zoo, timm:NAME, hf:OWNER/NAME, FILE.py:Class, or NAME=..."
    properties: dict[str, Any] = {
        "datasets": {
            "description": "what is classified; a text is short for its source",
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [text, entry]},
        },
        "encoders": {"description": encoders, "type": ["array", "string"], "items": text},
        "results": {"description": "folder of results, relative to the plan", **text, "default": "results"},
        **schema_of(plan_options()),
    }
    for key, form in (
        ("slurm", jobs),
        ("slurm_cpu", jobs),
        ("combine", {"type": "array", "items": {"anyOf": [text, pair]}}),
    ):
        properties[key] = {"description": properties[key]["description"], "anyOf": [text, form]}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "histobench plan",
        "description": "Every combination of datasets, encoders, tasks and presets: histobench run PLAN.yaml",
        "type": "object",
        "additionalProperties": False,
        "required": ["datasets"],
        "anyOf": [{"required": ["encoders"]}, {"required": ["features"]}],
        "properties": properties,
    }
    return json.dumps(schema, indent=1) + "\n"


def read_plan_values(path: str | Path) -> dict[str, Any]:
    path = Path(path)
    return dict(_mapping(read_yaml(read_plain_text(path, encoding="utf-8-sig"), where=str(path)), str(path)))


def plan_from(content: Any, *, where: str, base: Path) -> Plan:
    """A checked plan from plain values; `where` is their file, which begins errors; empty: parameters."""
    values = dict(_mapping(content, where))
    values.pop("stage", None)  # of version 0.2: does nothing
    check_keys(values, [*(each.name for each in plan_options()), "datasets", "encoders", "results"], where)
    datasets = tuple(
        _dataset(entry, f"{where}: datasets[{position}]" if where else "", base)
        for position, entry in enumerate(_sequence(values, "datasets", where))
    )
    names = [entry.name for entry in datasets]
    if duplicates := sorted(name for name in set(names) if names.count(name) > 1):
        message = f"two datasets are called {duplicates[0]!r}; give each its own name"
        raise HistobenchError(located(where, message))
    foreign = _foreign(values.pop("features", None), where, base)
    listed = _sequence(values, "encoders", where, required=not foreign)
    encoders = tuple(zoo_name(str(name)) for name in listed)
    encoders, combined = _with_combinations((*encoders, *foreign), values.pop("combine", None), where)
    values |= {"features": foreign} if foreign else {}
    values |= {"combine": list(combined)} if combined else {}
    for name in ("slurm", "slurm_cpu"):
        if values.get(name) is not None:
            values[name] = _job_options(values[name], located(where, name))
    given = values_from(plan_options(), values, where)
    settings = {each.name: given.pop(each.name) for each in fields(Settings) if each.name in given}
    options = {name: given.pop(name) for name in TASK_KEYS if name in given}
    folders = [entry.source for entry in datasets if kind_of_folder(entry.source)]
    if folders and len(folders) == len(datasets):  # they say what is predicted, and by whose recipe
        given.setdefault("target", target_of_folder(folders[0]))
        preset = kind_of_folder(folders[0])
        if preset == PLISM:
            given.setdefault("tasks", (ROBUSTNESS,))
        if preset in PRESETS:
            given.setdefault("presets", (preset,))
            given.setdefault("tasks", (LINEAR_PROBE,) if given["target"] == CLASS else ())
        if not given.get("tasks", ("",)):
            del given["tasks"]
    asked = {str(task).lower() for task in given.get("tasks", ())}
    if "target" not in given and SEGMENTATION in asked and asked <= {SEGMENTATION, FINE_TUNE.lower()}:
        given["target"] = MASK
    if str(given.get("mask_classes") or "").endswith(".json"):
        given["mask_classes"] = str(_path(given["mask_classes"], base).absolute())
    target = given.get("target", CLASS)
    if target != CLASS and "tasks" not in given:
        given["tasks"] = (TARGETS[target].task,)
    try:
        plan = Plan(
            datasets,
            encoders,
            base / str(values.get("results", "results")),
            settings=Settings(**{**SETTINGS_OF_PLANS, **settings}),
            options=Options(**options),
            **given,
        )
        # A mistyped task is an error now, and not after hours of extraction.
        reasons = {task: not_applicable(canonical_task(task), plan.target) for task in plan.tasks}
        wrong = [f"{task} {reason}" for task, reason in reasons.items() if reason]
        # Other tasks are skipped with the reason, but masks have no features that these could be tried on.
        if wrong and (plan.target == MASK or len(wrong) == len(reasons)):
            raise HistobenchError(wrong[0])
        if not folders:
            TargetColumns.asked(plan.target, plan.target_columns)
        for entry in datasets:
            if entry.split is not None:
                parse_fractions(entry.split)
        for preset in plan.presets:
            get_preset(preset)
    except HistobenchError as error:
        raise HistobenchError(located(where, error)) from None
    return plan


def _job_options(value: Any, where: str) -> str:
    if not isinstance(value, str):
        for key, option in _mapping(value, where).items():
            # YAML takes 4:00:00 for 14400, which Slurm would take for minutes.
            allowed = str if key in ("time", "time-min", "begin", "deadline") else (str, int)
            if isinstance(option, bool) or not isinstance(option, allowed) or "," in str(option):
                raise HistobenchError(
                    f'{where}: {key}: expected a text such as "4:00:00" in quotes, found {option!r}'
                )
        value = ",".join(f"{key}={option}" for key, option in value.items())
    read_options(value, where)
    return str(value)


def _dataset(entry: Any, where: str, base: Path) -> DatasetEntry:
    if isinstance(entry, str):
        entry = {"source": entry}
    values = _mapping(entry, where)
    check_keys(values, [each.name for each in fields(DatasetEntry)], where)
    if "source" not in values:
        raise HistobenchError(located(where, "'source' is missing (a CSV file or a folder of class folders)"))
    asked, public = str(values["source"]), None
    source = _path(asked, base)
    on_hub = not source.exists() and is_hub_dataset(asked)
    if on_hub:
        place = _path(asked.removeprefix(HUB), base)
        source = Path(f"{HUB}{place.absolute()}") if place.is_dir() else Path(asked)
        values = {"name": hub_name(source), **values}
    elif not source.exists() and is_name(asked):
        public = require(asked, recommended=not values.get("split"))
        source = public.table
        values = {"name": public.name, **values}
    if not source.exists() and not on_hub:
        shown = asked if not source.suffix and "/" not in asked else source
        raise HistobenchError(located(where, f"{'source' if where else '`data`'} {not_found(str(shown))}"))
    given: dict[str, Any] = {
        "name": check_plain_name(
            # A folder may be given as `.` or `..`, which are no names.
            re.sub(r"[\[\]/\\]", "_", str(values.get("name") or source.resolve().stem)),
            what=located(where, "dataset"),
        ),
        "source": source,
    }
    for name in ("class2id", "prompts"):
        if values.get(name):
            given[name] = _path(values[name], base)
            if not given[name].exists():
                raise HistobenchError(located(where, f"`{name}` {given[name]} does not exist"))
    if public is not None:
        given.setdefault("class2id", public.classes_file)
    given |= values_from(options_of(Origin), values, where)
    if given.get("root"):
        given["root"] = str(_path(given["root"], base).absolute())
    return DatasetEntry(**given)


def _path(text: object, base: Path) -> Path:
    return base / Path(str(text)).expanduser()


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise HistobenchError(located(where, f"expected `key: value` lines, found {type(value).__name__}"))
    return value


def _foreign(value: Any, where: str, base: Path) -> list[str]:
    """Features from elsewhere as names of encoders: `NAME=features:PATH`, with paths seen from the plan."""
    names = []
    for item in _sequence({"features": value}, "features", where, required=False):
        alias, equals, place = str(item).replace(ELSEWHERE, "").rpartition("=")
        if "/" in alias:  # a folder may be called `lr=0.1`
            alias, equals, place = "", "", str(item)
        path = _path(place.strip(), base)
        if not path.exists():
            raise HistobenchError(located(where, f"`features` {path} does not exist"))
        names.append(f"{alias.strip()}{equals}{ELSEWHERE}{path.resolve()}")
    return names


def _with_combinations(
    encoders: Sequence[str], combine: Any, where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The encoders with every part of a combination before the combinations, and these alone."""
    single = [name for name in encoders if not combined_parts(name)]
    asked = [name for name in encoders if combined_parts(name)]
    for item in _sequence({"combine": combine}, "combine", where, required=False):
        if isinstance(item, str) and item.strip().replace("_", " ") == "all pairs":
            asked += [f"{label_of(one)}+{label_of(other)}" for one, other in combinations(single, 2)]
            continue
        asked.append(item if isinstance(item, str) else "+".join(map(str, item)))
        if not combined_parts(asked[-1]):
            raise HistobenchError(
                located(where, f"combine: {item!r} does not name two encoders; write a+b or [a, b]")
            )
    # `a` is the features given as a=PATH, unless an encoder of that name is asked for, too.
    labels = [label_of(name) for name in filter(names_features, single)]
    given = {label.removesuffix("@elsewhere"): label for label in labels}
    given = {alias: label for alias, label in given.items() if alias not in single}
    found = ["+".join(given.get(part) or zoo_name(part) for part in combined_parts(name)) for name in asked]
    asked = list(dict.fromkeys(found))
    for name in asked:
        parts = combined_parts(name)
        if len(set(parts)) < len(parts):
            raise HistobenchError(located(where, f"combine: {name} names an encoder twice"))
        known = {*single, *map(label_of, single)}
        missing = [part for part in parts if given and part not in known]
        if missing:
            advice = f"add `features` {missing[0]}=PATH, or name it as an encoder to compute them from images"
            raise HistobenchError(located(where, f"combine: no features of {missing[0]}; {advice}"))
        single += [part for part in parts if part not in known]
    return (*single, *asked), tuple(asked)


def _sequence(values: Mapping[str, Any], name: str, where: str, *, required: bool = True) -> Sequence[Any]:
    value: Any = values.get(name)
    if not value and not required:
        return ()
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",") if item.strip()]
    elif hasattr(value, "tolist"):  # an array, from Python
        value = value.tolist()
    if not isinstance(value, Sequence) or not value:
        raise HistobenchError(located(where, f"'{name}' must be a list with at least one entry"))
    return value
