"""What the episodes of one few-shot setting gave, as a file that the one who evaluates reads."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.atomic import atomic_path
from histobench.core.errors import HistobenchError
from histobench.core.plain_file import check_plain
from histobench.core.reading import patiently
from histobench.roi.protocols.few_shot import FewShotSetting
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.results.episode_predictions import (
    EpisodeFile,
    EpisodePredictions,
    log_odds_of,
    read_episode_predictions,
)

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
