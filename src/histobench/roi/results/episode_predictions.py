"""What each episode (or run) of a task said about each test image: one compact file beside the task's others.

`<task>/<task>_episode_predictions.npz`: `labels` [n] and, for every setting (or `all`), `<setting>/votes`
[n, E] (the greatest number of the type where a class is not part of the episode), `<setting>/classes`
[E, way] and, where kept, `<setting>/log_odds` [n, E, way]: float16, log(p / (1 - p)) + log(way - 1).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, patiently, regular

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
#: Log-odds of what is impossible or certain.
_CERTAIN = 40.0
_ALL = "all"


@dataclass(frozen=True)
class EpisodePredictions:
    """E episodes or runs over n test images; `votes` are -1 where an image's class is not in the episode."""

    votes: NDArray[np.integer[Any]]  # [n, E] class ids
    labels: Ints  # [n]
    classes: Ints  # [E, way], ascending
    log_odds: NDArray[np.float16] | None = None  # [n, E, way] against chance

    def __len__(self) -> int:
        return len(self.classes)

    @classmethod
    def of_runs(cls, probabilities: Sequence[Floats], labels: Ints) -> EpisodePredictions:
        every = np.stack(list(probabilities), axis=1)
        classes = np.tile(np.arange(every.shape[2]), (len(probabilities), 1))
        return cls(every.argmax(2), labels, classes, log_odds_of(every))

    def probabilities(self, episode: int) -> Floats:
        """The class probabilities [n, way] of one episode; NaN for images that are not part of it."""
        assert self.log_odds is not None  # kept on request
        way = self.classes.shape[1]
        return np.asarray(1 / (1 + np.exp(np.log(max(way - 1, 1)) - self.log_odds[:, episode].astype(float))))

    def local(self, episodes: slice) -> tuple[Ints, Ints]:
        """Labels and votes [e, n] as places among each episode's classes; -1 where an image has no part."""
        classes = self.classes[episodes]
        place = np.full((len(classes), int(max(self.labels.max(initial=0), classes.max(initial=0))) + 2), -1)
        np.put_along_axis(place, classes, np.arange(classes.shape[1])[None], axis=1)
        row = np.arange(len(classes))[:, None]
        votes = self.votes[:, episodes].T
        taken = votes >= 0
        return np.where(taken, place[row, self.labels], -1), np.where(taken, place[row, votes], -1)

    def taken(self, images: NDArray[np.integer[Any]]) -> EpisodePredictions:
        log_odds = None if self.log_odds is None else self.log_odds[images]
        return replace(self, votes=self.votes[images], labels=self.labels[images], log_odds=log_odds)


def log_odds_of(probabilities: NDArray[np.floating[Any]]) -> NDArray[np.float16]:
    """Probabilities [..., way] as log-odds against chance, in half precision."""
    p = np.asarray(probabilities, dtype=np.float64)
    with np.errstate(divide="ignore"):
        odds = np.log(p) - np.log1p(-np.minimum(p, 1.0))
    return (np.clip(odds, -_CERTAIN, _CERTAIN) + np.log(max(p.shape[-1] - 1, 1))).astype(np.float16)


class EpisodeFile:
    """A file that is being written, setting by setting; it is opened with the first of them."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path, self._stack = path, stack
        self._archive: zipfile.ZipFile | None = None

    def add(self, setting: str, episodes: EpisodePredictions) -> None:
        if self._archive is None:
            file = self._stack.enter_context(atomic_path(self._path))
            self._archive = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
            self._stack.enter_context(self._archive)
            self.write("labels", _small(episodes.labels, int(episodes.labels.max(initial=0)) + 1))
        prefix = setting or _ALL
        highest = int(max(episodes.votes.max(initial=0), episodes.classes.max(initial=0)))
        # One image after the other: its votes are mostly alike, which is what the compression lives on.
        self.write(f"{prefix}/votes", _small(episodes.votes, highest + 1))
        self.write(f"{prefix}/classes", _small(episodes.classes, highest + 1))
        if episodes.log_odds is not None:
            self.write(f"{prefix}/log_odds", episodes.log_odds)

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Write an array; members that are opened have no date: the same arrays are the same bytes."""
        assert self._archive is not None
        with self._archive.open(f"{name}.npy", "w", force_zip64=True) as handle:
            np.lib.format.write_array(handle, np.ascontiguousarray(values), allow_pickle=False)


@contextmanager
def episode_file(path: Path) -> Iterator[EpisodeFile]:
    """The file of one task, whole when the block ends; an older one is gone before the task starts."""
    path.unlink(missing_ok=True)
    with ExitStack() as stack:
        yield EpisodeFile(path, stack)


def read_episode_predictions(path: Path, setting: str) -> EpisodePredictions | None:
    """What the episodes of one setting said; None where there is no such file or setting."""
    if not path.is_file():
        return None
    prefix = setting or _ALL
    try:
        with patiently(lambda: np.load(regular(path), allow_pickle=False)) as arrays:
            if f"{prefix}/votes" not in arrays:
                return None
            votes, classes = arrays[f"{prefix}/votes"], arrays[f"{prefix}/classes"].astype(np.int64)
            labels = arrays["labels"].astype(np.int64)
            log_odds = arrays.get(f"{prefix}/log_odds")
        signed = np.where(votes == np.iinfo(votes.dtype).max, -1, votes.astype(np.int32))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise HistobenchError(
            f"{path} does not hold the predictions of episodes: {error}; delete it and run the task again"
        ) from error
    return EpisodePredictions(signed, labels, classes, log_odds)


def _small(values: NDArray[np.integer[Any]], n_classes: int) -> NDArray[Any]:
    """The smallest unsigned type that has a number to spare; -1 becomes that number."""
    kind = np.uint8 if n_classes < 256 else np.uint16
    return np.where(values < 0, np.iinfo(kind).max, values).astype(kind)
