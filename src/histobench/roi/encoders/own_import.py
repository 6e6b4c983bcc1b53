"""Runs a user's Python file: its siblings can be imported, and nothing of it gets into anybody's way.

The file and its siblings live under a private name, so that two folders may each have a `helper.py`. Their
text is compiled anew every time: bytecode on disk is recognised by size and second only, and would give the
features of an older text.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from histobench.core.errors import HistobenchError

PREFIX = "histobench_own_"
#: Names that never mean a file beside the user's.
FOREIGN = frozenset({*sys.stdlib_module_names, "histobench", "torch"})


def load_own_module(path: Path) -> ModuleType:
    """Run a user's file and give its module; what it imports from its folder is run anew with it."""
    root = f"{PREFIX}{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    for name in [name for name in sys.modules if name == root or name.startswith(f"{root}.")]:
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
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code

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
