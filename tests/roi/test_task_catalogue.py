"""Tasks are written down once; what else names all of them says the same."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from histobench.cli.main import COMMANDS
from histobench.core.errors import HistobenchError
from histobench.roi.evaluation.tasks import IMAGE_RUNNERS, TASK_RUNNERS
from histobench.roi.plan.plan_file import json_schema
from histobench.roi.presets import PRESETS
from histobench.roi.task_catalogue import (
    CATALOGUE,
    DEFAULT_TASKS,
    ON_IMAGES,
    TASKS,
    RoiTask,
    canonical_task,
    task_place,
    task_words,
)

DOCS = Path(__file__).parents[2] / "docs"


def test_every_task_has_a_runner_and_every_runner_a_task() -> None:
    assert {**TASK_RUNNERS, **IMAGE_RUNNERS}.keys() == set(TASKS)
    assert tuple(IMAGE_RUNNERS) == ON_IMAGES


def test_the_schema_for_editors_names_the_tasks() -> None:
    said = json.loads(json_schema())["properties"]["tasks"]
    assert said["description"] == f"tasks: {', '.join(TASKS)}"
    assert said["default"] == list(DEFAULT_TASKS)


def test_the_help_of_the_command_names_the_tasks() -> None:
    parser = argparse.ArgumentParser()
    COMMANDS["evaluate"].add_flags(parser)
    assert ",".join(TASKS) in "".join(parser.format_help().split())


@pytest.mark.parametrize("task", CATALOGUE, ids=TASKS)
def test_every_task_stands_in_the_documentation(task: RoiTask) -> None:
    row = f"| `{task.name}` | {task.words} | {'yes' if task.by_default else 'no'} |\n"
    assert row in (DOCS / "explanation" / "protocols.md").read_text(encoding="utf-8")


def test_presets_leave_out_tasks_that_there_are() -> None:
    assert all(set(preset.left_out) < set(TASKS) for preset in PRESETS.values())
    assert PRESETS["uni"].left_out == ()


def test_a_task_is_known_in_any_case_and_others_are_not() -> None:
    assert [canonical_task(task.name.upper()) for task in CATALOGUE] == list(TASKS)
    with pytest.raises(HistobenchError, match="unknown task 'KNNN'; did you mean KNN"):
        canonical_task("KNNN")


def test_tasks_of_other_tools_stand_last_and_go_by_their_names() -> None:
    assert sorted(["Tracking", "Proto", "Linear-Probe", "Detection"], key=task_place) == [
        "Linear-Probe", "Proto", "Detection", "Tracking",
    ]  # fmt: skip
    assert (task_words("KNN"), task_words("Detection")) == ("k-nearest-neighbor classification", "Detection")
