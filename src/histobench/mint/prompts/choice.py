"""Whose words a run uses: `--prompts own` or `--prompts official --prompts-dir DIR`."""

from __future__ import annotations

from pathlib import Path

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.prompts.first_message import OwnWording, Wording
from histobench.mint.prompts.published import PublishedWording

CHOICES = ("own", "official")


def choose_wording(name: str = "own", folder: str | Path | None = None) -> Wording:
    """The wording called `name`; the official one is read from `folder`, a clone of the benchmark."""
    if name not in CHOICES:
        raise HistobenchError(f"unknown prompts {name!r}; {did_you_mean(name, CHOICES)}")
    if name == "own":
        return OwnWording()
    if folder is None:
        raise HistobenchError(
            "`prompts` official needs `prompts_dir`: a clone of github.com/xingyaoww/mint-bench"
        )
    return PublishedWording(folder)
