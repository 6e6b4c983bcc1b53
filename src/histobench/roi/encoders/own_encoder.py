"""A user's own encoder: a class in a file, a plug-in, or a decorated class; and its identity.

The identity is the SHA-256 of the file, of the files beside it that it imports, and of the `state_dict`, and
the attribute `version` where there is one. What else may change the features is left to the recheck of cached
images (`roi/features/recheck.py`).
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import read_bytes
from histobench.core.plain_data import parse_json
from histobench.core.text import parse_python
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.file_hash import sha256_now
from histobench.roi.encoders.own_name import check_file, split_alias
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.encoders.zoo import load_zoo

#: Names that never mean a file beside the user's.
NEVER_BESIDE = frozenset({*sys.stdlib_module_names, "histobench", "torch"})
INSTALLED = frozenset({"site-packages", "dist-packages"})
#: Modules beside own files that were loaded for them -> their file.
_loaded: dict[str, Path] = {}


def from_file(name: str, *, resize_size: int | None = None) -> BasePatchEncoder:
    """Make the encoder of `my_file.py:MyEncoder` or `name=my_file.py:MyEncoder`; the user's file is run."""
    alias, target = split_alias(name)
    if alias and alias in load_zoo():
        raise HistobenchError(f"{name}: the zoo has an encoder {alias!r} already; choose another name")
    file, _, attribute = target.rpartition(":")
    check_file(name)
    path = Path(file).expanduser().resolve()
    module = _load(path)
    factory = getattr(module, attribute, None)
    if factory is None:
        classes = [key for key, value in vars(module).items() if _is_encoder_class(value)]
        raise HistobenchError(f"{path} has no {attribute!r}; {did_you_mean(attribute, classes)}")
    encoder = from_factory(name, factory, resize_size=resize_size)
    encoder.origin = f"{path}:{attribute}"
    encoder.identity |= {"encoder": f"{path.name}:{attribute}", "path": str(path), **_hashes(path)}
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
    except (Exception, SystemExit) as error:
        raise HistobenchError(f"{name} cannot be made: {type(error).__name__}: {error}") from error
    _check(name, encoder)
    if resize_size and not takes_size:
        if not isinstance(encoder.eval_transforms, TransformSpec):
            raise HistobenchError(
                f"{name}: the size of its preprocessing cannot be changed; leave out `size`, "
                "or use a TransformSpec, or take resize_size in __init__"
            )
        encoder.eval_transforms = encoder.eval_transforms.with_size(resize_size)
    encoder.name = name
    encoder.identity = {
        "encoder": name,
        "class": type(encoder).__name__,
        "weights": f"sha256:{state_sha256(encoder)}",
        "dim": encoder.embed_dim,
        **_hashes_of_class(type(encoder)),
        **version_of(encoder),
        **encoder.identity,
    }
    return encoder.eval().requires_grad_(False)


def _load(path: Path) -> ModuleType:
    """Run a user's file as a module; what it imports from its folder is loaded anew, for it may be edited."""
    root = f"own_encoder_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    beside = _beside(path)
    for name, file in beside.items():
        _make_room(name, file)
    for name in [name for name in sys.modules if name.startswith(f"{root}.")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    # With a place to search, `from . import helper` works, too.
    spec = importlib.util.spec_from_file_location(root, path, submodule_search_locations=[str(path.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
    sys.modules[root] = module  # pickle finds classes by the name of their module
    # The folder is searched first while the file is loaded, as for a script, and last from then on.
    folder, writes_bytecode = str(path.parent), sys.dont_write_bytecode
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True  # a compiled file would hide an edit within the same second
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise HistobenchError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.dont_write_bytecode = writes_bytecode
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)
        _loaded.update({name: file for name, file in beside.items() if name not in before})
    return module


def _make_room(name: str, file: Path) -> None:
    """Forget the module `name` where it was loaded for an own file; raise where another one is in the way."""
    if name in _loaded:
        sys.modules.pop(name, None)
    elif name in sys.modules:
        other = Path(getattr(sys.modules[name], "__file__", None) or name).resolve()
        if other != file:
            raise HistobenchError(
                f"{file} cannot be imported as {name}: {other} has the same name in this process; rename it"
            )


def _beside(path: Path) -> dict[str, Path]:
    """Find the modules beside a file that it imports, directly or not."""
    folder, found, waiting = path.parent, dict[str, Path](), [path]
    while waiting:
        for name in _imports(waiting.pop(), folder):
            stem = folder.joinpath(*name.split("."))
            candidates = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
            file = next((file for file in candidates if file.is_file()), None)
            if file is None or file == path or name.partition(".")[0] in NEVER_BESIDE:
                continue
            if name not in found:
                waiting.append(file)
                found[name] = file
    return dict(sorted(found.items()))


def _imports(file: Path, folder: Path) -> Iterator[str]:
    """Give every module name in the `import` statements of a file."""
    try:
        tree = parse_python(read_bytes(file))
    except (OSError, SyntaxError, ValueError):
        return  # running the file says what is wrong with it
    inside = file.parent.relative_to(folder).parts
    for node in ast.walk(tree):
        names: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else ()
            start = (*base, *(node.module.split(".") if node.module else ()))
            names = [start, *((*start, alias.name) for alias in node.names)]
        for parts in names:
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _hashes(path: Path) -> dict[str, Any]:
    """Hash a file and the files beside it that it imports; beside an installed file are other packages."""
    beside = {} if INSTALLED & set(path.parts) else _beside(path)
    files = sorted(set(beside.values()))
    return {
        "source": f"sha256:{sha256_now(path)}",
        "files": {str(file.relative_to(path.parent)): f"sha256:{sha256_now(file)}" for file in files},
    }


def _hashes_of_class(kind: type) -> dict[str, Any]:
    """Hash the file that defines a class; there is none for a class of a prompt."""
    with contextlib.suppress(OSError, TypeError):
        path = Path(inspect.getfile(kind)).resolve()
        return _hashes(path) if path.is_file() else {}
    return {}


def version_of(network: object) -> dict[str, Any]:
    """Give the attribute `version` as a part of the identity: the user's word that the features changed."""
    version = getattr(network, "version", None)
    return {"version": str(version)} if isinstance(version, str | int | float) else {}


def identity_of_object(encoder: BasePatchEncoder) -> dict[str, Any]:
    """Give the identity of an encoder that the caller made: its class, weights, text and version."""
    kind = type(encoder)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "weights": f"sha256:{state_sha256(encoder)}",
        "source": text_sha256(kind.__mro__, ("torch", "histobench", "builtins")),
        **version_of(encoder),
    }


def check_same(encoder: BasePatchEncoder, planned: Mapping[str, Any]) -> None:
    """Raise when an encoder is made of other things here than where its features were planned."""
    if "family" in encoder.identity:  # of the zoo
        return
    here = parse_json(json.dumps(encoder.identity, default=str))
    differing = [name for name, value in here.items() if planned.get(name) != value]
    if differing:
        raise HistobenchError(
            f"{encoder.name} is not the same here as where the run was planned: {', '.join(differing)} "
            "differ; make them equal on every machine and start again"
        )


def text_sha256(parts: Iterable[Any], foreign: Sequence[str]) -> str:
    """Hash the text of classes and functions, except those of `foreign` packages."""
    digest = hashlib.sha256()
    for part in parts:
        if getattr(part, "__module__", "").partition(".")[0] not in foreign:
            with contextlib.suppress(OSError, TypeError):  # defined at a prompt
                digest.update(inspect.getsource(part).encode())
    return digest.hexdigest()


def state_sha256(network: nn.Module) -> str:
    """Hash every tensor of the `state_dict`, by name."""
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


def _is_encoder_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BasePatchEncoder) and value is not BasePatchEncoder
