"""What is known of one encoder: an entry of the zoo as a frozen, checked value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.records import Entry, read_entry
from histobench.core.renamed import Renamed, warn_renamed
from histobench.roi.encoders.transform import INTERPOLATIONS, TransformSpec

FAMILIES = ("timm", "transformers", "open_clip", "own", "tiny_vl")
POOLINGS = ("cls", "cls+mean", "mean", "pooled", "layer3", "layer4", "network")
PRECISIONS = ("fp32", "fp16", "bf16")
#: `by_hand`: a page (a shared drive) from which no program can download.
SOURCES = ("hub", "url", "by_hand", "package", "project", "seed")
#: How positions are resampled. `plain`: bicubic to the new grid (transformers). `timm`: the same with
#: antialiasing. `dino`: by a scale factor with an offset of 0.1 (the DINO code), which moves the sampling
#: points slightly. `origin`: as the code whose tensor names the file has.
POSITIONS = ("plain", "timm", "dino", "origin")
#: What becomes of an image that is not square: its centre is cut out, or it is squeezed into a square.
FITS = ("crop", "squash")

#: Channel statistics by name, so that an entry cannot mistype them.
NORMS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "hoptimus": ((0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)),
    "hibou": ((0.7068, 0.5755, 0.722), (0.195, 0.2316, 0.1816)),
    "lunit": ((0.70322989, 0.53606487, 0.66096631), (0.21716536, 0.26081574, 0.20723464)),
    "genbio": ((0.697, 0.575, 0.728), (0.188, 0.240, 0.187)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


@dataclass(frozen=True)
class WeightsSource(Entry):
    """Where the published weights live and how to recognise them."""

    kind: str = field(default="hub", metadata={"words": SOURCES})
    repo: str = ""
    revision: str = ""
    file: str = ""
    sha256: str = ""
    gated: bool = False
    url: str = ""
    #: Name of the renaming that turns the published tensor names into the network's (`families/family.py`).
    layout: str = ""
    #: Key of the dictionary inside the file that holds the tensors, where it is not an obvious one.
    container: str = ""
    #: How to resample the file's position table to another image size, once, when loading.
    positions: str = field(default="", metadata={"words": ("", *POSITIONS)})
    #: Only the tensors whose names start like this are read: one tower of a large multimodal checkpoint.
    only: str = ""
    #: Tensors of the file that the features do not need, as patterns (`fc.*`); anything else must load.
    ignore: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        return f"https://huggingface.co/{self.repo}" if self.kind == "hub" else self.url


@dataclass(frozen=True)
class Variant(Entry):
    """A named other output of the same network: `virchow2@cls`."""

    pooling: str = field(metadata={"words": POOLINGS})
    dim: int
    zero_shot: bool = True
    alias: str = ""
    note: str = ""


@dataclass(frozen=True)
class TextTowerSpec(Entry):
    """What an image-text encoder needs besides its checkpoint."""

    context: int = 77
    #: Tokenizer files beside the checkpoint; none when the tokenizer comes with the library.
    files: tuple[str, ...] = ()
    #: Address of the folder that holds these files, where they are not part of the hub repository.
    url: str = ""


@dataclass(frozen=True)
class Cost(Entry):
    """Size of the image tower (what the features depend on) and of the text tower, and work per image."""

    params: int
    gflops: float = 0.0
    text_params: int = 0


@dataclass(frozen=True)
class Facts(Entry):
    """Where the facts of an entry were read, and when; what the license says of commercial use."""

    date: str
    commercial: str = field(metadata={"words": ("allowed", "restricted", "unclear")})
    #: Where the license was read.
    license: str
    #: Independent sources of the numbers that change features.
    build: tuple[str, ...]
    #: Why commercial use is restricted or unclear, where the name of the license does not say it.
    why: str = ""


@dataclass(frozen=True)
class EncoderSpec(Entry):
    """One encoder of the zoo, in one of its outputs."""

    name: str
    title: str
    family: str = field(metadata={"words": FAMILIES})
    arch: str
    dim: int
    pooling: str = field(metadata={"words": POOLINGS})
    transform: TransformSpec  # `input` in the file
    source: WeightsSource  # `weights` in the file
    license: str
    citation: str
    reference: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    precision: str = field(default="fp32", metadata={"words": PRECISIONS})
    #: Which input sizes the network takes: its own only, multiples of `patch`, or any.
    sizes: str = field(default="fixed", metadata={"words": ("fixed", "patch", "any")})
    patch: int = 1
    normalised: bool = False
    pathology: bool = True
    mpp: float | None = None
    text: TextTowerSpec | None = None
    variants: Mapping[str, Variant] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    #: Facts of the checkpoint's own configuration that are known to be wrong, and are overruled.
    traps: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""
    #: What could not be confirmed at the source: a reason to look twice at its results.
    unconfirmed: str = ""
    cost: Cost | None = None
    facts: Facts | None = None
    #: Name of the chosen output; empty for the default one.
    output: str = ""

    licence = Renamed("license")

    @property
    def size(self) -> int:
        """Side of the square input in pixels."""
        return self.transform.crop

    @property
    def full_name(self) -> str:
        return f"{self.name}@{self.output}" if self.output else self.name

    @property
    def supports_zero_shot(self) -> bool:
        """Whether this output can be compared with text."""
        return self.text is not None and (not self.output or self.variants[self.output].zero_shot)

    def with_output(self, output: str) -> EncoderSpec:
        """The same encoder in another of its documented outputs."""
        if output not in self.variants:
            known = ", ".join(f"{self.name}@{name}" for name in self.variants) or "none"
            raise HistobenchError(f"{self.name} has no output {output!r}; its named outputs: {known}")
        variant = self.variants[output]
        return replace(self, output=output, pooling=variant.pooling, dim=variant.dim)

    def with_size(self, size: int | None) -> EncoderSpec:
        """The same encoder at another input size, if its network can take it."""
        if size is None or size == self.size:
            return self
        self.check_size(size)
        return replace(self, transform=self.transform.with_size(size))

    def check_size(self, size: int) -> None:
        if self.sizes == "fixed":
            raise HistobenchError(
                f"{self.name} takes images of {self.size} x {self.size} pixels only, not {size}; "
                f"use `size` {self.size}"
            )
        smallest = self.patch if self.sizes == "patch" else 32
        if size < smallest or (self.sizes == "patch" and size % self.patch):
            below = max(size // self.patch, 1) * self.patch
            near = (below, below + self.patch) if self.sizes == "patch" else (smallest,)
            rule = f"multiples of {self.patch}" if self.sizes == "patch" else f"at least {smallest}"
            raise HistobenchError(
                f"{self.name} cannot take {size} x {size} pixels; possible sizes: {rule} "
                f"(nearest: {', '.join(map(str, near))}; its own: {self.size})"
            )


def parse_spec(name: str, entry: Any, *, where: str = "zoo") -> EncoderSpec:
    """An `EncoderSpec` from one YAML entry; errors name the file, the entry and the field."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise HistobenchError(f"{where}: {name!r} is not a name (letters, digits, _ . + -)")
    place = f"{where}: {name}"
    if not isinstance(entry, Mapping):
        raise HistobenchError(f"{place}: expected fields (key: value), found {type(entry).__name__}")
    if "licence" in entry:
        warn_renamed("`licence` of an encoder entry", "`license`")
        entry = {"license" if key == "licence" else key: value for key, value in entry.items()}
    values = {key: value for key, value in entry.items() if key not in ("input", "weights")}
    if "input" in entry:
        values["transform"] = _transform(entry["input"], f"{place}: input")
    if "weights" in entry:
        source = values["source"] = read_entry(WeightsSource, entry["weights"], f"{place}: weights")
        if source.kind == "hub" and not (source.repo and source.file):
            raise HistobenchError(f"{place}: weights: weights on the hub need repo and file")
    spec = read_entry(EncoderSpec, {**values, "name": name, "output": ""}, place)
    if spec.sizes == "patch" and spec.size % spec.patch:
        raise HistobenchError(f"{where}: {name}: size {spec.size} is not a multiple of patch {spec.patch}")
    return spec


@dataclass(frozen=True)
class _Input(Entry):
    size: int
    norm: Any
    interpolation: str = field(metadata={"words": tuple(INTERPOLATIONS)})
    resize: int | None = None
    fit: str = field(default="crop", metadata={"words": FITS})


def _transform(entry: Any, where: str) -> TransformSpec:
    given = read_entry(_Input, entry, where)
    mean, std = _norm(given.norm, where)
    resize = given.resize or given.size
    if resize < given.size:
        raise HistobenchError(f"{where}: resize {resize} is smaller than size {given.size}")
    return TransformSpec(
        resize=resize,
        crop=given.size,
        interpolation=given.interpolation,
        mean=mean,
        std=std,
        squash=given.fit == "squash",
    )


Triple = tuple[float, float, float]


@dataclass(frozen=True)
class _Norm(Entry):
    mean: Triple
    std: Triple


def _norm(value: Any, where: str) -> tuple[Triple, Triple]:
    if isinstance(value, str):
        if value not in NORMS:
            raise HistobenchError(f"{where}: norm is {value!r}; {did_you_mean(value, NORMS)}")
        return NORMS[value]
    given = read_entry(_Norm, value, f"{where}: norm")
    return given.mean, given.std
