"""Few-shot as a task: episodes of every way and shot, played here or, of a large set, elsewhere."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, check_plain, patiently
from histobench.roi.evaluation.context import Context, TaskResult, TaskSkippedError
from histobench.roi.evaluation.evaluation_request import task_digest
from histobench.roi.features.feature_file import fingerprint_of
from histobench.roi.protocols import thunder
from histobench.roi.protocols.few_shot import FewShotSetting, few_shot_settings, possible_settings
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.results.episode_predictions import (
    EpisodeFile,
    EpisodePredictions,
    log_odds_of,
    read_episode_predictions,
)
from histobench.roi.task_catalogue import FEW_SHOT

# What the episodes of one few-shot setting gave, as a file that the one who evaluates reads.

_INFO = ("way", "shot", "n_iter")
_ARRAYS = ("probabilities", "predicted", "info", "taken", "names", "metrics")


@dataclass(frozen=True)
class PlayedSetting:
    """All that results are made of: what was said on average, and by every episode."""

    outcome: Outcome
    metrics: dict[str, NDArray[np.float64]]  # [E] each
    taken: NDArray[np.int64]  # [n] episodes that each image had a part in
    episodes: EpisodePredictions

    @classmethod
    def of(cls, setting: FewShotSetting, labels: NDArray[np.int64]) -> PlayedSetting:
        """From the protocol; `labels` are those of the test images."""
        log_odds = None if setting.probabilities is None else log_odds_of(setting.probabilities)
        episodes = EpisodePredictions(setting.votes, labels, setting.episodes.classes, log_odds)
        return cls(setting.outcome, setting.episode_metrics, setting.episodes_per_image, episodes)

    @property
    def name(self) -> str:
        """As in the file names: `5way_16shot`."""
        return f"{self.outcome.info['way']}way_{self.outcome.info['shot']}shot"

    def write(self, path: Path) -> None:
        """Write it down, whole or not at all; the archive has a checksum of every array."""
        with (
            atomic_path(path) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            file = EpisodeFile(archive)
            file.add("", self.episodes)
            file.write("probabilities", self.outcome.probabilities)
            file.write("predicted", self.outcome.predicted)
            file.write("info", np.array([self.outcome.info[name] for name in _INFO]))
            file.write("taken", self.taken)
            file.write("names", np.array(list(self.metrics)))
            file.write("metrics", np.stack(list(self.metrics.values())))

    @classmethod
    def read(cls, path: Path) -> PlayedSetting | None:
        """What `write` wrote; None where it cannot be had from there, and has to be played again."""

        def arrays() -> dict[str, NDArray[Any]]:
            with np.load(check_plain(path), allow_pickle=False) as stored:
                return {name: stored[name] for name in _ARRAYS}

        try:
            found = patiently(arrays)
            episodes = read_episode_predictions(path, "")
        except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile, HistobenchError):
            return None
        if episodes is None:
            return None
        info = dict(zip(_INFO, found["info"].tolist(), strict=True))
        return cls(
            Outcome(found["probabilities"], found["predicted"], info),
            dict(zip(found["names"].tolist(), found["metrics"], strict=True)),
            found["taken"],
            episodes,
        )


Setting = tuple[int, int]  # way and shot


def run_few_shot(context: Context) -> Iterable[TaskResult]:
    """Episodes with a few training images per class, for every way and shot."""
    if context.preset.few_shot == "voted":
        yield from _voted_few_shot(context)
        return
    settings, warnings = _possible(context)
    if not settings:
        raise TaskSkippedError("; ".join(warnings) or "no way and shot fits the training set")
    folder = _folder(context)
    files = {} if folder is None else {setting: _file(folder, setting) for setting in settings}
    known = {setting: path for setting, path in files.items() if path.is_file()}
    here = _played(context, [setting for setting in settings if setting not in known])
    for number, setting in enumerate(settings):
        played = PlayedSetting.read(known[setting]) if setting in known else next(here)
        if played is None:  # damaged, or gone by now
            played = next(_played(context, [setting]))
        yield TaskResult.averaged(
            context.predictions(played.outcome, episodes=played.taken),
            played.metrics,
            played.episodes,
            setting=played.name,
            notes=tuple(warnings) if number == 0 else (),
        )


def play(context: Context, settings: Sequence[Setting]) -> list[Path]:
    """Play some settings for whoever runs the task, and name their files; what is there is not played again.

    Settings that the training set does not allow are left out.
    """
    folder = _folder(context)
    assert folder is not None
    possible, _ = _possible(context)
    asked = [setting for setting in settings if setting in possible]
    left = [setting for setting in asked if PlayedSetting.read(_file(folder, setting)) is None]
    for setting, played in zip(left, _played(context, left), strict=True):
        played.write(_file(folder, setting))
    return [_file(folder, setting) for setting in asked]


def _possible(context: Context) -> tuple[list[Setting], list[str]]:
    options = context.request.options
    _, counts = np.unique(context.train.labels.numpy(), return_counts=True)
    ways, shots, warnings = possible_settings(
        len(counts), int(counts.min()), options.n_way, options.n_shot, use_all_way=options.use_all_way
    )
    return list(product(ways, shots)), warnings


def _played(context: Context, settings: Sequence[Setting]) -> Iterator[PlayedSetting]:
    request = context.request
    labels = request.test.labels.numpy()
    for setting in few_shot_settings(
        context.train.embeddings,
        context.train.labels,
        request.test.embeddings,
        request.test.labels,
        n_classes=len(context.classes),
        settings=settings,
        n_iter=request.options.n_iter,
        seed=request.seed,
        device=context.device,
        keep_probabilities=request.options.keep_probabilities,
    ):
        yield PlayedSetting.of(setting, labels)


def _folder(context: Context) -> Path | None:
    """Where settings of the same features, labels and options are that others have played."""
    request = context.request
    if request.played_in is None:
        return None
    return request.played_in / task_digest(request, FEW_SHOT, fingerprint_of(*request.features))


def _file(folder: Path, setting: Setting) -> Path:
    return folder / f"{setting[0]}way_{setting[1]}shot.npz"


def _voted_few_shot(context: Context) -> Iterable[TaskResult]:
    labels: NDArray[np.int64] = context.train.labels.numpy()
    smallest = int(np.bincount(labels)[np.unique(labels)].min())
    shots = [shot for shot in thunder.SHOTS if shot <= smallest]
    if not shots:
        raise TaskSkippedError("the smallest class has no training image")
    for shot in shots:
        outcome = thunder.voted_simple_shot(
            context.train.embeddings,
            context.train.labels,
            context.request.test.embeddings,
            n_classes=len(context.classes),
            shot=shot,
            seed=context.request.seed,
            device=context.device,
        )
        yield TaskResult.scored(
            outcome, context.predictions(outcome), setting=f"{outcome.info['way']}way_{shot}shot"
        )
