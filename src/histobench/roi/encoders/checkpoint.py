"""Checkpoints: found, read without running code, and loaded completely or not at all."""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text, regular
from histobench.core.plain_data import parse_json
from histobench.roi.encoders.file_hash import sha256_of

if TYPE_CHECKING:
    from torch import Tensor, nn

#: How the name of a sharded checkpoint's table of contents ends.
INDEX = ".index.json"


def checkpoint_sha256(checkpoint: Path, *, only: str = "") -> str:
    """What identifies the weights: the file's sha256, or that of a sharded checkpoint's index and shards."""
    if not checkpoint.name.endswith(INDEX):
        return sha256_of(checkpoint)
    parts = [checkpoint, *shards_of(checkpoint, only=only)]
    listing = "".join(f"{part.name} {sha256_of(part)}\n" for part in parts)
    return hashlib.sha256(listing.encode()).hexdigest()


def shard_names(index: Path, *, only: str = "") -> list[str]:
    """The files that the index of a sharded checkpoint names for tensors that start with `only`."""
    try:
        weight_map = parse_json(read_plain_text(index))["weight_map"]
        return sorted({Path(part).name for name, part in weight_map.items() if name.startswith(only)})
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise HistobenchError(
            f"{index} is not the index of a sharded checkpoint, with a weight_map (tensor: file): {error}"
        ) from error


def shards_of(index: Path, *, only: str = "") -> list[Path]:
    """The files of a sharded checkpoint, or those with the tensors `only`; all of them are there."""
    names = shard_names(index, only=only)
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing or not names:
        what = missing[0] if missing else "no file at all"
        raise HistobenchError(f"{index} names {what}, which is not next to it; download every shard")
    return [index.parent / name for name in names]


HEAD_BYTES = 512
#: The largest header that the safetensors format allows.
SAFETENSORS_HEADER = 100_000_000
#: First bytes of what people take for a checkpoint, and what to do about it.
_PAGE = "a web page, not the weights (a login or error page?): download the file again"
STRANGERS = {
    b"version https://git-lfs": "a git-lfs pointer, not the weights: run `git lfs pull`, or download it",
    b"<!doctype html": _PAGE,
    b"<html": _PAGE,
    b"\x1f\x8b": "a gzip archive; unpack it and give the checkpoint inside",
    b"{": "a JSON text, not weights; give the checkpoint itself (or the .index.json of a sharded one)",
}


def is_safetensors(path: Path) -> bool:
    """Whether a file is in this format, whatever it is called; one that cannot be weights is an error."""
    with open(regular(path), "rb") as handle:
        head = handle.read(HEAD_BYTES)
    if not head:
        raise HistobenchError(f"{path} is empty: a download that failed? fetch it again")
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= SAFETENSORS_HEADER:
        return True  # a length, and so much JSON
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for prefix, what in STRANGERS.items():
        if start.startswith(prefix):
            raise HistobenchError(f"{path} is {what}")
    return False


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
#: Limits of clipped layers, which are infinite where nothing is clipped.
BOUNDS = (".input_min", ".input_max", ".output_min", ".output_max")
SHOWN = 6
#: Characters of a library's own message that are shown.
MESSAGE = 100


def read_checkpoint(path: Path, *, container: str = "", only: str = "") -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, whatever they are wrapped in.

    With `only`, those whose names start like this, without this start."""
    if path.name.endswith(INDEX):
        state: dict[str, Tensor] = {}
        for part in shards_of(path, only=only):
            state.update(read_checkpoint(part, only=only))
        return state
    state = _unwrap(_read_safetensors(path, only) if is_safetensors(path) else _read_pickle(path), container)
    if only and any(name.startswith(only) for name in state):
        # A file of that part alone has no such start: all of it is taken.
        state = {name.removeprefix(only): state[name] for name in state if name.startswith(only)}
    if not state:
        raise HistobenchError(f"{path} holds no named tensors; is it a checkpoint of weights?")
    return state


def load_strictly(
    network: nn.Module, state: Mapping[str, Tensor], *, where: str, ignore: Iterable[str] = ()
) -> None:
    """Load `state` into `network`; a missing, unexpected or misshapen tensor is an error that names it."""
    import torch

    expected, ignored = network.state_dict(), tuple(ignore)
    fitted = fit_names(state, expected)
    both = {name: (fitted[name], tensor) for name, tensor in expected.items() if name in fitted}
    faults = {
        "missing": [name for name in expected if name not in fitted],
        "unexpected": [
            name
            for name in fitted
            if name not in expected and not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignored)
        ],
        "of another shape": [
            f"{name} {tuple(given.shape)} instead of {tuple(own.shape)}"
            for name, (given, own) in both.items()
            if given.shape != own.shape
        ],
        "quantized, without the scales that they need": [
            name
            for name, (given, own) in both.items()
            if own.is_floating_point() and not (given.is_floating_point() and given.element_size() > 1)
        ],
    }
    problems = [f"{len(names)} {what} ({_some(names)})" for what, names in faults.items() if names]
    if problems:
        raise HistobenchError(f"{where}: these are not this encoder's weights: tensors {'; '.join(problems)}")
    network.load_state_dict({name: given for name, (given, _) in both.items()}, strict=True)
    # A sum is NaN or infinite if any element is, and costs one pass without a mask in memory.
    parts = ((name, given) for name, (given, _) in both.items() if given.is_floating_point())
    checked = [(name, given.sum(dtype=torch.float32)) for name, given in parts if not name.endswith(BOUNDS)]
    if broken := [name for name, total in checked if not torch.isfinite(total)]:
        raise HistobenchError(f"{where}: NaN or infinity in {_some(broken)}; the file is damaged")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def fit_names(state: Mapping[str, Tensor], expected: Iterable[str]) -> dict[str, Tensor]:
    """Strip wrapper prefixes (`module.`, `model.`, ...) as long as more names fit the network."""
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
    for _ in range(3):
        for prefix in PREFIXES:
            if all(name.startswith(prefix) for name in state):
                state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _read_safetensors(path: Path, only: str = "") -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            wanted = [name for name in names if name.startswith(only)] or names
            return {name: file.get_tensor(name) for name in wanted}
    except SafetensorError as error:
        raise HistobenchError(
            f"{path} is damaged or truncated ({_short(error)}); download or copy it again"
        ) from error


def _read_pickle(path: Path) -> Any:
    import torch

    # Training scripts often leave their parsed arguments in the file; a Namespace only holds values.
    try:
        # By its handle: given a name, torch would judge the file by how that ends.
        with open(regular(path), "rb") as handle, torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(handle, map_location="cpu", weights_only=True)
    except Exception as error:
        # A damaged pickle makes the reader stumble in any of the ways that Python knows.
        raise HistobenchError(
            f"{path} is damaged, or holds Python objects, which are never executed here (save its "
            f"state_dict() again): {_short(error)}"
        ) from error


def _short(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0].strip()
    return f"{first[:MESSAGE]}..." if len(first) > MESSAGE else first or type(error).__name__


def _unwrap(content: Any, container: str) -> dict[str, Tensor]:
    from torch import Tensor

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
