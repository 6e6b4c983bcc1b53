"""A user's own encoder (a class in a file, a plug-in, or a decorated class) and its identity."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import read_bytes
from histobench.core.plain_data import parse_json
from histobench.core.text import parse_python
from histobench.roi.encoders.any_model import state_sha256, version_of, wrap_object
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.file_hash import sha256_now
from histobench.roi.encoders.own_name import check_file, split_alias
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.encoders.zoo import load_zoo

#: Names that never mean a file beside the user's.
NEVER_BESIDE = frozenset({*sys.stdlib_module_names, "histobench", "torch"})


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
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
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
        encoder = factory(resize_size=resize_size) if takes_size and resize_size else factory()
    except HistobenchError:
        raise
    except (Exception, SystemExit) as error:
        raise HistobenchError(f"{name} cannot be made: {type(error).__name__}: {error}") from error
    if isinstance(encoder, nn.Module) and not isinstance(encoder, BasePatchEncoder):
        encoder = wrap_object(encoder, name=name, transform=None, size=resize_size)
    if not isinstance(encoder, BasePatchEncoder):
        raise HistobenchError(f"{name} gives a {type(encoder).__name__}, not a torch.nn.Module")
    for attribute in ("embed_dim", "eval_transforms"):
        if getattr(encoder, attribute, None) is None:
            raise HistobenchError(f"{name} does not set self.{attribute}")
    if resize_size and not takes_size:
        if not isinstance(encoder.eval_transforms, TransformSpec):
            raise HistobenchError(
                f"{name}: the size of its preprocessing cannot be changed; leave out `size`, "
                "or use a TransformSpec, or take resize_size in __init__"
            )
        encoder.eval_transforms = encoder.eval_transforms.with_size(resize_size)
    hashes: dict[str, Any] = {}
    with contextlib.suppress(OSError, TypeError):
        path = Path(inspect.getfile(type(encoder))).resolve()
        hashes = _hashes(path) if path.is_file() else {}
    encoder.name = name
    encoder.identity = {
        "encoder": name,
        "class": type(encoder).__name__,
        "weights": f"sha256:{state_sha256(encoder)}",
        "dim": encoder.embed_dim,
        **hashes,
        **version_of(encoder),
        **encoder.identity,
    }
    return encoder.eval().requires_grad_(False)


def _load(path: Path) -> ModuleType:
    """Run a user's file as a module; what it imports from its folder is loaded anew, for it may be edited."""
    root = f"own_encoder_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    for name in [*_beside(path), *(name for name in list(sys.modules) if name.startswith(f"{root}."))]:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    # With a place to search, `from . import helper` works, too.
    spec = importlib.util.spec_from_file_location(root, path, submodule_search_locations=[str(path.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
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
    return module


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
    beside = {} if {"site-packages", "dist-packages"} & set(path.parts) else _beside(path)
    files = sorted(set(beside.values()))
    return {
        "source": f"sha256:{sha256_now(path)}",
        "files": {str(file.relative_to(path.parent)): f"sha256:{sha256_now(file)}" for file in files},
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
