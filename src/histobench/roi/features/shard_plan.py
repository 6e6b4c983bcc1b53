"""Which images an encoder still needs, in shards, and feature files from cached rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.data.roi_dataset import SPLITS, RoiImage, listing
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.registry import EncoderRecipe
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.assemble import assemble, file_name, model_name, size_of
from histobench.roi.features.cache.content_hashes import Contents
from histobench.roi.features.cache.listing import record_set
from histobench.roi.features.cache.row_cache import RowCache
from histobench.roi.features.fingerprint import LIBRARIES, feature_set_fingerprint, versions
from histobench.roi.features.inference.device_runner import PRECISION, EncoderState
from histobench.roi.features.inference.shards import Shard
from histobench.roi.options import Settings

#: Under this name a cache keeps the versions of the libraries under which its rows were last computed or
#: compared. With the same versions a zoo encoder whose images are all cached is not built.
VERSIONS = "versions"


@dataclass(frozen=True)
class Extraction:
    """One feature file and how it came about; `computed` images were not in the cache."""

    encoder: str
    #: The name by which the encoder was asked for, which may be an alias.
    asked: str
    split: str
    path: Path
    images: int
    computed: int
    fingerprint: str
    #: (image, reason) of what was left out.
    skipped: tuple[tuple[str, str], ...] = ()
    #: Of the whole run: seconds the device spent in this encoder.
    forward_seconds: float = 0.0


def problems_of(
    contents: Contents, unreadable: Mapping[Path, str], bad: Mapping[bytes, str]
) -> dict[RoiImage, str]:
    """Every image that cannot be used, with the line that says so."""
    problems: dict[RoiImage, str] = {}
    for image, key in (pair for split in SPLITS for pair in contents.of(split)):
        why = unreadable.get(image.path) if key is None else bad.get(key)
        if why is not None:
            place = "" if image.origin == str(image.path) else f"{image.origin}: "
            problems[image] = f"{place}{image.path}: {why}"
    return problems


@dataclass(frozen=True)
class PlannedEncoder:
    """One encoder with every decision about it: what its rows are called, and how they are computed."""

    #: None if the encoder exists in this process only.
    recipe: EncoderRecipe | None
    #: The name by which it was asked for, which may be an alias; its own, and that of file names.
    asked: str
    name: str
    model: str
    size: int | str
    origin: str
    #: What the features depend on besides the image; it names the cache.
    description: dict[str, Any]
    #: Precision, batch and compilation as decided.
    record: dict[str, Any]
    #: The cache keeps the record under this name.
    job: str
    #: Encoders with the same pixels share the decoding.
    pixels: str
    parameters: int

    @classmethod
    def of(cls, given: BasePatchEncoder | EncoderRecipe, state: EncoderState) -> PlannedEncoder:
        transform = state.encoder.eval_transforms
        pixels = given.name
        if isinstance(transform, TransformSpec):
            pixels = f"{transform.resize} {transform.crop} {transform.interpolation} {transform.squash}"
        return cls(
            given if isinstance(given, EncoderRecipe) else None,
            given.name,
            state.encoder.name,
            model_name(state.encoder),
            size_of(state.encoder),
            str(state.encoder.origin or ""),
            state.cache.description,
            dict(state.record),
            state.job,
            pixels,
            sum(parameter.numel() for parameter in state.encoder.parameters()),
        )

    def build(self) -> BasePatchEncoder:
        assert self.recipe is not None
        return self.recipe.build()

    @classmethod
    def from_note(cls, note: Mapping[str, Any]) -> PlannedEncoder:
        """What `asdict` gave."""
        plain = dict(note)
        return cls(EncoderRecipe(**plain.pop("recipe")), **plain)


@dataclass(frozen=True)
class ExtractionPlan:
    encoders: tuple[PlannedEncoder, ...]
    #: Encoder -> why it cannot be used.
    failures: Mapping[str, str]
    shards: tuple[Shard, ...]
    refs: Mapping[bytes, ImageRef]
    contents: Contents
    unreadable: Mapping[Path, str]
    device: str
    threads: int


def write_splits(
    planned: PlannedEncoder,
    cache: RowCache,
    contents: Contents,
    problems: Mapping[RoiImage, str],
    *,
    save_dir: Path,
    settings: Settings,
) -> list[Extraction]:
    """Write the feature files of one encoder; `problems` are left out."""
    dataset = contents.dataset
    if problems and settings.on_bad_image == "stop":
        raise HistobenchError(
            f"{listing(problems.values())}\n  `on_bad_image` skip leaves such images out; "
            "what has been computed is kept"
        )
    record = cache.decision(PRECISION) | cache.decision(planned.job)
    dim = int(planned.description["dim"])
    # Rows that were made anew under the same description are another set for all that comes after.
    generation = cache.content if settings.no_cache else cache.generation
    written = []
    for split in (split for split in SPLITS if dataset.splits.get(split)):
        pairs = [(image, key) for image, key in contents.of(split) if key and image not in problems]
        if not pairs:
            raise HistobenchError(f"{dataset.name}: none of the {split} images can be read")
        images, rows = [image for image, _ in pairs], [key for _, key in pairs]
        skipped = tuple((image.name, problems[image]) for image in dataset.splits[split] if image in problems)
        name = feature_set_fingerprint(cache.fingerprint + generation, rows)
        path = save_dir / file_name(dataset.name, planned.model, planned.size, split)
        metadata = {
            "dataset": dataset.name,
            "split": split,
            "classes": list(dataset.classes),
            "encoder": planned.name,
            "size": planned.size,
            "dim": dim,
            "precision": str(record.get("precision", planned.description["precision"])),
            "fingerprint": name,
            "encoder_fingerprint": cache.fingerprint,
            "identity": cache.description["identity"],
            "transform": cache.description["transform"],
            "exactness": record.get("exactness"),
            "skipped": [{"image": image, "reason": why} for image, why in skipped],
            "versions": versions(),
        }
        if planned.origin:
            metadata["origin"] = planned.origin
        assemble(cache, images, rows, dim=dim, metadata=metadata, path=path, target=dataset.target)
        record_set(cache.root, name, metadata, path, len(images))
        written.append(Extraction(planned.name, planned.asked, split, path, len(images), 0, name, skipped))
    here = versions(*LIBRARIES)
    is_compared = "family" in planned.description["identity"] and settings.recheck != 0
    if is_compared and cache.decision(VERSIONS) != here:
        with suppress(HistobenchError):  # a cache that is mounted read-only
            cache.decide(VERSIONS, here)
    return written
