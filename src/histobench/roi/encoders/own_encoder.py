"""A user's own encoder: a class in a file, a plug-in, or a decorated class."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec


def from_file(name: str, *, resize_size: int | None = None) -> BasePatchEncoder:
    """The encoder of `my_file.py:MyEncoder`; the file is the user's own and is run."""
    file, _, attribute = name.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise HistobenchError(f"the encoder file {path} does not exist")
    module_name = f"histobench_own_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise HistobenchError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Data loader workers look classes up by module name.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise HistobenchError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    factory = getattr(module, attribute, None)
    if factory is None:
        classes = [key for key, value in vars(module).items() if _is_encoder_class(value)]
        raise HistobenchError(f"{path} has no {attribute!r}; {did_you_mean(attribute, classes)}")
    encoder = from_factory(name, factory, resize_size=resize_size)
    encoder.identity["source"] = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
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
    encoder.name = encoder.name or name
    encoder.identity = {
        "encoder": name,
        "class": type(encoder).__name__,
        "weights": f"sha256:{state_sha256(encoder)}",
        "dim": encoder.embed_dim,
        **encoder.identity,
    }
    frozen: BasePatchEncoder = encoder.eval().requires_grad_(False)
    return frozen


def state_sha256(network: nn.Module) -> str:
    """A hash of every tensor of the network, by name: it changes when the features would."""
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
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
            f"{name}: the size of its preprocessing cannot be changed; leave out --resize_size, "
            "or use a TransformSpec, or take resize_size in __init__"
        )
    encoder.eval_transforms = encoder.eval_transforms.with_size(size)


def _is_encoder_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BasePatchEncoder) and value is not BasePatchEncoder
