"""An extraction that is planned and not yet computed: plain values that any process can work with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from histobench.roi.data.image_ref import ImageRef
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.extraction import EncoderFacts
from histobench.roi.features.inference.device_runner import Track
from histobench.roi.features.inference.loop import Unit
from histobench.roi.features.settings import EncoderRecipe


@dataclass(frozen=True)
class PlannedEncoder:
    """One encoder with every decision about it: what its rows are called, and how they are computed."""

    recipe: EncoderRecipe
    facts: EncoderFacts
    #: What the features depend on besides the image; it names the cache.
    description: dict[str, Any]
    #: Precision, batch and compilation as decided.
    record: dict[str, Any]
    #: The cache keeps the record under this name.
    job: str
    #: Encoders with the same pixels share the decoding.
    pixels: str
    parameters: int
    #: Images that were in the cache.
    known: int

    @classmethod
    def of(cls, recipe: EncoderRecipe, track: Track, *, known: int) -> PlannedEncoder:
        """The plain values of a track whose decisions are made."""
        transform = track.encoder.eval_transforms
        pixels = recipe.name
        if isinstance(transform, TransformSpec):
            pixels = f"{transform.resize} {transform.crop} {transform.interpolation} {transform.squash}"
        return cls(
            recipe,
            EncoderFacts.of(track.encoder, recipe.name),
            track.cache.description,
            dict(track.record),
            track.job,
            pixels,
            sum(parameter.numel() for parameter in track.encoder.parameters()),
            known,
        )

    def as_note(self) -> dict[str, Any]:
        """Plain values to be written down."""
        return asdict(self)

    @classmethod
    def from_note(cls, note: Mapping[str, Any]) -> PlannedEncoder:
        """What `as_note` gave."""
        plain = dict(note)
        return cls(EncoderRecipe(**plain.pop("recipe")), EncoderFacts(**plain.pop("facts")), **plain)


@dataclass(frozen=True)
class ExtractionPlan:
    """What is missing, by shards; `keys` are the content hashes of all readable images."""

    encoders: tuple[PlannedEncoder, ...]
    #: Encoder -> why it cannot be used.
    failures: Mapping[str, str]
    units: tuple[Unit, ...]
    refs: Mapping[bytes, ImageRef]
    keys: Mapping[Path, bytes]
    unreadable: Mapping[Path, str]
    device: str
    threads: int
