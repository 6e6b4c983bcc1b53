"""The units that play the episodes of a large few-shot evaluation, before its results are put together.

The settings of one evaluation do not depend on each other: each draws its episodes from the seed, its way and
its shot. Whoever evaluates finds what was played, plays what is missing, and writes the same results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.presets import get_preset
from histobench.work.run_folder import RunFolder, Unit

#: Seconds of estimated work beyond which an evaluation is cut, and of every part unless it is one setting.
LARGE_SECONDS = 300.0
#: One episode on one thread, about: what it costs by itself, and every test image of its classes per class.
EPISODE_SECONDS, SCORE_SECONDS = 0.002, 1.2e-7
#: Below the results folder, for all runs.
FOLDER = "work/episodes"


@dataclass(frozen=True)
class EpisodePart:
    """Settings (way, shot) that are played by one unit."""

    settings: tuple[tuple[int, int], ...]
    seconds: float


def parts_of(dataset: RoiDataset, preset: str, options: Mapping[str, Any]) -> list[EpisodePart]:
    """How the few-shot evaluation of a dataset is cut; no parts where it is not large."""
    from histobench.roi.protocols.few_shot import possible_settings

    recipe = get_preset(preset)
    if recipe.few_shot == "voted":
        return []
    learnt = ("train",) if recipe.chooses else ("train", "val")
    counts = Counter(image.label for split in learnt for image in dataset.splits.get(split, ()))
    if not counts:
        return []
    ways, shots, _ = possible_settings(
        len(counts),
        min(counts.values()),
        options["n_way"],
        options["n_shot"],
        use_all_way=options["use_all_way"],
    )
    tested = len(dataset.splits.get("test", ())) / len(counts)  # of one class, about
    seconds = {
        setting: options["n_iter"] * (EPISODE_SECONDS + SCORE_SECONDS * tested * setting[0] ** 2)
        for setting in product(ways, shots)
    }
    return list(_grouped(seconds)) if sum(seconds.values()) > LARGE_SECONDS else []


def episode_units(parts: Sequence[EpisodePart], evaluate: Unit) -> list[Unit]:
    """The units of the parts of one evaluation."""
    return [
        Unit(
            "episodes",
            evaluate.dataset,
            evaluate.encoder,
            {**evaluate.spec, "settings": [list(setting) for setting in part.settings]},
            evaluate.needs,
            part.seconds,
        )
        for part in parts
    ]


def played_in(folder: RunFolder) -> Path:
    """Where the settings are that the units of a run have played."""
    return folder.results / FOLDER


def _grouped(seconds: Mapping[tuple[int, int], float]) -> Iterator[EpisodePart]:
    """Settings in their order, as many together as the limit allows."""
    some: list[tuple[int, int]] = []
    spent = 0.0
    for setting, each in seconds.items():
        if some and spent + each > LARGE_SECONDS:
            yield EpisodePart(tuple(some), spent)
            some, spent = [], 0.0
        some.append(setting)
        spent += each
    yield EpisodePart(tuple(some), spent)
