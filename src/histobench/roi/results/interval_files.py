"""The stored bootstrap intervals of a run, and whether they are of the predictions that are there now."""

from __future__ import annotations

import hashlib
from typing import Any

from histobench.core.plain_data import parse_json
from histobench.core.plain_file import read_plain_text
from histobench.core.reading import read_bytes, unreadable
from histobench.roi.results.layout import TaskFiles
from histobench.roi.results.stored_run import StoredRun


def stored_intervals(run: StoredRun) -> dict[str, Any] | None:
    """The content of a run's `*_bootstrap_ci.json`; None where it is not there or of other predictions."""
    files = TaskFiles.beside(run.path)
    return existing_intervals(files, predictions_digest(files)) if files.bootstrap.exists() else None


def existing_intervals(files: TaskFiles, digest: str) -> dict[str, Any] | None:
    """The stored intervals, unless they are broken or of other predictions than the digest."""
    try:
        content = parse_json(read_plain_text(files.bootstrap))
        return content if content["predictions_sha256"] == digest and content["metrics"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def predictions_digest(files: TaskFiles) -> str:
    """Of the predictions and the episodes: what the intervals depend on."""
    digest = hashlib.sha256()
    for path in (files.detailed, files.per_episode):
        if path.exists():
            try:
                digest.update(read_bytes(path))
            except OSError as error:
                raise unreadable(path, error) from error
    if files.per_episode.exists() and files.episode_predictions.exists():
        digest.update(b"predictions of every episode")
    return digest.hexdigest()
