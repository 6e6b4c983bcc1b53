"""A user's own encoder: a class in a file, a plug-in, or a decorated class."""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import sysconfig
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import HAND_WRITTEN, check_plain, read_plain
from histobench.core.folders import cache_dir
from histobench.core.plain_data import parse_json
from histobench.core.text import parse_python
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.file_hash import sha256_now
from histobench.roi.encoders.own_name import split_alias
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.encoders.zoo import load_zoo

# Runs a user's Python file: its siblings can be imported, and nothing of it gets into anybody's way.

PREFIX = "histobench_own_"
#: Names that never mean a file beside the user's.
FOREIGN = frozenset({*sys.stdlib_module_names, "histobench", "torch"})


def load_own_module(path: Path) -> ModuleType:
    """Run a user's file and give its module; what it imports from its folder is run anew with it."""
    root = f"{PREFIX}{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    for name in [name for name in list(sys.modules) if name == root or name.startswith(f"{root}.")]:
        del sys.modules[name]
    if not any(isinstance(finder, _OwnFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OwnFinder())
    importlib.invalidate_caches()
    spec = importlib.util.spec_from_file_location(
        root, path, loader=_OwnLoader(root, str(path)), submodule_search_locations=[str(path.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Data loader workers look classes up by module name.
    sys.modules[root] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise HistobenchError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def sibling(folder: Path, name: str) -> Path | None:
    """The file of the module `name` (`helper`, `parts.blocks`) beside a user's file, if there is one."""
    if name.partition(".")[0] in FOREIGN:
        return None
    stem = folder.joinpath(*name.split("."))
    candidates = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
    return next((file for file in candidates if file.is_file()), None)


class _OwnFinder:
    """Finds the private modules, and no others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PREFIX) or path is None:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
            return spec
        return importlib.util.spec_from_file_location(
            fullname,
            spec.origin,
            loader=_OwnLoader(fullname, spec.origin),
            submodule_search_locations=spec.submodule_search_locations,
        )


class _OwnLoader(SourceFileLoader):
    """Compiles the text as it is now, and lets its imports find their siblings."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)

    def exec_module(self, module: ModuleType) -> None:
        root = self.name.partition(".")[0]
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _importer(root)}
        super().exec_module(module)


def _importer(root: str) -> Any:
    """What `import` does in a user's file: names of siblings mean the siblings."""

    def import_(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        main = sys.modules.get(root)
        if level == 0 and main is not None and main.__file__ is not None:
            file = Path(main.__file__)
            if name == file.stem:
                return main
            top = name.partition(".")[0]
            if sibling(file.parent, top) is not None:
                module = builtins.__import__(f"{root}.{name}", globals, locals, fromlist or ("",), 0)
                return module if fromlist else sys.modules[f"{root}.{top}"]
        return builtins.__import__(name, globals, locals, fromlist, level)

    return import_


# What a user's own encoder is made of: its text, what that imports, and what it reads.

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
#: The package itself.
OURS = Path(__file__).resolve().parents[2]
#: Packages whose versions change at most the last bits of the features, as for the encoders of the zoo.
NUMERIC = frozenset({"torch", "numpy", "pillow", "histobench"})
#: Variables of the machine, of the session, and of libraries: what these read for themselves is not recorded.
MACHINE = re.compile(
    r"(HOME|USER|LOGNAME|PATH|PWD|OLDPWD|SHELL|TERM|TMP|TEMP|TMPDIR|LANG|LANGUAGE|COLUMNS|LINES|HOSTNAME|DISPLAY|TZ|"
    r"NO_COLOR|FORCE_COLOR|CI|(LC|XDG|PYTHON|VIRTUAL|CONDA|SSH|CUDA|NVIDIA|CUBLAS|CUDNN|NCCL|OMP|MKL|KMP|GOMP|"
    r"OPENBLAS|NUMEXPR|NUMBA|TORCH|PYTORCH|TORCHINDUCTOR|TORCHDYNAMO|TRITON|HF|HUGGINGFACE|TRANSFORMERS|TQDM|"
    r"HISTOBENCH|PYTEST|COVERAGE|HTTP|HTTPS|NO_PROXY|SSL|REQUESTS)\w*)",
    re.IGNORECASE,
)
#: Variables that number a process of a cluster: they differ on every node.
NODE = re.compile(r"(SLURM|RAY|PMI|PMIX|OMPI)_\w*")
#: Of these it is noted that they are set, and not to what.
PRIVATE = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)


@dataclass
class ImportRecording:
    """What was used while a recording was open."""

    files: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    #: Environment variables that were read and set -> their value.
    variables: dict[str, str] = field(default_factory=dict)
    #: Files of the modules that were loaded or asked for.
    modules: set[str] = field(default_factory=set)
    #: Threads that were there before: what they do is not the encoder's.
    others: frozenset[threading.Thread] = frozenset()

    def add(self, other: ImportRecording) -> None:
        """Include what another recording has."""
        self.files |= other.files
        self.written |= other.written
        self.variables |= other.variables
        self.modules |= other.modules


_mine = threading.local()
_lock = threading.Lock()
#: The recordings that are open, over all threads; almost always none.
_open: list[ImportRecording] = []


@contextlib.contextmanager
def recording() -> Iterator[ImportRecording]:
    """Note what this thread, and threads that it starts, use until the end of the block."""
    outer: ImportRecording | None = getattr(_mine, "recording", None)
    record = ImportRecording(others=frozenset(threading.enumerate()))
    before = dict(sys.modules)
    with _lock:
        _listen()
        _open.append(record)
        _watch_environment()
    _mine.recording = record
    try:
        yield record
    finally:
        _mine.recording = outer
        with _lock:
            _open.remove(record)
            _watch_environment()
        for name, module in list(sys.modules.items()):
            if before.get(name) is not module:
                _note_module(record, module)
        if outer is not None:
            outer.add(record)


def _current() -> ImportRecording | None:
    """The recording that this thread's actions belong to."""
    mine: ImportRecording | None = getattr(_mine, "recording", None)
    if mine is not None or not _open:
        return mine
    thread = threading.current_thread()
    if thread.name.startswith("histobench"):
        return None
    return next((record for record in reversed(_open) if thread not in record.others), None)


def _listen() -> None:
    # An audit hook cannot be taken away again: there is one, which does nothing unless a recording is open.
    if not getattr(sys, "_histobench_listens", False):
        sys.addaudithook(_note_event)
        sys._histobench_listens = True  # type: ignore[attr-defined]


def _note_event(event: str, arguments: tuple[Any, ...]) -> None:
    if not _open or event not in ("open", "ctypes.dlopen", "sqlite3.connect"):
        return
    record = _current()
    path = arguments[0]
    if record is None or not isinstance(path, str | bytes | os.PathLike):
        return
    with contextlib.suppress(TypeError, ValueError):
        name = os.path.abspath(os.fsdecode(path))
        if event == "open" and _writes(*arguments[1:3]):
            record.written.add(name)
        elif not name.endswith(".py") or not _shows_text(sys._getframe(1)):
            record.files.add(name)


def _writes(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND))


def _shows_text(frame: FrameType | None) -> bool:
    """Whether a library reads the text of a program to quote it, in a warning for instance."""
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") in ("linecache", "inspect", "tokenize", "traceback"):
            return True
        frame = frame.f_back
    return False


def _note_module(record: ImportRecording, module: ModuleType | None) -> None:
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        record.modules.add(os.path.abspath(file))


class _WatchedEnvironment(os._Environ):  # type: ignore[type-arg]
    """The environment while a recording is open."""

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        listed: deque[Any] | None = getattr(_mine, "listed", None)
        if listed and listed[0] == key:
            listed.popleft()
        else:
            _mine.listed = None
            _note_variable(key, value)
        return value

    def __iter__(self) -> Iterator[Any]:
        # A copy of all variables (for a child process, say) reads one after the other, in this order, and
        # says nothing about any of them.
        keys = list(super().__iter__())
        _mine.listed = deque(keys)
        yield from keys


_PLAIN_ENVIRONMENT = type(os.environ)
_plain_import = importlib.import_module


def _import_module(name: str, package: str | None = None) -> ModuleType:
    module = _plain_import(name, package)
    record = _current()
    if record is not None:  # a module that another encoder has loaded is used by this one, too
        _note_module(record, module)
    return module


def _watch_environment() -> None:
    watched = bool(_open)
    kind = _WatchedEnvironment if watched else _PLAIN_ENVIRONMENT
    for environment in (os.environ, getattr(os, "environb", os.environ)):
        if type(environment) in (_PLAIN_ENVIRONMENT, _WatchedEnvironment):
            environment.__class__ = kind
    if importlib.import_module in (_plain_import, _import_module):
        importlib.import_module = _import_module if watched else _plain_import


def _note_variable(key: Any, value: Any) -> None:
    record = _current()
    if record is None or not isinstance(key, str | bytes):
        return
    name = os.fsdecode(key)
    reader = _reader(sys._getframe(2))
    if reader is None or NODE.fullmatch(name) or (reader == "library" and MACHINE.fullmatch(name)):
        return
    record.variables[name] = os.fsdecode(value)


def _reader(frame: FrameType | None) -> str | None:
    """Who reads a variable: the encoder (`own`), a library for it (`library`), or somebody else (None)."""
    found = "own"
    while frame is not None:
        kind = _kind(frame.f_code.co_filename)
        if kind == "own":
            return found
        if kind in ("import", "ours"):  # a library that is being loaded, or this package
            return None
        if kind == "library":
            found = "library"
        frame = frame.f_back
    return None


@cache
def _kind(name: str) -> str:
    """Whose code a file is."""
    if name.startswith("<frozen importlib"):
        return "import"
    mappings = (os.__file__, "<frozen os>", "<frozen _collections_abc>", __file__)
    if name in mappings or name.endswith("_collections_abc.py"):
        return "mapping"
    if name.startswith("<frozen"):
        return "library"
    if Path(name).is_relative_to(OURS):
        return "ours"
    return "own" if _is_module_of_user(Path(name)) else "library"


def used(record: ImportRecording, path: Path, encoder: nn.Module | None = None) -> dict[str, Any]:
    """What an encoder of the file `path` depends on, as a part of its identity.

    `files` are the sha256 of files, `packages` the versions of installed packages that its text imports,
    `environment` digests of the variables that were read. Without an `encoder` the text at `path` does not
    count, only what was recorded.
    """
    files, packages = own_files(path, encoder, record)
    facts: dict[str, Any] = {"files": files}
    if packages:
        facts["packages"] = packages
    if record.variables:
        facts["environment"] = {
            name: variable_digest(name, value) for name, value in sorted(record.variables.items())
        }
    return facts


def variable_digest(name: str, value: str) -> str:
    """What is written down of the value of an environment variable."""
    # A feature file is given away; what is in a variable may not be for others.
    return (
        "set" if PRIVATE.search(name) else hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()[:16]
    )


def own_files(
    path: Path, encoder: nn.Module | None, record: ImportRecording
) -> tuple[dict[str, str], dict[str, str]]:
    """The sha256 of every file besides `path` itself on which the encoder depends, and installed packages.

    These are the modules that it imports, in a function or through another module too; the files that were
    opened; and files that its text or its attributes name, because libraries in other languages open them
    unseen.
    """
    folder = path.parent
    loaded = {Path(file) for file in (*record.modules, *filter(None, map(_source_of, record.files)))}
    start = {file.resolve() for file in loaded if _is_module_of_user(file)}
    texts, packages = imported_files(folder, start if encoder is None else start | {path})
    named = {name for file in texts for name in _names_in(file)}
    named |= set(_attributes(encoder)) if encoder is not None else set()
    found = {Path(name) for name in record.files - record.written if not name.endswith(".pyc")}
    for name in named:
        found |= {Path.cwd() / name, folder / name}
    files: dict[str, str] = {}
    data = {file.resolve() for file in found if _is_file(file)}
    modules = {file for file in texts if _is_module_of_user(file)}
    for file in sorted(({file for file in data | set(texts) if _belongs(file, folder)} | modules) - {path}):
        inside = file.is_relative_to(folder)
        with contextlib.suppress(HistobenchError):  # it may be gone, or not ours to read
            files[str(file.relative_to(folder) if inside else file)] = f"sha256:{sha256_now(file)}"
    return files, packages


def _source_of(name: str) -> str | None:
    """The text of which a file is the compiled form, where there is one."""
    if not name.endswith(".pyc"):
        return None
    with contextlib.suppress(ValueError, NotImplementedError):
        source = importlib.util.source_from_cache(name)
        return source if os.path.isfile(source) else name
    return name


@cache
def _resolved(name: str) -> Path:
    """The file of a library's module, looked up once: there are thousands, and they stay where they are."""
    return Path(name).resolve()


def imported_files(folder: Path, start: Iterable[Path]) -> tuple[list[Path], dict[str, str]]:
    """The files `start` and the user's modules that they import, directly or not; packages with versions.

    Names are looked for in `folder`, then among the modules that are loaded.
    """
    found = set(start)
    waiting, packages = list(found), dict[str, str]()
    while waiting:
        file = waiting.pop()
        for name in _imports(file, folder):
            beside = sibling(folder, name)
            module = beside or _loaded(name)
            if module is not None and module not in found:
                found.add(module)
                waiting.append(module)
            if beside is None and "." not in name:
                packages |= _package(name)
    return sorted(found), dict(sorted(packages.items()))


def modules_named_in(kind: type) -> set[str]:
    """The files of the user's modules whose names, or names from which, appear in the text of a class."""
    found: set[Path] = set()
    for part in kind.__mro__:
        home = sys.modules.get(part.__module__)
        if home is None or part.__module__.partition(".")[0] in FOREIGN:
            continue
        with contextlib.suppress(OSError, TypeError, SyntaxError):  # defined at a prompt
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(part)))):
                value = vars(home).get(node.id) if isinstance(node, ast.Name) else None
                name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
                file = _loaded(name) if isinstance(name, str) and name != part.__module__ else None
                found |= {file} if file is not None else set()
    return {str(file) for file in found}


def _loaded(name: str) -> Path | None:
    """The file of a loaded module, if it is the user's."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or name.partition(".")[0] in FOREIGN:
        return None
    path = Path(file).resolve()
    return path if _is_module_of_user(path) else None


def _package(name: str) -> dict[str, str]:
    """The distributions that an installed module belongs to, with their versions."""
    found = {}
    for distribution in () if name in FOREIGN else _distributions().get(name, ()):
        with contextlib.suppress(PackageNotFoundError):
            if distribution.lower() not in NUMERIC:
                found[distribution] = version(distribution)
    return found


@cache
def _distributions() -> Any:
    return packages_distributions()


def _module_of(file: Path) -> ModuleType | None:
    """The loaded module of a file."""
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str):
            continue
        if (Path(name).resolve() if _kind(name) == "own" else _resolved(name)) == file:
            return module
    return None


def _imports(file: Path, folder: Path) -> Iterator[str]:
    """Every module name that a file may import, as seen from `folder`; the packages around it included."""
    here: tuple[str, ...] = ()
    if file.is_relative_to(folder):
        here = file.parent.relative_to(folder).parts
    elif (module := _module_of(file)) is not None:
        here = tuple((module.__package__ or "").split("."))
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
    if any(file.is_relative_to(place) for place in (*ELSEWHERE, OURS, cache_dir().resolve())):
        return False
    hidden = any(part.startswith(".") for part in file.parts)
    return not hidden or bool(DOWNLOADED & set(file.parts))


def _is_module_of_user(file: Path) -> bool:
    """Whether a program text is neither the standard library's, nor an installed package's, nor ours."""
    if INSTALLED & set(file.parts):
        return False
    return not any(file.is_relative_to(place) for place in (*ELSEWHERE, OURS))


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
        raise HistobenchError(f"{name} cannot be made: {type(error).__name__}: {error}") from error
    _check(name, encoder)
    if resize_size and not takes_size:
        if not isinstance(encoder.eval_transforms, TransformSpec):
            raise HistobenchError(
                f"{name}: the size of its preprocessing cannot be changed; leave out `resize_size`, "
                "or use a TransformSpec, or take resize_size in __init__"
            )
        encoder.eval_transforms = encoder.eval_transforms.with_size(resize_size)
    encoder.name = name
    encoder.identity = {
        "encoder": name,
        "class": type(encoder).__name__,
        "weights": f"sha256:{state_sha256(encoder)}",
        "dim": encoder.embed_dim,
        **_text_of(type(encoder), encoder, record),
        **encoder.identity,
    }
    return encoder.eval().requires_grad_(False)


def _text_of(kind: type, encoder: BasePatchEncoder, record: ImportRecording) -> dict[str, Any]:
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
    modules = used(ImportRecording(modules=modules_named_in(kind)), Path.cwd() / "prompt")
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "weights": f"sha256:{state_sha256(encoder)}",
        "source": text_sha256(kind.__mro__, ("torch", "histobench", "builtins")),
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


def text_sha256(parts: Iterable[Any], foreign: Sequence[str]) -> str:
    """A hash of the text of classes and functions, except those of `foreign` packages."""
    digest = hashlib.sha256()
    for part in parts:
        if getattr(part, "__module__", "").partition(".")[0] not in foreign:
            with contextlib.suppress(OSError, TypeError):  # defined at a prompt
                digest.update(inspect.getsource(part).encode())
    return digest.hexdigest()


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


def _is_encoder_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BasePatchEncoder) and value is not BasePatchEncoder
