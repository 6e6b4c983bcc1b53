"""Configuration files of the published shape, as `histobench mint configs` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import read_plain_text
from histobench.core.plain_data import read_json
from histobench.mint.agents.agent_spec import AgentSpec, parse_agent
from histobench.mint.agents.completion import Sampling
from histobench.mint.agents.factory import player_name
from histobench.mint.configs.cell import NONE, Cell, parse_cell
from histobench.mint.configs.datasets import TaskDataset, get_dataset, task_class
from histobench.mint.feedback.kind import parse_kind
from histobench.mint.runs.planned_cell import PLACEBO, ExpertPlan, PlannedCell
from histobench.mint.runs.task_source import BUILT_IN, built_in_dataset
from histobench.mint.tasks.base import Rule

AGENT_CLASSES = {
    "OpenAILMAgent": "openai",
    "VLLMAgent": "vllm",
    "ClaudeLMAgent": "anthropic",
    "GeminiLMAgent": "gemini",
    "OpenAIFeedbackAgent": "openai",
    "VLLMFeedbackAgent": "vllm",
    "ClaudeFeedbackAgent": "anthropic",
}
ADDRESS = "openai.api_base"


#: What a file says, and the folder that it writes below.
ConfiguredCell = tuple[PlannedCell, Path]


def read_configs(
    path: str | Path, *, agent: AgentSpec | None = None, name: str | None = None, rule: Rule = "strict"
) -> list[ConfiguredCell]:
    path = Path(path)
    files = [path] if path.is_file() else sorted(path.rglob("*.json"))
    if not files:
        raise HistobenchError(
            f"no configuration (.json) at {path}; `histobench mint configs FOLDER` writes some"
        )
    return [_read(file, agent, name, rule) for file in files]


def _read(path: Path, agent: AgentSpec | None, name: str | None, rule: Rule) -> ConfiguredCell:
    config = read_json(read_plain_text(path), where=str(path))
    try:
        cell = parse_cell(config["output_dir"])
        output = Path(str(config["output_dir"]).removesuffix(cell.path) or ".")
        cell = replace(cell, **{key: config["env_config"][key] for key in cell.env_config})
        settings = config["agent"]["config"]
        spec = agent or _agent(config["agent"]["agent_class"], settings)
        if agent is not None:
            cell = replace(cell, model=name or player_name(agent))
        dataset = _dataset(cell, config["task"])
        planned = PlannedCell(
            cell=cell,
            dataset=dataset,
            agent=spec,
            sampling=_sampling(settings, 512),
            expert=_expert(cell, config.get("feedback_config") or {}),
            rule=rule,
            data=_data_place(config["task"]["filepath"], dataset),
        )
    except KeyError as error:
        raise HistobenchError(
            f"{path}: the key {error} is missing; `histobench mint configs FOLDER` writes complete files"
        ) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise HistobenchError(f"{path} is not a configuration of a run ({error!r})") from error
    except HistobenchError as error:
        raise HistobenchError(f"{path}: {error}") from error
    return planned, output


def _agent(class_name: str, settings: Mapping[str, Any]) -> AgentSpec:
    if class_name not in AGENT_CLASSES:
        raise HistobenchError(
            f"unknown agent class {class_name!r}; {did_you_mean(class_name, AGENT_CLASSES)}"
        )
    address = f"@{settings[ADDRESS]}" if settings.get(ADDRESS) else ""
    return parse_agent(f"{AGENT_CLASSES[class_name]}:{settings['model_name']}{address}")


def _expert(cell: Cell, config: Mapping[str, Any]) -> ExpertPlan | None:
    settings = config.get("feedback_agent_config") or {}
    settings = {} if settings == NONE else settings
    if settings.get("agent_class", "None") == "None":
        if cell.feedback_model != NONE:
            raise HistobenchError(
                f"output_dir is for expert {cell.feedback_model}, feedback_config for none; let them agree"
            )
        return None
    kind = parse_kind(f"{config['pseudo_human_feedback']}-{config['feedback_form']}")
    if cell.feedback_type != kind.name:  # the folder is all that tables know of an expert
        raise HistobenchError(
            f"output_dir is for {cell.feedback_type}, feedback_config for {kind.name}; let them agree"
        )
    if settings["agent_class"] == PLACEBO:
        return ExpertPlan(kind)
    return ExpertPlan(kind, _agent(settings["agent_class"], settings), _sampling(settings, 1024))


def _dataset(cell: Cell, config: Mapping[str, Any]) -> TaskDataset:
    if cell.dataset in BUILT_IN:
        return built_in_dataset(cell.dataset)
    if "task_class" in config:
        dataset = TaskDataset(cell.dataset, task_class(config["task_class"]), config["task_type"])
    else:
        dataset = get_dataset(cell.dataset)
    if "tool_imports" not in config:
        return dataset
    return replace(dataset, tool_imports=tuple((module, name) for module, name in config["tool_imports"]))


def _data_place(filepath: str, dataset: TaskDataset) -> Path:
    path = Path(filepath)
    if path.is_file():
        return path
    return path.parent if dataset.is_games else path.parent.parent


def _sampling(settings: Mapping[str, Any], max_tokens: int) -> Sampling:
    return Sampling(float(settings.get("temperature", 0.0)), int(settings.get("max_tokens", max_tokens)))
