"""Paired statistics need the same test images: aligns runs, or says exactly what differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from histobench.roi.predictions import Predictions


def aligned(runs: Mapping[str, Predictions], *, dataset: str = "") -> dict[str, Predictions]:
    """The runs with their images in the order of the first; refused when the images are not the same."""
    # A run that knows the patients comes first: it speaks for runs that do not.
    first = next((name for name, run in runs.items() if run.groups is not None), next(iter(runs)))
    reference = runs[first]
    return {
        name: reference if name == first else _align(first, reference, name, run, dataset)
        for name, run in runs.items()
    }


def _align(
    first: str, reference: Predictions, second: str, predictions: Predictions, dataset: str
) -> Predictions:
    where = f" of {dataset}" if dataset else ""
    refusal = f"cannot compare {first} with {second}: "
    if reference.classes != predictions.classes:
        raise HistobenchError(
            f"{refusal}their class maps differ ({_shown(reference.classes)} and "
            f"{_shown(predictions.classes)}); evaluate both with the same class map"
        )
    advice = "; paired statistics need the same test set, so evaluate both on the same one"
    if reference.img_names != predictions.img_names:
        only_first = set(reference.img_names) - set(predictions.img_names)
        only_second = set(predictions.img_names) - set(reference.img_names)
        if only_first or only_second:
            parts = [
                f"{len(only)} only for {who} (such as {min(only)})"
                for who, only in ((first, only_first), (second, only_second))
                if only
            ]
            raise HistobenchError(
                f"{refusal}they were tested on different images{where}: {len(reference)} and "
                f"{len(predictions)}, {' and '.join(parts)}{advice}"
            )
        predictions = _reordered(reference, predictions, refusal, where)
    if len(reference) != len(predictions):
        raise HistobenchError(f"{refusal}{len(reference)} and {len(predictions)} test images{where}{advice}")
    wrong = np.flatnonzero(reference.labels != predictions.labels)
    if len(wrong):
        k = int(wrong[0])
        image = reference.img_names[k] or f"image {k}"
        raise HistobenchError(
            f"{refusal}the true labels of {len(wrong)} test images{where} differ, such as {image}: "
            f"{_class(reference, k)} and {_class(predictions, k)}{advice}"
        )
    if predictions.groups is not None and reference.groups != predictions.groups:
        raise HistobenchError(
            f"{refusal}the groups (patients or slides) of the test images{where} differ{advice}"
        )
    return replace(predictions, groups=reference.groups)


def _reordered(reference: Predictions, predictions: Predictions, refusal: str, where: str) -> Predictions:
    if len(set(reference.img_names)) < len(reference) or len(reference) != len(predictions):
        raise HistobenchError(
            f"{refusal}image names{where} repeat and their order differs, so images cannot be matched; "
            "give every test image its own name"
        )
    place = {name: k for k, name in enumerate(predictions.img_names)}
    return taken(predictions, np.array([place[name] for name in reference.img_names]))


def taken(predictions: Predictions, order: NDArray[np.int64]) -> Predictions:
    """The predictions of the images at the places `order`."""
    groups, episodes = predictions.groups, predictions.episodes
    return replace(
        predictions,
        probabilities=predictions.probabilities[order],
        labels=predictions.labels[order],
        predicted=predictions.predicted[order],
        img_names=tuple(predictions.img_names[k] for k in order),
        groups=None if groups is None else tuple(groups[k] for k in order),
        episodes=None if episodes is None else episodes[order],
        sites={column: tuple(values[k] for k in order) for column, values in predictions.sites.items()},
    )


def _class(predictions: Predictions, k: int) -> str:
    label = int(predictions.labels[k])
    return predictions.classes[label] if label < len(predictions.classes) else str(label)


def _shown(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:6]) + (f", ... {len(classes)} classes" if len(classes) > 6 else "")
