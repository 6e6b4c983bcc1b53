"""Who made the predictions of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunIdentity:
    """Who made the predictions: written into every file and row so that numbers can be traced."""

    dataset: str
    encoder: str
    preset: str = "uni"
    seed: int = 0
    fingerprint: str = ""
    description: str = ""
    size: str = ""  # of the images, as the encoder sees them
