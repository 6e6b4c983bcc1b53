"""The files that a user's own encoder is made of: its text, what that imports, and what it reads."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from histobench.core.cache_folder import cache_dir
from histobench.core.errors import HistobenchError
from histobench.core.plain_file import HAND_WRITTEN, read_plain
from histobench.core.python_syntax import parse_python
from histobench.roi.encoders.file_hash import sha256_now
from histobench.roi.encoders.own_import import sibling

#: Places whose files are the machine's or an installed package's, not the encoder's.
ELSEWHERE = tuple(
    Path(place)
    for place in {*sysconfig.get_paths().values(), "/proc", "/sys", "/dev", "/etc", "/run"}
    if place
)
#: Folders of installed packages, wherever they are.
INSTALLED = frozenset({"site-packages", "dist-packages"})
#: Hidden folders are settings and logs, except what libraries keep of downloaded models.
DOWNLOADED = frozenset({"snapshots", "blobs", "checkpoints"})
#: No file name is longer.
LONGEST = 4096

_watch = threading.local()


@contextlib.contextmanager
def files_opened() -> Iterator[list[str]]:
    """Collects the names of the files that this thread opens for reading."""
    _listen()
    before = getattr(_watch, "names", None)
    names: list[str] = []
    _watch.names = names
    try:
        yield names
    finally:
        _watch.names = before
        if before is not None:
            before.extend(names)


def _listen() -> None:
    # An audit hook cannot be taken away again: there is one, which does nothing unless someone collects.
    if not getattr(sys, "_histobench_listens", False):
        sys.addaudithook(_note_open)
        sys._histobench_listens = True  # type: ignore[attr-defined]


def _note_open(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open":
        return
    names = getattr(_watch, "names", None)
    if names is None:
        return
    path, mode, flags = arguments
    if isinstance(mode, str):
        writes = any(letter in mode for letter in "wax+")
    else:
        writes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
    if not writes and isinstance(path, str | bytes | os.PathLike):
        with contextlib.suppress(TypeError, ValueError):
            names.append(os.path.abspath(os.fsdecode(path)))


def own_files(path: Path, encoder: nn.Module, opened: Iterable[str]) -> dict[str, str]:
    """The sha256 of every file besides `path` itself on which the encoder depends, by its name.

    These are the modules beside the file that it imports, in a function or through another module too; the
    files that were opened while it was built; and files that its text or its attributes name, because
    libraries in other languages open them unseen.
    """
    folder = path.parent
    texts = imported_siblings(path)
    named = {name for file in (path, *texts) for name in _names_in(file)} | set(_attributes(encoder))
    # Libraries open the text of whoever calls them, once, to show it; what is imported is known already.
    found = {*texts, *(Path(name) for name in opened if not name.endswith((".py", ".pyc")))}
    for name in named:
        found |= {Path.cwd() / name, folder / name}
    files: dict[str, str] = {}
    for file in sorted({file.resolve() for file in found if _is_file(file)} - {path}):
        if _belongs(file, folder):
            inside = file.is_relative_to(folder)
            with contextlib.suppress(HistobenchError):  # it may be gone, or not ours to read
                files[str(file.relative_to(folder) if inside else file)] = f"sha256:{sha256_now(file)}"
    return files


def imported_siblings(path: Path) -> list[Path]:
    """The modules in the folder of `path` that it imports, directly or through one another."""
    folder, found, waiting = path.parent, {path}, [path]
    while waiting:
        for name in _imports(waiting.pop(), folder):
            file = sibling(folder, name)
            if file is not None and file not in found:
                found.add(file)
                waiting.append(file)
    return sorted(found - {path})


def _imports(file: Path, folder: Path) -> Iterator[str]:
    """Every module name that a file may import, as seen from `folder`; the packages around it included."""
    here = file.parent.relative_to(folder).parts
    for node in ast.walk(_tree(file)):
        names: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            start = (*base, *(node.module.split(".") if node.module else ()))
            names = [start, *((*start, alias.name) for alias in node.names)]
        for parts in names:
            for end in range(1, len(parts) + 1):
                yield ".".join(parts[:end])


def _tree(file: Path) -> ast.AST:
    try:
        return parse_python(read_plain(file, limit=HAND_WRITTEN))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _names_in(file: Path) -> Iterator[str]:
    """Texts in a file that may be file names."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _attributes(encoder: nn.Module) -> Iterator[str]:
    """Texts and paths among the attributes of a network, and one step further in."""
    for module in encoder.modules():
        for value in vars(module).values():
            inner = () if isinstance(value, nn.Module | Tensor) else getattr(value, "__dict__", {}).values()
            for item in (value, *inner):
                if isinstance(item, str | os.PathLike):
                    yield os.fspath(item) if isinstance(os.fspath(item), str) else ""


def loose_arrays(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Arrays and tensors that a network keeps outside its state_dict, as plain attributes for one."""
    saved = network.state_dict().keys()
    for name, module in network.named_modules():
        buffers = module.named_buffers(recurse=False)
        unsaved = {key: value for key, value in buffers if f"{name}.{key}".removeprefix(".") not in saved}
        for key, value in sorted({**vars(module), **unsaved}.items()):
            if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
                value = torch.from_numpy(np.ascontiguousarray(value))
            if isinstance(value, Tensor) and value.layout == torch.strided:
                yield f"{name}.{key}", value


def _is_file(path: Path) -> bool:
    try:
        return len(str(path)) < LONGEST and path.is_file()
    except (OSError, ValueError):
        return False


def _belongs(file: Path, folder: Path) -> bool:
    """Whether a file is part of the encoder rather than of the machine around it."""
    if file.suffix == ".pyc" or INSTALLED & set(file.parts):
        return False
    if file.is_relative_to(folder):
        return True
    ours = (Path(__file__).resolve().parents[2], cache_dir().resolve())
    if any(file.is_relative_to(place) for place in (*ELSEWHERE, *ours)):
        return False
    hidden = any(part.startswith(".") for part in file.parts)
    return not hidden or bool(DOWNLOADED & set(file.parts))
