"""Configuration files: one JSON object for each cell of the experiment matrix, as the published ones are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from histobench.core.files import write_json
from histobench.mint.configs import datasets as config_variables
from histobench.mint.configs.cell import NONE, Cell
from histobench.mint.configs.datasets import TaskDataset, select_datasets


def experiment_cells(
    agent: Mapping[str, Any], provider: Mapping[str, Any] | None, datasets: Sequence[TaskDataset]
) -> Iterator[Cell]:
    """The cells of one model: every budget without an expert, the full budget with one."""
    model = agent["config"]["model_name"]
    if provider is None or provider["model_name"] == NONE:
        settings = [(NONE, env) for env in config_variables.ENV_CONFIGS]
        expert = NONE
    else:
        expert = provider["model_name"]
        settings = [
            (f"{kind['pseudo_human_feedback']}-{kind['feedback_form']}", env)
            for kind in config_variables.FEEDBACK_TYPES
            for env in config_variables.FEEDBACK_ENV_CONFIGS
        ]
    for feedback_type, env in settings:
        for dataset in datasets:
            yield Cell(model, dataset.type, dataset.name, expert, feedback_type, **env)


def cell_config(
    cell: Cell, agent: Mapping[str, Any], provider: Mapping[str, Any] | None, dataset: TaskDataset
) -> dict[str, Any]:
    knowledge, _, form = cell.feedback_type.partition("-")
    known = config_variables.TASK_INFO_MAP.get(dataset.name, {}).get("class")
    task_class = dataset.task_class
    path = dataset.path(config_variables.DATASET_DIR).as_posix()
    return {
        "agent": dict(agent),
        "task": {
            "task_class": known
            if isinstance(known, str)
            else f"{task_class.__module__}:{task_class.__name__}",
            "task_type": dataset.type,
            "tool_imports": [
                [entry.__module__, entry.__name__] if isinstance(entry, type) else list(entry)
                for entry in config_variables.TASK_TYPE_TO_TOOL_IMPORT.get(dataset.type, [])
            ],
            "filepath": f"{path}/" if dataset.is_games else path,
        },
        "output_dir": f"{config_variables.DATA_OUTPUTS_DIR}/{cell.path}",
        "env_config": cell.env_config,
        "feedback_config": {
            "pseudo_human_feedback": knowledge,
            "feedback_form": form or NONE,
            "feedback_agent_config": {
                **config_variables.FEEDBACK_AGENT_DEFAULTS,
                **(provider or config_variables.NO_FEEDBACK_PROVIDER),
            },
        },
    }


def write_configs(
    folder: str | Path,
    *,
    agents: Iterable[Mapping[str, Any]] | None = None,
    datasets: Sequence[TaskDataset] | None = None,
) -> list[Path]:
    """Write the matrix of `config_variables` (or of what is given) below `folder`; returns the files."""
    datasets = select_datasets() if datasets is None else datasets
    by_name = {dataset.name: dataset for dataset in datasets}
    agents = config_variables.EVALUATED_MODEL_LIST if agents is None else agents
    written = []
    for agent in agents:
        for provider in [None, *config_variables.FEEDBACK_PROVIDER_LIST]:
            for cell in experiment_cells(agent, provider, datasets):
                path = Path(folder) / f"{cell.path}.json"
                write_json(path, cell_config(cell, agent, provider, by_name[cell.dataset]))
                written.append(path)
    return written
