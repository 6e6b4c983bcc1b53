"""A handful of questions that come with the package, so that a first run needs no download."""

from __future__ import annotations

from pathlib import Path

from histobench.mint.configs.dataset import Dataset
from histobench.mint.tasks.reasoning import ReasoningTask

#: Sums that a model of 135 million parameters can sometimes do; what is run where no tasks are named.
NAME = "quickstart"
#: Word problems in the manner of gsm8k, for models that can do more.
STARTER = "starter"
BUILT_IN = (NAME, STARTER)


class QuickstartTask(ReasoningTask):
    """One sum; too few and too easy to say how good a model is."""

    task_type = "reasoning"
    data_path = Path(__file__).parent / "quickstart_tasks.jsonl"


class StarterTask(ReasoningTask):
    """Short arithmetic, in the manner of gsm8k; too few to say how good a model is."""

    task_type = "reasoning"
    data_path = Path(__file__).parent / "starter_tasks.jsonl"


def built_in_dataset(name: str) -> Dataset:
    """Built-in questions as a dataset; not part of the published matrix, so not in its tables."""
    return Dataset(name, QuickstartTask if name == NAME else StarterTask, "reasoning")
