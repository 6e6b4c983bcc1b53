"""What is known of one encoder: an entry of the zoo as a frozen, checked value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from histobench.core.errors import HistobenchError, did_you_mean
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
SIZE_RULES = ("fixed", "patch", "any")
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
class WeightsSource:
    """Where the published weights live and how to recognise them."""

    kind: str = "hub"
    repo: str = ""
    revision: str = ""
    file: str = ""
    sha256: str = ""
    gated: bool = False
    url: str = ""
    #: Name of the renaming that turns the published tensor names into the network's (`layouts.py`).
    layout: str = ""
    #: Key of the dictionary inside the file that holds the tensors, where it is not an obvious one.
    container: str = ""
    #: How to resample the file's position table to another image size (`positions.py`), once, when loading.
    positions: str = ""
    #: Only the tensors whose names start like this are read: one tower of a large multimodal checkpoint.
    only: str = ""
    #: Tensors of the file that the features do not need, as patterns (`fc.*`); anything else must load.
    ignore: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """The web page of the model."""
        return f"https://huggingface.co/{self.repo}" if self.kind == "hub" else self.url


@dataclass(frozen=True)
class Variant:
    """A named other output of the same network: `virchow2@cls`."""

    pooling: str
    dim: int
    zero_shot: bool = True
    alias: str = ""
    note: str = ""


@dataclass(frozen=True)
class TextTowerSpec:
    """What an image-text encoder needs besides its checkpoint."""

    context: int = 77
    #: Tokenizer files beside the checkpoint; none when the tokenizer comes with the library.
    files: tuple[str, ...] = ()
    #: Address of the folder that holds these files, where they are not part of the hub repository.
    url: str = ""


@dataclass(frozen=True)
class Cost:
    """Size of the network and work per image at the default size, counted by `scripts/measure_zoo.py`."""

    params: int
    gflops: float


@dataclass(frozen=True)
class EncoderSpec:
    """One encoder of the zoo, in one of its outputs."""

    name: str
    title: str
    family: str
    arch: str
    dim: int
    pooling: str
    transform: TransformSpec
    source: WeightsSource
    licence: str
    citation: str
    reference: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    #: Which input sizes the network takes: its own only, multiples of `patch`, or any.
    sizes: str = "fixed"
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
    #: Name of the chosen output; empty for the default one.
    output: str = ""

    @property
    def size(self) -> int:
        """Side of the square input in pixels."""
        return self.transform.crop

    @property
    def full_name(self) -> str:
        """The name with its output: `virchow2@cls`."""
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
        """Raise an error that names the possible sizes when the network cannot take `size` pixels."""
        if self.sizes == "fixed":
            raise HistobenchError(
                f"{self.name} takes images of {self.size} x {self.size} pixels only, not {size}; "
                f"use `resize_size` {self.size}"
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
    reader = _Entry(f"{where}: {name}", entry)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise HistobenchError(f"{where}: {name!r} is not a name (letters, digits, _ . + -)")
    family = reader.choice("family", FAMILIES)
    spec = EncoderSpec(
        name=name,
        title=reader.text("title"),
        family=family,
        arch=reader.text("arch"),
        dim=reader.integer("dim"),
        pooling=reader.choice("pooling", POOLINGS),
        transform=_transform(reader.entry_of("input")),
        source=_source(reader.entry_of("weights")),
        licence=reader.text("licence"),
        citation=reader.text("citation"),
        reference=reader.text("reference"),
        kwargs=reader.mapping("kwargs"),
        precision=reader.choice("precision", PRECISIONS, "fp32"),
        sizes=reader.choice("sizes", SIZE_RULES, "fixed"),
        patch=reader.integer("patch", 1),
        normalised=reader.flag("normalised"),
        pathology=reader.flag("pathology", True),
        mpp=reader.number("mpp"),
        text=_text(reader.entry_of("text")) if reader.has("text") else None,
        variants={
            key: _variant(_Entry(f"{reader.where}: variants: {key}", value))
            for key, value in reader.mapping("variants").items()
        },
        aliases=reader.strings("aliases"),
        traps=reader.mapping("traps"),
        notes=reader.text("notes", ""),
        unconfirmed=reader.text("unconfirmed", ""),
        cost=_cost(reader.entry_of("cost")) if reader.has("cost") else None,
    )
    reader.finish()
    if spec.sizes == "patch" and spec.size % spec.patch:
        raise HistobenchError(f"{reader.where}: size {spec.size} is not a multiple of patch {spec.patch}")
    return spec


def _transform(reader: _Entry) -> TransformSpec:
    size = reader.integer("size")
    mean, std = reader.norm("norm")
    spec = TransformSpec(
        resize=reader.integer("resize", size),
        crop=size,
        interpolation=reader.choice("interpolation", tuple(INTERPOLATIONS)),
        mean=mean,
        std=std,
        squash=reader.choice("fit", FITS, "crop") == "squash",
    )
    if spec.resize < spec.crop:
        raise HistobenchError(f"{reader.where}: resize {spec.resize} is smaller than size {spec.crop}")
    reader.finish()
    return spec


def _source(reader: _Entry) -> WeightsSource:
    source = WeightsSource(
        kind=reader.choice("kind", SOURCES, "hub"),
        repo=reader.text("repo", ""),
        revision=reader.text("revision", ""),
        file=reader.text("file", ""),
        sha256=reader.text("sha256", ""),
        gated=reader.flag("gated"),
        url=reader.text("url", ""),
        layout=reader.text("layout", ""),
        container=reader.text("container", ""),
        positions=reader.choice("positions", ("", *POSITIONS), ""),
        only=reader.text("only", ""),
        ignore=reader.strings("ignore"),
    )
    reader.finish()
    if source.kind == "hub" and not (source.repo and source.file):
        raise HistobenchError(f"{reader.where}: weights on the hub need repo and file")
    if source.sha256 and not re.fullmatch(r"[0-9a-f]{64}", source.sha256):
        raise HistobenchError(f"{reader.where}: sha256 must be 64 hexadecimal digits")
    return source


def _text(reader: _Entry) -> TextTowerSpec:
    text = TextTowerSpec(
        context=reader.integer("context", 77), files=reader.strings("files"), url=reader.text("url", "")
    )
    reader.finish()
    return text


def _variant(reader: _Entry) -> Variant:
    variant = Variant(
        pooling=reader.choice("pooling", POOLINGS),
        dim=reader.integer("dim"),
        zero_shot=reader.flag("zero_shot", True),
        alias=reader.text("alias", ""),
        note=reader.text("note", ""),
    )
    reader.finish()
    return variant


def _cost(reader: _Entry) -> Cost:
    cost = Cost(params=reader.integer("params"), gflops=reader.number("gflops") or 0.0)
    reader.finish()
    return cost


_REQUIRED: Any = object()


class _Entry:
    """Reads a YAML mapping field by field and remembers what was read, so that typing errors are found."""

    def __init__(self, where: str, entry: Any) -> None:
        if not isinstance(entry, Mapping):
            raise HistobenchError(f"{where}: expected fields (key: value), found {type(entry).__name__}")
        self.where = where
        self._entry = entry
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        return key in self._entry

    def get(self, key: str, default: Any, kinds: tuple[type, ...], what: str) -> Any:
        self._read.add(key)
        if key not in self._entry:
            if default is _REQUIRED:
                raise HistobenchError(f"{self.where}: the field {key!r} is missing")
            return default
        value = self._entry[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise HistobenchError(f"{self.where}: {key} must be {what}, found {value!r}")
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        return str(self.get(key, default, (str,), "text")).strip()

    def integer(self, key: str, default: int = _REQUIRED) -> int:
        value = self.get(key, default, (int,), "a whole number")
        if value < 1:
            raise HistobenchError(f"{self.where}: {key} must be positive, found {value}")
        return int(value)

    def number(self, key: str) -> float | None:
        value = self.get(key, None, (int, float), "a number")
        return None if value is None else float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self.get(key, default, (bool,), "true or false"))

    def choice(self, key: str, known: tuple[str, ...], default: str = _REQUIRED) -> str:
        value = self.text(key, default)
        if value not in known:
            raise HistobenchError(f"{self.where}: {key} is {value!r}; {did_you_mean(value, known)}")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        values = self.get(key, [], (list,), "a list of texts")
        if not all(isinstance(value, str) for value in values):
            raise HistobenchError(f"{self.where}: {key} must be a list of texts, found {values!r}")
        return tuple(values)

    def mapping(self, key: str) -> dict[str, Any]:
        return dict(self.get(key, {}, (Mapping,), "fields (key: value)"))

    def entry_of(self, key: str) -> _Entry:
        return _Entry(f"{self.where}: {key}", self.get(key, _REQUIRED, (Mapping,), "fields (key: value)"))

    def norm(self, key: str) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        value = self.get(key, _REQUIRED, (str, Mapping), "a name or {mean: [...], std: [...]}")
        if isinstance(value, str):
            if value not in NORMS:
                raise HistobenchError(f"{self.where}: {key} is {value!r}; {did_you_mean(value, NORMS)}")
            return NORMS[value]
        reader = _Entry(f"{self.where}: {key}", value)
        mean, std = reader.triple("mean"), reader.triple("std")
        reader.finish()
        return mean, std

    def triple(self, key: str) -> tuple[float, float, float]:
        values = self.get(key, _REQUIRED, (list,), "three numbers")
        if len(values) != 3 or not all(isinstance(value, int | float) for value in values):
            raise HistobenchError(f"{self.where}: {key} must be three numbers, found {values!r}")
        first, second, third = map(float, values)
        return first, second, third

    def finish(self) -> None:
        extra = [str(key) for key in self._entry if key not in self._read]
        if extra:
            raise HistobenchError(
                f"{self.where}: unknown field {extra[0]!r}; {did_you_mean(extra[0], self._read)}"
            )
