"""Checkpoints: read without running their code, unwrapped, and loaded whole or not at all."""

from __future__ import annotations

import argparse
import fnmatch
import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from histobench.core.errors import HistobenchError

#: Under which names training scripts store the weights inside a larger dictionary.
CONTAINERS = ("state_dict", "model_state_dict", "teacher", "model", "net", "module", "backbone")
#: What wrappers put in front of every tensor name.
PREFIXES = (
    "module.",
    "_orig_mod.",
    "model.",
    "backbone.",
    "teacher.",
    "student.",
    "encoder.",
    "network.",
    "vit.",
)
SHOWN = 6


def read_checkpoint(path: Path, *, container: str = "") -> dict[str, Tensor]:
    """The tensors of a checkpoint file by name, whatever dictionary they are wrapped in.

    `.safetensors`, everything `torch.load(weights_only=True)` reads, and sharded checkpoints by their index.
    """
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    state = _unwrap(content, container)
    if not state:
        raise HistobenchError(f"{path} holds no named tensors; is it a checkpoint of weights?")
    return state


def load_strictly(
    network: nn.Module, state: Mapping[str, Tensor], *, where: str, ignore: Iterable[str] = ()
) -> None:
    """Load `state` into `network`; a missing, unexpected or misshapen tensor is an error that names it."""
    expected = network.state_dict()
    fitted = fit_names(state, expected)
    dropped = tuple(ignore)
    unexpected = [
        name
        for name in fitted
        if name not in expected and not any(fnmatch.fnmatchcase(name, pattern) for pattern in dropped)
    ]
    missing = [name for name in expected if name not in fitted]
    misshapen = [
        f"{name} {tuple(fitted[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in fitted and fitted[name].shape != tensor.shape
    ]
    problems = [
        f"{len(names)} {what} ({', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''})"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
        if names
    ]
    if problems:
        raise HistobenchError(f"{where}: these are not this encoder's weights: tensors {'; '.join(problems)}")
    network.load_state_dict({name: fitted[name] for name in expected}, strict=True)
    broken = [name for name in expected if fitted[name].is_floating_point() and not _is_finite(fitted[name])]
    if broken:
        raise HistobenchError(f"{where}: NaN or infinity in {', '.join(broken[:SHOWN])}; the file is damaged")


def fit_names(state: Mapping[str, Tensor], expected: Iterable[str]) -> dict[str, Tensor]:
    """Strip wrapper prefixes (`module.`, `model.`, ...) as long as more names fit the network.

    A name that never had the prefix keeps it, so that it is reported as unexpected.
    """
    wanted = set(expected)
    current = dict(state)
    while True:
        best, score = current, len(wanted & current.keys())
        for prefix in PREFIXES:
            # A prefix that is part of a name on both sides (`model.norm`) must not make two tensors collide.
            stripped = {name.removeprefix(prefix): tensor for name, tensor in current.items()}
            if len(stripped) == len(current) and len(wanted & stripped.keys()) > score:
                best, score = stripped, len(wanted & stripped.keys())
        if best is current:
            break
        current = best
    if not wanted & current.keys():
        # Nothing fits: let the error show bare names at least.
        return strip_shared_prefixes(current)
    return current


def strip_shared_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take off wrapper prefixes that every name has."""
    for _ in range(3):
        for prefix in PREFIXES:
            if all(name.startswith(prefix) for name in state):
                state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise HistobenchError(f"{path} is damaged or not a safetensors file: {error}") from error
    except OSError as error:
        raise HistobenchError(f"cannot read {path}: {error.strerror or error}") from error


def _read_pickle(path: Path) -> Any:
    # Training scripts often leave their parsed arguments in the file; a Namespace only holds values.
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise HistobenchError(
            f"{path} is damaged, or holds Python objects besides tensors, which are never executed here; "
            f"load it once where you trust it and save its state_dict() again"
        ) from error
    except OSError as error:
        raise HistobenchError(f"cannot read {path}: {error.strerror or error}") from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise HistobenchError(f"{path} is truncated or not a checkpoint: {first_line}") from error


def _read_shards(index: Path) -> dict[str, Tensor]:
    try:
        parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise HistobenchError(f"{index} is not the index of a sharded checkpoint") from error
    state: dict[str, Tensor] = {}
    for part in parts:
        file = index.parent / Path(part).name
        if not file.is_file():
            raise HistobenchError(f"{index} names {part}, which is not beside it")
        state.update(read_checkpoint(file))
    return state


def _unwrap(content: Any, container: str) -> dict[str, Tensor]:
    """The innermost dictionary of tensors."""
    while isinstance(content, Mapping):
        if container and isinstance(content.get(container), Mapping):
            content, container = content[container], ""
            continue
        if any(isinstance(value, Tensor) for value in content.values()):
            return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
        inner = next((name for name in CONTAINERS if isinstance(content.get(name), Mapping)), None)
        if inner is None:
            return {}
        content = content[inner]
    return {}


def _is_finite(tensor: Tensor) -> bool:
    # A sum is NaN or infinite if any element is, and costs one pass without a mask in memory.
    return bool(torch.isfinite(tensor.sum(dtype=torch.float32)))
