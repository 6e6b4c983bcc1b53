"""The tasks that run the network on images, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from histobench.roi.evaluation.context import TaskResult
from histobench.roi.evaluation.fine_tune_task import run_fine_tune
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.evaluation.segmentation_task import run_segmentation
from histobench.roi.task_catalogue import FINE_TUNE, MASK, TARGETS

#: The tasks of the catalogue with `on_images`, each with what runs it.
IMAGE_RUNNERS: dict[str, Callable[[ImageContext], Iterable[TaskResult]]] = {
    FINE_TUNE: run_fine_tune,
    TARGETS[MASK].task: run_segmentation,
}
