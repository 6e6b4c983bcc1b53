"""Every task with what the rest of histobench must know about it; the recipes are in `protocols`.

What runs a task is in `evaluation.tasks`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from histobench.core.errors import HistobenchError, did_you_mean

LINEAR_PROBE = "Linear-Probe"
FEW_SHOT = "Few-shot"
ZERO_SHOT = "Zero-shot"
ROBUSTNESS = "Robustness"
PATIENT = "Patient"
FINE_TUNE = "Fine-tune"
#: The settings of Fine-tune: the control, and the network with its adapter.
UNADAPTED, ADAPTED = "frozen", "lora"
OF_TOKENS = "-tokens"

#: The target of most tasks: one class per image or patient.
CLASS = "class"
SURVIVAL = "survival"
MULTILABEL = "multilabel"
ORDINAL = "ordinal"
MASK = "mask"
#: The class of a mask that is no tissue of interest.
BACKGROUND = "background"
LINEAR, NEIGHBORS = "linear", "knn"


@dataclass(frozen=True)
class TargetKind:
    """A target that is not one class: its task and its columns; its metrics are in the metric catalogue."""

    name: str
    task: str
    words: str
    columns: tuple[str, ...]  # those of the table, unless others are named


TARGETS = {
    kind.name: kind
    for kind in (
        TargetKind("regression", "Regression", "ridge regression of a number", ("label",)),
        TargetKind(SURVIVAL, "Survival", "Cox regression of survival times", ("time", "event")),
        TargetKind(MULTILABEL, "Multi-label", "linear probing of each of several labels", ()),
        TargetKind(ORDINAL, "Ordinal", "cumulative-link regression of ordered levels", ("label",)),
        TargetKind(MASK, "Segmentation", "segmentation by a readout of patch tokens", ("mask_path",)),
    )
}


@dataclass(frozen=True)
class RoiTask:
    """One task. `words` say in a sentence what encoders were evaluated by."""

    name: str
    words: str
    by_default: bool = False  # whether a plan that names no tasks has it
    once: bool = False  # measured on the features themselves: the same under every preset
    trained: bool = True  # whether it needs training images
    methods: bool = False  # its settings are methods: each has a table of its own in summaries
    targets: tuple[str, ...] = (CLASS,)  # the kinds of target that it predicts, the usual one first
    on_images: bool = False  # runs the network on the images itself; stored features are not enough


#: In the order of the pages.
CATALOGUE: tuple[RoiTask, ...] = (
    RoiTask(LINEAR_PROBE, "linear probing", by_default=True),
    RoiTask("KNN", "k-nearest-neighbor classification", by_default=True),
    RoiTask("Proto", "nearest class prototypes", by_default=True),
    RoiTask(FEW_SHOT, "few-shot classification", by_default=True),
    RoiTask(ZERO_SHOT, "zero-shot classification with text prompts", by_default=True, trained=False),
    RoiTask("Retrieval", "image retrieval"),
    RoiTask("Label-efficiency", "linear probing on shares of the training labels"),
    RoiTask(PATIENT, "predictions per patient or slide", methods=True),
    RoiTask(
        FINE_TUNE,
        "light fine-tuning with LoRA",
        once=True,
        methods=True,
        targets=(CLASS, MASK),
        on_images=True,
    ),
    RoiTask(ROBUSTNESS, "measures of robustness", once=True, trained=False),
    *(
        RoiTask(
            kind.task,
            kind.words,
            once=kind.name != MULTILABEL,
            methods=True,
            targets=(kind.name,),
            on_images=kind.name == MASK,
        )
        for kind in TARGETS.values()
    ),
)
TASKS = tuple(task.name for task in CATALOGUE)
DEFAULT_TASKS = tuple(task.name for task in CATALOGUE if task.by_default)
UNTRAINED = tuple(task.name for task in CATALOGUE if not task.trained)
ONCE = tuple(task.name for task in CATALOGUE if task.once)
WITH_METHODS = tuple(task.name for task in CATALOGUE if task.methods)
ON_IMAGES = tuple(task.name for task in CATALOGUE if task.on_images)
_BY_NAME = {task.name: task for task in CATALOGUE}


def canonical_task(name: str) -> str:
    """The documented spelling of a task's name, whatever its case; an error if there is no such task."""
    for task in TASKS:
        if task.lower() == name.lower():
            return task
    raise HistobenchError(f"unknown task {name!r}; {did_you_mean(name, TASKS)}")


def main_task(tasks: Iterable[str]) -> str:
    """The task that is shown where none is named: linear probing, else the first one of frozen encoders.

    >>> main_task(["KNN", "Linear-Probe"]), main_task(["Fine-tune", "Segmentation"])
    ('Linear-Probe', 'Segmentation')
    """
    return min(tasks, key=lambda task: (task != LINEAR_PROBE, task == FINE_TUNE))


def a_target(kind: str) -> str:
    """A kind of target within a sentence.

    >>> a_target("ordinal"), a_target("survival")
    ('an ordinal target', 'a survival target')
    """
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} target"


def not_applicable(task: str, target: str) -> str:
    """Why a task cannot be run on a target, in one line; empty where it can.

    >>> not_applicable("KNN", "regression")
    'does not apply to a regression target, whose task is Regression'
    """
    own = _BY_NAME[task].targets
    if target in own:
        return ""
    if target == CLASS:
        return f"needs {a_target(own[0])}: give `target` {own[0]}"
    return f"does not apply to {a_target(target)}, whose task is {TARGETS[target].task}"


def task_words(name: str) -> str:
    """What a task is in a sentence; one of another tool goes by its name."""
    return _BY_NAME[name].words if name in _BY_NAME else name


def task_place(name: str) -> tuple[int, str]:
    """Where a task stands on the pages; those of other tools follow by name."""
    return (TASKS.index(name) if name in TASKS else len(TASKS), name)
