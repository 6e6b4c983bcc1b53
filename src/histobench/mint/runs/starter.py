"""A handful of questions that come with the package, so that a first run needs no download."""

from __future__ import annotations

from pathlib import Path

from histobench.mint.configs.dataset import Dataset
from histobench.mint.tasks.reasoning import ReasoningTask

NAME = "starter"


class StarterTask(ReasoningTask):
    """Short arithmetic, in the manner of gsm8k; too few to say how good a model is."""

    task_type = "reasoning"
    data_path = Path(__file__).parent / "starter_tasks.jsonl"


def starter_dataset() -> Dataset:
    """The questions as a dataset; not part of the published matrix, so not in its tables."""
    return Dataset(NAME, StarterTask, "reasoning")
