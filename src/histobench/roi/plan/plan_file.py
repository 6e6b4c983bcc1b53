"""What a plan file may say, checked before anything runs."""

from __future__ import annotations

import json
import logging
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError, located
from histobench.core.files import read_plain_text
from histobench.core.plain_data import read_yaml
from histobench.core.records import options_of, schema_of, unknown_key, values_from
from histobench.core.text import check_plain_name
from histobench.roi.data.hub_dataset import HUB, hub_name, is_hub_dataset
from histobench.roi.data.split import parse_fractions
from histobench.roi.data.targets import TargetColumns
from histobench.roi.data.task_folders import PLISM, kind_of_folder, target_of_folder
from histobench.roi.encoders.own_name import ELSEWHERE, combined_parts, label_of, names_features
from histobench.roi.encoders.registry import zoo_name
from histobench.roi.options import TASK_KEYS, DatasetEntry, Origin, Plan, Settings, plan_options
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

log = logging.getLogger(__name__)

#: A plan of this task alone predicts masks.
SEGMENTATION = TARGETS[MASK].task.lower()


def json_schema() -> str:
    """The schema of plan files that editors complete and check by, as JSON."""
    text = {"type": "string"}
    texts = {"type": ["array", "string"], "items": text}
    jobs = {"anyOf": [text, {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}]}
    entry = {
        "type": "object",
        "additionalProperties": False,
        "required": ["source"],
        "properties": {
            "source": {
                "description": "CSV file, folder, TAR shards or public dataset; relative to the plan",
                **text,
            },
            "name": {
                "description": "name in tables and folders (default: that of the file or folder)",
                **text,
            },
            **schema_of(options_of(DatasetEntry)),
        },
    }
    properties: dict[str, Any] = {
        "datasets": {
            "description": "what is classified; a text is short for its source",
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [text, entry]},
        },
        "encoders": {
            "description": "names of the zoo, timm:NAME, hf:OWNER/NAME, FILE.py:Class, or NAME=...",
            **texts,
        },
        "results": {
            "description": "folder of the results, relative to the plan",
            **text,
            "default": "results",
        },
        **schema_of(plan_options()),
    }
    for name in ("slurm", "slurm_cpu"):
        properties[name] = {"description": properties[name]["description"], **jobs}
    lists = {"type": "array", "items": {"anyOf": [text, {"type": "array", "items": text, "minItems": 2}]}}
    properties["combine"] = {"description": properties["combine"]["description"], "anyOf": [text, lists]}
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


def read_plan(path: str | Path) -> Plan:
    """Read and check a plan file; relative paths in it are relative to the file."""
    return plan_from(read_plan_values(path), where=str(path), base=Path(path).parent)


def read_plan_values(path: str | Path) -> dict[str, Any]:
    """The plain values of a plan file, not yet checked."""
    path = Path(path)
    text = read_plain_text(path, encoding="utf-8-sig")
    content = read_yaml(text, where=str(path))
    return dict(_mapping(content, str(path)))


def plan_from(content: Any, *, where: str, base: Path) -> Plan:
    """A checked plan from plain values.

    `where` is the file that they are from, which starts every error message; empty: they are parameters.
    """
    values = dict(_mapping(content, where))
    if values.pop("stage", None) is not None:
        log.warning("%s", located(where, "`stage` does nothing anymore: images are read where they are"))
    known = [*(each.name for each in plan_options()), "datasets", "encoders", "results"]
    for key in values:
        if key not in known:
            raise unknown_key(key, known, where)
    datasets = tuple(
        _dataset(entry, f"{where}: datasets[{position}]" if where else "", base)
        for position, entry in enumerate(_sequence(values, "datasets", where))
    )
    duplicates = sorted({d.name for d in datasets if sum(d.name == other.name for other in datasets) > 1})
    if duplicates:
        raise HistobenchError(
            located(where, f"two datasets are called {duplicates[0]!r}; give each its own name")
        )
    foreign = _foreign(values.pop("features", None), where, base)
    encoders = tuple(
        zoo_name(str(name)) for name in _sequence(values, "encoders", where, required=not foreign)
    )
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
        given["mask_classes"] = str((base / Path(given["mask_classes"]).expanduser()).absolute())
    target = given.get("target", CLASS)
    if target != CLASS and "tasks" not in given:
        given["tasks"] = (TARGETS[target].task,)
    try:
        plan = Plan(datasets, encoders, base / str(values.get("results", "results")), **given)
        plan = replace(
            plan, settings=replace(plan.settings, **settings), options=replace(plan.options, **options)
        )
        for task in plan.tasks:  # a mistyped task is an error now, and not after hours of extraction
            canonical_task(task)
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


def _dataset(entry: Any, where: str, base: Path) -> DatasetEntry:
    if isinstance(entry, str):
        entry = {"source": entry}
    values = _mapping(entry, where)
    known = [each.name for each in fields(DatasetEntry)]
    for key in values:
        if key not in known:
            raise unknown_key(key, known, where)
    if "source" not in values:
        raise HistobenchError(located(where, "'source' is missing (a CSV file or a folder of class folders)"))
    source, public = base / Path(str(values["source"])).expanduser(), None
    on_hub = not source.exists() and is_hub_dataset(str(values["source"]))
    if on_hub:
        place = base / Path(str(values["source"]).removeprefix(HUB)).expanduser()
        source = Path(f"{HUB}{place.absolute()}") if place.is_dir() else Path(str(values["source"]))
        values = {"name": hub_name(source), **values}
    elif not source.exists() and is_name(str(values["source"])):
        public = require(str(values["source"]), recommended=not values.get("split"))
        source = public.table
        values = {"name": public.name, **values}
    if not source.exists() and not on_hub:
        shown = values["source"] if not source.suffix and "/" not in str(values["source"]) else source
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
            given[name] = base / Path(str(values[name])).expanduser()
            if not given[name].exists():
                raise HistobenchError(located(where, f"`{name}` {given[name]} does not exist"))
    if public is not None:
        given.setdefault("class2id", public.classes_file)
    given |= values_from(options_of(Origin), values, where)
    if given.get("root"):
        given["root"] = str((base / Path(given["root"]).expanduser()).absolute())
    return DatasetEntry(**given)


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise HistobenchError(located(where, f"expected `key: value` lines, found {type(value).__name__}"))
    return value


def _foreign(value: Any, where: str, base: Path) -> list[str]:
    """Features from elsewhere as names of encoders: `NAME=features:PATH`, with paths seen from the plan."""
    if not value:
        return []
    names = []
    for item in _sequence({"features": value}, "features", where):
        alias, equals, place = str(item).replace(ELSEWHERE, "").rpartition("=")
        if "/" in alias:  # a folder may be called `lr=0.1`
            alias, equals, place = "", "", str(item)
        path = base / Path(place.strip()).expanduser()
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
    if combine is not None and not isinstance(combine, str | Sequence):
        raise HistobenchError(
            located(where, "combine: expected a list of pairs such as [[a, b]], or: all pairs")
        )
    if isinstance(combine, str):
        combine = [item.strip() for item in combine.split(",") if item.strip()]
    for item in combine or ():
        if isinstance(item, str) and item.strip().replace("_", " ") == "all pairs":
            asked += [f"{label_of(one)}+{label_of(other)}" for one, other in combinations(single, 2)]
            if len(single) < 2:
                raise HistobenchError(located(where, "combine: all pairs needs two encoders or more"))
            continue
        name = item if isinstance(item, str) else "+".join(map(str, item))
        if not combined_parts(name):
            raise HistobenchError(
                located(where, f"combine: {item!r} does not name two encoders; write a+b or [a, b]")
            )
        asked.append(name)
    # `a` is the features given as a=PATH, unless an encoder of that name is asked for, too.
    given = {
        label_of(name).removesuffix("@elsewhere"): label_of(name) for name in filter(names_features, single)
    }
    given = {alias: label for alias, label in given.items() if alias not in single}
    asked = ["+".join(given.get(part) or zoo_name(part) for part in combined_parts(name)) for name in asked]
    asked = list(dict.fromkeys(asked))
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
