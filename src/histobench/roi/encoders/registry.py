"""From a name to a ready encoder: the zoo, the user's own file, plug-ins and decorated classes."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.folders import cache_dir
from histobench.core.version import __version__, installed_entry_points, installed_version
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.own_name import (
    TIMM,
    check_file,
    elsewhere_path,
    is_computed,
    names_a_file,
    names_a_model,
    names_features,
    split_alias,
)
from histobench.roi.encoders.zoo import aliases_of, load_zoo

if TYPE_CHECKING:
    from histobench.roi.encoders.base import BasePatchEncoder

Factory = TypeVar("Factory", bound=Callable[..., Any])
_REGISTERED: dict[str, Callable[..., Any]] = {}


def list_encoders() -> list[EncoderSpec]:
    """Every encoder of the zoo in its default output, in the order of the zoo file."""
    return list(load_zoo().values())


def get_spec(name: str) -> EncoderSpec:
    """The zoo entry of `name`, with the output asked for: `get_spec("virchow2@cls").dim == 1280`.

    `timm:NAME` and `hf:OWNER/NAME` are described by their own configuration.
    """
    if names_a_model(name):
        return _model_spec(split_alias(name)[1])
    spec = find_spec(name)
    if spec is None:
        raise HistobenchError(f"unknown encoder {name!r}; {_nearest(name)}")
    return spec


def _model_spec(name: str) -> EncoderSpec:
    """What `timm:NAME` or `hf:OWNER/NAME` is; of timm's it is kept, for importing timm takes seconds."""
    from histobench.core.record_files import read_record, write_record

    about = {"name": name, "histobench": __version__, "timm": installed_version("timm")}
    path = cache_dir() / "models" / f"{hashlib.sha256(repr(about).encode()).hexdigest()[:32]}.npz"
    is_kept = name.startswith(TIMM)
    spec = read_record(path, EncoderSpec, about=about) if is_kept else None
    if spec is None:
        from histobench.roi.encoders.any_model import find_model

        spec = find_model(name).spec
        if is_kept:
            with contextlib.suppress(HistobenchError):  # a cache that is mounted read-only
                write_record(path, spec, about=about)
    return spec


def _nearest(name: str) -> str:
    zoo = load_zoo()
    hint = did_you_mean(name, [*zoo, *aliases_of(zoo), *_REGISTERED, *_plug_ins()])
    lists = "`histobench models` lists all; a timm model is written timm:NAME"
    return f"{hint} ({lists})" if hint.startswith("did you mean") else lists


def zoo_name(name: str) -> str:
    """The name of an encoder as people write it, in the spelling of the zoo; other names unchanged.

    Case and separators do not matter. `hf-hub:` is the prefix that timm and open_clip use.

    >>> zoo_name("UNI 2-h"), zoo_name("CONCH v1.5"), zoo_name("hf-hub:MahmoodLab/UNI")
    ('uni_v2', 'conch_v15', 'uni_v1')
    """
    zoo = load_zoo()
    base, at, output = name.strip().partition("@")
    if base in zoo or name in aliases_of(zoo) or base in aliases_of(zoo) or name in _REGISTERED:
        return name
    if name.startswith("hf-hub:"):
        base = base.removeprefix("hf-hub:")
        kind, place = ("timm:", base[5:]) if base.startswith("timm/") else ("hf:", base)
        found = _written_names().get(_letters(base), kind + place)
    elif not re.search(r"[:=+]|\.py", name) and name not in _plug_ins():
        found = _written_names().get(_letters(base), base)
    else:
        return name
    return f"{found}{at}{output}"


def _written_names() -> dict[str, str]:
    """Names, aliases and repositories of the zoo without case and separators; those of two are left out."""
    zoo = load_zoo()
    known = {_letters(name): name for name in zoo}
    known |= {_letters(alias): name for alias, name in aliases_of(zoo).items()}
    places: dict[str, list[str]] = {}
    for spec in zoo.values():
        repo = spec.source.repo
        for place in {_letters(text) for text in (repo, repo.rpartition("/")[2], spec.title)}:
            places.setdefault(place, []).append(spec.name)
    return {key: names[0] for key, names in places.items() if key and len(names) == 1} | known


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9@]", "", name.lower())


def find_spec(name: str) -> EncoderSpec | None:
    """As `get_spec`, and None for what the zoo does not know: asks no installed package for plug-ins."""
    zoo = load_zoo()
    aliases = aliases_of(zoo)
    name = zoo_name(name)
    # An alias may stand for a named output as well (`virchow2-cls`).
    base, _, output = aliases.get(name, name).partition("@")
    spec = zoo.get(aliases.get(base, base).partition("@")[0])
    return spec.with_output(output) if spec is not None and output else spec


def known_spec(name: str) -> EncoderSpec | None:
    """As `find_spec` for the name of a run, such as `uni_v1@elsewhere` or `resnet50@mine`."""
    try:
        return find_spec(name)
    except HistobenchError:
        return None


def register_encoder(name: str) -> Callable[[Factory], Factory]:
    """Class decorator: makes a `BasePatchEncoder` known under `name`."""

    def remember(factory: Factory) -> Factory:
        if name in load_zoo():
            raise HistobenchError(f"the zoo has an encoder {name!r} already; choose another name")
        _REGISTERED[name] = factory
        return factory

    return remember


def create_encoder(
    name: str,
    *,
    resize_size: int | None = None,
    weights: str | None = None,
    allow_random: bool = False,
    allow_revision: bool = False,
) -> BasePatchEncoder:
    """A frozen encoder in eval mode.

    `name` is a zoo name (`uni_v1`, `virchow2@cls`), a registered name, a plug-in's name, `timm:NAME`,
    `hf:OWNER/NAME`, or `my_file.py:MyEncoder`. `weights` is a checkpoint, a folder, or a table of paths;
    without it the places of `resolve_weights` are asked. `allow_random` gives seeded random weights where
    there are none; `allow_revision` takes what the hub's cache has, where that is
    another revision than the pinned one.
    """
    if not is_computed(name):
        raise HistobenchError(f"{name} is not computed from images: use it in `histobench run` or a plan")
    from histobench.roi.encoders.own_encoder import from_factory, from_file

    if names_a_file(name):
        return from_file(name, resize_size=resize_size)
    if names_a_model(name):
        from histobench.roi.encoders.any_model import create_any_model

        return create_any_model(name, resize_size=resize_size, weights=weights, allow_random=allow_random)
    factory = _REGISTERED.get(name) or _plug_ins().get(name)
    if factory is not None:
        return from_factory(name, factory, resize_size=resize_size)
    from histobench.roi.encoders.construct import construct

    spec = get_spec(name).with_size(resize_size)
    return construct(spec, weights=weights, allow_random=allow_random, allow_revision=allow_revision)


def _is_described(name: str) -> bool:
    """Whether the zoo or timm says all that names the features of an encoder."""
    if names_a_model(name):
        return split_alias(name)[1].startswith(TIMM)
    return not (names_a_file(name) or name in _REGISTERED or name in _plug_ins())


@dataclass(frozen=True)
class EncoderRecipe:
    """An encoder by name, so that another process can make the same one; torch is needed to `build` it."""

    name: str
    resize_size: int | None = None
    weights: str | None = None
    #: Take what the hub's cache has, where that is another revision than the pinned one.
    allow_revision: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", zoo_name(self.name))

    @property
    def _place(self) -> str | None:
        return str(Path(self.weights).expanduser()) if self.weights else None

    @property
    def _spec(self) -> EncoderSpec:
        return get_spec(self.name).with_size(self.resize_size)

    def build(self) -> BasePatchEncoder:
        return create_encoder(
            self.name, resize_size=self.resize_size, weights=self._place, allow_revision=self.allow_revision
        )

    def stand_in(self) -> BasePatchEncoder | None:
        """Return an encoder of the zoo or of timm without its network; None for others, known once built."""
        if not _is_described(self.name):
            return None
        from histobench.roi.encoders.construct import stand_in

        if names_a_model(self.name):
            from histobench.roi.encoders.any_model import model_stand_in

            return model_stand_in(self.name, self._spec, self._place)
        return stand_in(self._spec, weights=self._place, allow_revision=self.allow_revision)

    def zoo_identity(self) -> list[str] | None:
        """Return the description of an encoder of the zoo or timm and the hash of its weights."""
        if not _is_described(self.name):
            return None
        from histobench.roi.encoders.checkpoint import checkpoint_sha256

        spec = self._spec
        if spec.source.kind in ("seed", "project"):
            return [repr(spec)]
        checkpoint = self._checkpoint(spec)
        return [repr(spec), str(checkpoint), checkpoint_sha256(checkpoint, only=spec.source.only)]

    def _checkpoint(self, spec: EncoderSpec) -> Path:
        from histobench.roi.encoders.weights import resolve_weights

        return resolve_weights(spec, self._place, allow_revision=self.allow_revision)

    def unresolved(self, *, download: bool = True) -> str:
        """Why the encoder cannot be made, empty if nothing is known against it; its code is not run."""
        from histobench.roi.encoders.weights import check_packages, find_weights
        from histobench.roi.encoders.weights_download import is_offline

        try:
            if not is_computed(self.name):
                place = elsewhere_path(self.name)
                return f"{place} does not exist" if names_features(self.name) and not place.exists() else ""
            if names_a_file(self.name):
                check_file(self.name)
            elif self.name not in _REGISTERED and self.name not in _plug_ins():
                spec, is_model = self._spec, names_a_model(self.name)
                check_packages(spec)
                if not is_model and spec.source.kind in ("seed", "project"):
                    return ""  # comes with the package
                if download or is_offline() or spec.source.kind == "project":
                    self._checkpoint(spec)
                elif not is_model:
                    find_weights(spec, self._place)
        except (HistobenchError, OSError) as error:
            return str(error)
        return ""


def require_encoders(reasons: Mapping[str, str], *, keep_going: bool = False) -> None:
    """Raise when encoders cannot be made, with all of them together; `keep_going` lets the others run."""
    missing = {name: why for name, why in reasons.items() if why}
    if not missing or (keep_going and len(missing) < len(reasons)):
        return
    if len(reasons) == 1:
        raise HistobenchError(next(iter(missing.values())))
    lines = "".join(f"\n{name}: {why.removeprefix(f'{name}: ')}" for name, why in missing.items())
    lines = lines.replace("\n", "\n  ")
    advice = "" if len(missing) == len(reasons) else "\nNothing was computed; `skip_failed` runs the others."
    raise HistobenchError(f"{len(missing)} of {len(reasons)} encoders cannot be used:{lines}{advice}")


def check_distinct_weights(names: Iterable[str], weights: str | None = None) -> None:
    """Raise when two encoders of the zoo would be filled from one and the same checkpoint of the user's."""
    from histobench.roi.encoders.weights import find_local, published_file

    seen: dict[Path, EncoderSpec] = {}
    for name in names:
        try:
            spec = get_spec(name)
            path = None if spec.source.kind in ("seed", "project") else find_local(spec, weights)
        except (HistobenchError, OSError):
            continue  # building this encoder says it
        other = seen.setdefault(path, spec) if path else spec
        if published_file(other) != published_file(spec):
            raise HistobenchError(
                f"one checkpoint for two encoders: {other.name} and {spec.name} would both be made from "
                f'{path}; give each its own in a table: {{"{other.name}": "...", "{spec.name}": "..."}}'
            )


def _plug_ins() -> dict[str, Callable[..., Any]]:
    return {
        point.name: lambda point=point, **kwargs: point.load()(**kwargs)
        for point in installed_entry_points("histobench.encoders")
    }
