"""A user's own encoder: a class in a file, a plug-in, or a decorated class."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.plain_file import check_plain
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.file_hash import sha256_now
from histobench.roi.encoders.own_files import files_opened, loose_arrays, own_files
from histobench.roi.encoders.own_import import load_own_module
from histobench.roi.encoders.own_name import split_alias
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.encoders.zoo import load_zoo


def from_file(name: str, *, resize_size: int | None = None) -> BasePatchEncoder:
    """The encoder of `my_file.py:MyEncoder` or `name=my_file.py:MyEncoder`; the user's own file is run.

    Its identity covers the text, the modules beside it that it imports, and the files it opens while made.
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
    with files_opened() as opened:
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
        "files": own_files(path, encoder, opened),
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
        with files_opened() as opened:
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
        **_text_of(type(encoder), encoder, opened),
        **encoder.identity,
    }
    frozen: BasePatchEncoder = encoder.eval().requires_grad_(False)
    return frozen


def _text_of(kind: type, encoder: BasePatchEncoder, opened: Sequence[str]) -> dict[str, Any]:
    """The file that defines a class, with what it needs, as a part of the identity; nothing at a prompt."""
    try:
        path = Path(inspect.getfile(kind)).resolve()
    except (OSError, TypeError):
        return {}
    if not path.is_file():
        return {}
    return {"source": f"sha256:{sha256_now(path)}", "files": own_files(path, encoder, opened)}


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
