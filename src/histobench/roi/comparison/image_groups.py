"""The patients or slides of a run's images, and how its test set is drawn again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from histobench.core.statistics.resampling import SamplingDesign, design_for_labels

if TYPE_CHECKING:
    from histobench.roi.predictions import Predictions


def image_groups(predictions: Predictions) -> list[str] | None:
    """A group for every image; one without a group stands alone. None where no image has a group."""
    if predictions.groups is None or not any(predictions.groups):
        return None
    return [f"group {group}" if group else f"image {k}" for k, group in enumerate(predictions.groups)]


def design_of(predictions: Predictions) -> SamplingDesign:
    """Whole groups where there are any, otherwise images within classes."""
    return design_for_labels(predictions.labels, image_groups(predictions))
