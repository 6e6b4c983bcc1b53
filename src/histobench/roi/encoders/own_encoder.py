"""A user's own encoder: a class in a file, a plug-in, or a decorated class."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.plain_data import parse_json
from histobench.core.plain_file import check_plain
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.file_hash import sha256_now
from histobench.roi.encoders.own_files import (
    Recording,
    loose_arrays,
    modules_named_in,
    recording,
    used,
    variable_digest,
)
from histobench.roi.encoders.own_import import load_own_module
from histobench.roi.encoders.own_name import split_alias
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.encoders.zoo import load_zoo


def from_file(name: str, *, resize_size: int | None = None) -> BasePatchEncoder:
    """The encoder of `my_file.py:MyEncoder` or `name=my_file.py:MyEncoder`; the user's own file is run.

    Its identity covers the text, the modules that it imports, and the files and variables it reads.
    """
    alias, target = split_alias(name)
    if alias and alias in load_zoo():
        raise HistobenchError(f"{name}: the zoo has an encoder {alias!r} already; choose another name")
    file, _, attribute = target.rpartition(":")
    path = Path(file).expanduser().resolve()
    try:
        check_plain(path)
    except FileNotFoundError:
        raise HistobenchError(f"the encoder file {path} does not exist") from None
    except OSError as error:
        raise HistobenchError(f"cannot read the encoder file {path}: {error.strerror}") from None
    with recording() as record:
        module = load_own_module(path)
        factory = getattr(module, attribute, None)
        if factory is None:
            classes = [key for key, value in vars(module).items() if _is_encoder_class(value)]
            raise HistobenchError(f"{path} has no {attribute!r}; {did_you_mean(attribute, classes)}")
        encoder = from_factory(name, factory, resize_size=resize_size)
    encoder.origin = f"{path}:{attribute}"
    encoder.identity |= {
        "encoder": f"{path.name}:{attribute}",
        "path": str(path),
        "source": f"sha256:{sha256_now(path)}",
        **used(record, path, encoder),
    }
    return encoder


def from_factory(
    name: str, factory: Callable[..., Any], *, resize_size: int | None = None
) -> BasePatchEncoder:
    """Call `factory`, check what it gives, and freeze it."""
    try:
        takes_size = "resize_size" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        takes_size = False
    if not callable(factory):
        raise HistobenchError(f"{name} is {factory!r}, not a class of encoders")
    try:
        with recording() as record:
            encoder = factory(resize_size=resize_size) if takes_size and resize_size else factory()
    except HistobenchError:
        raise
    except Exception as error:
        raise HistobenchError(
            f"{name} cannot be made: {type(error).__name__}: {error} (--debug shows where)"
        ) from error
    _check(name, encoder)
    if resize_size and not takes_size:
        _resize(name, encoder, resize_size)
    encoder.name = name
    encoder.identity = {
        "encoder": name,
        "class": type(encoder).__name__,
        "weights": f"sha256:{state_sha256(encoder)}",
        "dim": encoder.embed_dim,
        **_text_of(type(encoder), encoder, record),
        **encoder.identity,
    }
    frozen: BasePatchEncoder = encoder.eval().requires_grad_(False)
    return frozen


def _text_of(kind: type, encoder: BasePatchEncoder, record: Recording) -> dict[str, Any]:
    """The file that defines a class, with what it needs, as a part of the identity; nothing at a prompt."""
    try:
        path = Path(inspect.getfile(kind)).resolve()
    except (OSError, TypeError):
        return {}
    if not path.is_file():
        return {}
    return {"source": f"sha256:{sha256_now(path)}", **used(record, path, encoder)}


def identity_of_object(encoder: BasePatchEncoder) -> dict[str, Any]:
    """The identity of an encoder that was made by the caller: its class, weights, text and modules."""
    kind = type(encoder)
    digest = hashlib.sha256()
    for part in kind.__mro__:
        if part.__module__.partition(".")[0] not in ("torch", "histobench", "builtins"):
            with contextlib.suppress(OSError, TypeError):  # defined at a prompt
                digest.update(inspect.getsource(part).encode())
    modules = used(Recording(modules=modules_named_in(kind)), Path.cwd() / "prompt")
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "weights": f"sha256:{state_sha256(encoder)}",
        "source": digest.hexdigest(),
        **{name: value for name, value in modules.items() if value},
    }


def note_first_batch(encoder: BasePatchEncoder, compute: Callable[[], object]) -> None:
    """Add to the identity what a user's own encoder uses while it computes, and weights that it makes then.

    Encoders of the zoo use their weights and nothing else: they are left as they are.
    """
    if "family" in encoder.identity:
        return
    if "weights" not in encoder.identity:
        encoder.identity = {**encoder.identity, **identity_of_object(encoder)}
    names = set(encoder.state_dict())
    with recording() as record:
        compute()
    path = Path(encoder.identity.get("path") or Path.cwd() / "prompt")
    for name, value in used(record, path).items():
        if value:
            encoder.identity[name] = {**encoder.identity.get(name, {}), **value}
    if set(encoder.state_dict()) != names:
        encoder.identity["made_later"] = f"sha256:{state_sha256(encoder)}"


def check_same(encoder: BasePatchEncoder, planned: Mapping[str, Any]) -> None:
    """Raise when an encoder is made of other things here than where its features were planned."""
    if "family" in encoder.identity:
        return
    here = {"environment": {}, **parse_json(json.dumps(encoder.identity, default=str))}
    for name in planned.get("environment") or {}:
        if name in os.environ:  # it may have been read later than now
            here["environment"].setdefault(name, variable_digest(name, os.environ[name]))
    for name, value in here.items():
        known = planned.get(name)
        if isinstance(value, dict):
            kept = known if isinstance(known, dict) else {}
            differing = {key for key, item in value.items() if kept.get(key) != item}
            differing |= set(kept) - set(value) if name == "environment" else set()
            what = ", ".join(sorted(differing))
        else:
            what = name if known != value else ""
        if what:
            raise HistobenchError(
                f"{encoder.name} is not the same here as where the run was planned: its {name} differ "
                f"({what}); make them equal on every machine and start again"
            )


def state_sha256(network: nn.Module) -> str:
    """A hash of every tensor of the network, by name: it changes when the features would."""
    digest = hashlib.sha256()
    for name, tensor in (*network.state_dict().items(), *loose_arrays(network)):
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _check(name: str, encoder: Any) -> None:
    if not isinstance(encoder, BasePatchEncoder):
        raise HistobenchError(f"{name} gives a {type(encoder).__name__}, not a BasePatchEncoder")
    for attribute, what in (
        ("embed_dim", "the length of its features"),
        ("eval_transforms", "its preprocessing: a TransformSpec, or a callable from PIL image to tensor"),
    ):
        if getattr(encoder, attribute, None) is None:
            raise HistobenchError(f"{name} does not set self.{attribute}: {what}")


def _resize(name: str, encoder: BasePatchEncoder, size: int) -> None:
    if not isinstance(encoder.eval_transforms, TransformSpec):
        raise HistobenchError(
            f"{name}: the size of its preprocessing cannot be changed; leave out `resize_size`, "
            "or use a TransformSpec, or take resize_size in __init__"
        )
    encoder.eval_transforms = encoder.eval_transforms.with_size(size)


def _is_encoder_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BasePatchEncoder) and value is not BasePatchEncoder
